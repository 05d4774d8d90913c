"""What a node knows of its checkpoint before anything is declared: what is missing, what is on disk, who has the rest.

Part of facts.gather; reads only. Standard library only, Python 3.10.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from facts.document import CheckpointFacts, HubError
from hub.files import INDEX, gaps, snapshot_of
from hub.manifest import PARTIAL, Entry, checked, listed, of_snapshot, unverified

HUB_S, LISTING_S = 8.0, 3.0
"""Together less than a probe may take."""
LISTING_BYTES = 16 << 20

Sizes = dict[str, int]
T = TypeVar("T")


def checkpoint(
    hf_cache: str, repo: str, revision: str, shards: int, others: list[str], endpoint: str | None
) -> CheckpointFacts:
    """What a revision lacks, what of it is on this node, and whether the hub would give the rest.

    The node with an endpoint, the head, has the listing or asks for it; it also tells how much the other nodes lack.
    """
    hub = Path(hf_cache) / "hub"
    snapshot = snapshot_of(hub, repo, revision)
    folder = snapshot.parent.parent
    lacking = gaps(snapshot, shards, *others)
    if not lacking:
        lacking = [f"{name} was never verified by its hash, or changed since" for name in unverified(snapshot)]
    real = os.path.realpath(folder)
    refused: HubError | None = None
    if lacking and endpoint:
        late: HubError | None = HubError(None, f"no whole answer within {HUB_S:g} s")
        refused = within(HUB_S, partial(hub_error, endpoint, repo, revision), late)
    entries = listed(snapshot) if endpoint else None
    if endpoint and entries is None and not lacking:
        entries = of_snapshot(snapshot)
    elif endpoint and entries is None and (refused is None or refused.status):
        # it only tells beforehand how much there is to do
        entries = within(LISTING_S, partial(listing, endpoint, repo, revision), None)
    files, blobs = sizes(folder, snapshot)
    return CheckpointFacts(
        gaps=lacking,
        # unfinished downloads count: the same disk will hold them when they are complete
        bytes_present=sum(files.values()) + sum(size for name, size in blobs.items() if name.endswith(PARTIAL)),
        revisions=sorted(path.name for path in snapshot.parent.glob("*") if path.is_dir()),
        outside=None if real.startswith(f"{os.path.realpath(hub)}/") else real,
        hub_error=refused,
        sizes={**blobs, **files} if lacking else {},
        listing=[(entry.path, entry.blob, entry.size) for entry in entries] if entries else None,
    )


def sizes(model: Path, snapshot: Path) -> tuple[Sizes, Sizes]:
    """Bytes of every file of the snapshot by path, and of every blob of any revision by name.

    An unfinished download counts with what it takes on disk, by its name with the ending.
    """
    blobs = {}
    for path in (model / "blobs").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # renamed when complete
            about = path.stat()
            blobs[path.name] = about.st_blocks * 512 if path.name.endswith(PARTIAL) else about.st_size
    files = (path for path in snapshot.rglob("*") if path.is_file())
    return {path.relative_to(snapshot).as_posix(): path.stat().st_size for path in files}, blobs


def within(limit_s: float, ask: Callable[[], T], otherwise: T) -> T:
    """The answer to one question to the hub, or `otherwise` if it breaks or takes too long.

    What a hub sends is anybody's: no HTTP, half an answer, a byte a second, JSON a thousand levels deep. None of it may
    cost what is known of the disk.
    """
    answers = [otherwise]

    def run() -> None:
        with contextlib.suppress(Exception):
            answers.append(ask())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    return answers[-1]


def listing(endpoint: str, repo: str, revision: str) -> list[Entry] | None:
    """The hub's list of a revision's files, asked for without a token; None if it has several pages."""
    import json
    import urllib.request

    url = f"{endpoint}/api/models/{repo}/tree/{revision}?recursive=true"
    with urllib.request.urlopen(url, timeout=LISTING_S) as answer:
        # no revision of ours has so many files
        if 'rel="next"' in (answer.headers.get("Link") or ""):
            return None
        files = [row for row in json.loads(answer.read(LISTING_BYTES)) if row["type"] == "file"]
    # a large file's own oid and size are those of its LFS pointer
    contents = [row.get("lfs") or row for row in files]
    rows = zip(files, contents, strict=True)
    return checked([file["path"], content["oid"], content["size"]] for file, content in rows)


def hub_error(endpoint: str, repo: str, revision: str) -> HubError | None:
    """How the hub refuses the index to a request without a token; None if it gives it."""
    import http.client
    import urllib.error
    import urllib.request

    url = f"{endpoint}/{repo}/resolve/{revision}/{INDEX}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=HUB_S):
            return None
    except urllib.error.HTTPError as error:
        said = error.headers.get("X-Error-Message") or error.reason
        return HubError(error.code, said, error.headers.get("X-Error-Code") or "")
    except OSError as error:
        return HubError(None, str(getattr(error, "reason", error)))
    except http.client.HTTPException as error:
        return HubError(None, f"it does not answer as a hub does: {type(error).__name__}")


def nfs_refusal(head_fabric_ip: str) -> str | None:
    """Why the head's NFS server takes no connection; None when it does."""
    try:
        with socket.create_connection((head_fabric_ip, 2049), timeout=3):
            return None
    except OSError as error:
        return error.strerror or str(error)
