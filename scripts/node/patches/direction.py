"""Put the direction file of an abliterated model on this node, verified by its sha256.

Inputs (JSON argument): DirectionInputs. In the environment: HF_TOKEN, of an account that accepted the
repository's terms. Output: the file's absolute path. Exit codes: 0 done; 1 refused or failed, the reason on stderr,
never the token.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from hashlib import sha256
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import urlsplit

from host.console import say
from host.our_folder import folder_of
from patches.files import FETCH_S

FOLDER, NAME = "ablation", "direction_r1.pt"
"""In the stack's folder on a node; the name under which the recipe's patch reads it."""
MOST_BYTES = 1 << 20
"""The file has 18 KiB."""


class DirectionSource(TypedDict):
    repository: str
    path: str
    """Of the file in the repository."""
    sha256: str


class DirectionInputs(DirectionSource):
    stack: str
    endpoint: str
    """Of the hub."""


class OnlyThere(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to another host without the token."""

    def redirect_request(self, req: urllib.request.Request, *rest: Any) -> urllib.request.Request | None:
        following = super().redirect_request(req, *rest)
        if following is not None and urlsplit(following.full_url).netloc != urlsplit(req.full_url).netloc:
            following.remove_header("Authorization")
        return following


def fetch(inputs: DirectionInputs, token: str) -> bytes:
    """The file's content. Raises SystemExit with the way out."""
    page = f"{inputs['endpoint']}/{inputs['repository']}"
    request = urllib.request.Request(
        f"{page}/resolve/main/{inputs['path']}", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.build_opener(OnlyThere).open(request, timeout=FETCH_S) as answer:
            content: bytes = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        # the hub answers 401 to a name that nobody has as well, and says in a header which of the two it is
        with error:
            code = error.headers.get("X-Error-Code", "")
        if error.code in (401, 403) and code != "RepoNotFound":
            raise SystemExit(
                f"{page} is gated (status {error.code}): accept its terms with the account of hf_token, or set "
                "patches.abliterated: false"
            ) from None
        raise SystemExit(
            f"{page} has no file {inputs['path']} ({code or f'status {error.code}'}): set patches.abliterated: false"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise SystemExit(f"{page} cannot be reached from this node: {reason}: run pulumi up again") from None
    if (actual := sha256(content).hexdigest()) != inputs["sha256"]:
        raise SystemExit(f"{inputs['path']} of {page} has sha256 {actual}, expected {inputs['sha256']}: it is not used")
    return content


def place(inputs: DirectionInputs, token: str) -> Path:
    """Where the file is, fetched unless it is there already."""
    file = folder_of(inputs["stack"]) / FOLDER / NAME
    if not (file.is_file() and sha256(file.read_bytes()).hexdigest() == inputs["sha256"]):
        content = fetch(inputs, token)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_bytes(content)
        part.rename(file)
    say(f"patches: the direction of {inputs['repository']} is here, its sha256 is the expected one")
    return file


def main() -> None:
    print(place(json.loads(sys.argv[1]), os.environ["HF_TOKEN"]))


if __name__ == "__main__":
    main()
