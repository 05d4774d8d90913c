"""What a node knows of its checkpoint before anything is declared: what lacks, what is here, who would give the rest.

Part of facts.gather; reads only. Standard library only, Python 3.10.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from hub.files import INDEX, gaps, snapshot_of
from hub.manifest import PARTIAL, Entry, checked, of_snapshot, unverified

HUB_S, LISTING_S = 8.0, 3.0
"""Together less than what a probe may take."""

Json = dict[str, Any]
Sizes = dict[str, int]


def checkpoint(hf_cache: str, model: str, revision: str, shards: int, others: list[str], endpoint: str | None) -> Json:
    """What a revision lacks, the bytes of it that are here, other revisions, and whether the hub would give the rest.

    `outside` is where the model's folder really is when a link leads out of the cache, which no container can follow.
    `listing` says of what the revision consists: the node with an endpoint, the head, knows or asks. Other nodes' lack
    is counted by it.
    """
    hub = Path(hf_cache) / "hub"
    snapshot = snapshot_of(hub, model, revision)
    folder = snapshot.parent.parent
    lacking = gaps(snapshot, shards, *others)
    if not lacking:
        lacking = [f"{name} was never proven by its hash, or changed since" for name in unverified(snapshot)]
    real = os.path.realpath(folder)
    refused = hub_error(endpoint, model, revision) if lacking and endpoint else None
    known: list[Entry] | None = None
    if endpoint and not lacking:
        known = of_snapshot(snapshot)
    elif endpoint and (refused is None or refused["status"]):
        known = listing(endpoint, model, revision)
    files, blobs = sizes(folder, snapshot)
    return {
        "path": str(snapshot),
        "gaps": lacking,
        # what is under way is counted: the same disk will hold it when whole
        "bytes_present": sum(files.values()) + sum(size for name, size in blobs.items() if name.endswith(PARTIAL)),
        "revisions": sorted(path.name for path in snapshot.parent.glob("*") if path.is_dir()),
        "outside": None if real.startswith(f"{os.path.realpath(hub)}/") else real,
        "hub_error": refused,
        "here": {**blobs, **files} if lacking else {},
        "listing": [[entry.path, entry.blob, entry.size] for entry in known] if known else None,
    }


def sizes(model: Path, snapshot: Path) -> tuple[Sizes, Sizes]:
    """Bytes of every file of the snapshot by its path, and of every blob of any revision by its name.

    Of a blob that is under way, what it takes on the disk, by its name with the ending.
    """
    blobs = {}
    for path in (model / "blobs").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # renamed when complete
            about = path.stat()
            blobs[path.name] = about.st_blocks * 512 if path.name.endswith(PARTIAL) else about.st_size
    found = (path for path in snapshot.rglob("*") if path.is_file())
    return {path.relative_to(snapshot).as_posix(): path.stat().st_size for path in found}, blobs


def listing(endpoint: str, model: str, revision: str) -> list[Entry] | None:
    """The hub's list of a revision's files, as it gives it to somebody without a token; None when it does not."""
    import json
    import urllib.request

    url = f"{endpoint}/api/models/{model}/tree/{revision}?recursive=true"
    try:
        with urllib.request.urlopen(url, timeout=LISTING_S) as answer:
            # a further page: no revision of ours has so many files
            if 'rel="next"' in (answer.headers.get("Link") or ""):
                return None
            files = [row for row in json.load(answer) if row["type"] == "file"]
        # a large file's own oid and size are its pointer's
        contents = [row.get("lfs") or row for row in files]
        rows = zip(files, contents, strict=True)
        return checked([file["path"], content["oid"], content["size"]] for file, content in rows)
    except (OSError, ValueError, KeyError, TypeError):
        # only to say beforehand how much there is to do
        return None


def hub_error(endpoint: str, model: str, revision: str) -> Json | None:
    """What the hub says to somebody without a token who asks for the index: {"status", "words"}, None for a yes."""
    import urllib.error
    import urllib.request

    url = f"{endpoint}/{model}/resolve/{revision}/{INDEX}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=HUB_S):
            return None
    except urllib.error.HTTPError as error:
        return {"status": error.code, "words": error.headers.get("X-Error-Message") or error.reason}
    except OSError as error:
        return {"status": None, "words": str(getattr(error, "reason", error))}


def knock(address: str) -> str | None:
    """None when an NFS server takes connections at this address, else why not."""
    try:
        with socket.create_connection((address, 2049), timeout=3):
            return None
    except OSError as error:
        return error.strerror or str(error)
