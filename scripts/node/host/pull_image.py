"""Pull the runtime image to a node, by digest.

Inputs (JSON argument): ImageInputs. Progress in bytes on stderr every few seconds.
Exit codes: 0 the image is on the node; 1 refused or failed, the cause on stderr.
"""

import json
import sys
import time
from typing import TypedDict
from urllib.parse import quote

from host.console import say
from host.dockerd import DockerError, get, request
from host.our_folder import folder_of

PROGRESS_S = 5.0
CAUSES = (
    (
        ("unauthorized", "denied", "authentication required", "forbidden"),
        "the registry refuses it: is the name right, and does it need a login?",
    ),
    (("manifest unknown", "not found", "name unknown"), "the registry has no such digest: compare it with the profile"),
    (
        ("no such host", "timeout", "connection refused", "unreachable", "no route"),
        "the node cannot reach the registry: check its route and DNS",
    ),
    (("no space left",), "Docker's disk is full: make room on it"),
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
    causes = (cause for needles, cause in CAUSES if any(needle in lower for needle in needles))
    return next(causes, "see dockerd's message")


def pull(image: str) -> None:
    repository, _, digest = image.partition("@")
    path = f"/images/create?fromImage={quote(repository, safe='')}&tag={quote(digest, safe='')}"
    layers: dict[str, tuple[int, int]] = {}
    began = shown = time.monotonic()
    # dockerd sends nothing while it unpacks a big layer
    for line in request("POST", path, timeout_s=1800):
        event = json.loads(line)
        if "error" in event:
            raise SystemExit(f"{image} cannot be pulled: {event['error']}: {cause(event['error'])}")
        detail = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            layers[event["id"]] = (detail["current"], detail["total"])
        elif event.get("status") in ("Download complete", "Pull complete") and event.get("id") in layers:
            layers[event["id"]] = (layers[event["id"]][1],) * 2
        if layers and time.monotonic() - shown >= PROGRESS_S:
            shown = time.monotonic()
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            seconds, mib = shown - began, done / 2**20
            now = "unpacking" if done == total else f"{mib / seconds:.1f} MiB/s"
            say(f"image: {mib:,.0f} of {total / 2**20:,.0f} MiB, {now}, {seconds:.0f} s")


def architecture_of(image: str) -> str | None:
    """None if dockerd does not have the image."""
    try:
        return str(get(f"/images/{image}/json")["Architecture"])
    except DockerError as error:
        if error.status == 404:
            return None
        raise


def ensure(image: str) -> str | None:
    """The image's architecture; pulls it first if dockerd does not have it."""
    if architecture := architecture_of(image):
        return architecture
    say(f"image: pulling {image}")
    try:
        pull(image)
    except DockerError as error:
        raise SystemExit(f"{image} cannot be pulled: {error}: {cause(str(error))}") from None
    return architecture_of(image)


def main() -> None:
    inputs: ImageInputs = json.loads(sys.argv[1])
    image = inputs["image"]
    try:
        architecture = ensure(image)
    except (DockerError, OSError, ValueError) as error:
        raise SystemExit(f"dockerd does not answer: {error}: look at `systemctl status docker`, run up again") from None
    if architecture is None:
        raise SystemExit(f"dockerd does not have {image} after pulling it: does a registry mirror answer in its place?")
    if architecture != inputs["architecture"]:
        raise SystemExit(f"{image} is for {architecture}, but this node is {inputs['architecture']}: use its digest")
    folder = folder_of(inputs["stack"])
    (folder / "image").write_text(image + "\n")
    # kernels compiled for one image are stale for another, so each digest has its own cache
    (folder / "cache" / image.partition("@sha256:")[2][:12]).mkdir(exist_ok=True)


if __name__ == "__main__":
    main()
