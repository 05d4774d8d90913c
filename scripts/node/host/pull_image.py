"""Make the runtime image present on a node, by digest.

Inputs (JSON argument): ImageInputs. Progress in bytes on stderr every few seconds.
Exit codes: 0 present; 1 refused or failed, the cause on stderr.
"""

import json
import sys
import time
from typing import Any, TypedDict
from urllib.parse import quote

from host.console import say
from host.dockerd import DockerError, get, request
from host.our_folder import folder_of

PROGRESS_S = 5.0
CAUSES = (
    (
        ("unauthorized", "denied", "authentication required", "forbidden"),
        "the registry denies it: is the name right, and does it need a login?",
    ),
    (("manifest unknown", "not found", "name unknown"), "the registry has no such digest: compare it with the profile"),
    (
        ("no such host", "timeout", "connection refused", "unreachable", "no route"),
        "the node does not reach the registry: check its route and DNS",
    ),
    (("no space left",), "Docker's disk is full: free some of it"),
    (
        ("server gave http response to https client",),
        "the registry speaks plain HTTP: list it under insecure-registries of the node's dockerd",
    ),
)


class ImageInputs(TypedDict):
    image: str
    """repository@sha256:digest"""
    architecture: str
    """As Docker names it: arm64."""
    stack: str


def cause(message: str) -> str:
    lower = message.lower()
    return next(
        (words for needles, words in CAUSES if any(needle in lower for needle in needles)), "see the daemon's words"
    )


def pull(image: str) -> None:
    repository, _, digest = image.partition("@")
    path = f"/images/create?fromImage={quote(repository, safe='')}&tag={quote(digest, safe='')}"
    layers: dict[str, tuple[int, int]] = {}
    began = said = time.monotonic()
    # the stream stays silent while a big layer is unpacked
    for line in request("POST", path, timeout_s=1800):
        event = json.loads(line)
        if "error" in event:
            raise SystemExit(f"{image} cannot be pulled: {event['error']}: {cause(event['error'])}")
        detail = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            layers[event["id"]] = (detail["current"], detail["total"])
        elif event.get("status") in ("Download complete", "Pull complete") and event.get("id") in layers:
            layers[event["id"]] = (layers[event["id"]][1],) * 2
        if layers and time.monotonic() - said >= PROGRESS_S:
            said = time.monotonic()
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            seconds, mib = said - began, done / 2**20
            now = "all here, unpacking" if done == total else f"{mib / seconds:.1f} MiB/s"
            say(f"image: {mib:,.0f} of {total / 2**20:,.0f} MiB, {now}, {seconds:.0f} s")


def present(image: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = get(f"/images/{image}/json")
        return found
    except DockerError as error:
        if error.status == 404:
            return None
        raise


def ensure(image: str) -> dict[str, Any] | None:
    """The image as dockerd has it then; None when it still has not."""
    found = present(image)
    if found is not None:
        return found
    say(f"image: pulling {image}")
    try:
        pull(image)
    except DockerError as error:
        raise SystemExit(f"{image} cannot be pulled: {error}: {cause(str(error))}") from None
    return present(image)


def main() -> None:
    inputs: ImageInputs = json.loads(sys.argv[1])
    image = inputs["image"]
    try:
        found = ensure(image)
    except (DockerError, OSError, ValueError) as error:
        raise SystemExit(f"dockerd does not answer: {error}: look at `systemctl status docker`, run up again") from None
    if found is None:
        raise SystemExit(f"{image} is not there after its pull: does another registry mirror answer for it?")
    if found["Architecture"] != inputs["architecture"]:
        raise SystemExit(
            f"{image} is for {found['Architecture']}, this node runs {inputs['architecture']}: use the digest for it"
        )
    folder = folder_of(inputs["stack"])
    (folder / "image").write_text(image + "\n")
    # kernels compiled for one image are stale for another, so each digest has a cache of its own
    (folder / "cache" / image.partition("@sha256:")[2][:12]).mkdir(exist_ok=True)


if __name__ == "__main__":
    main()
