"""What a node knows of its checkpoint before anything is declared: what lacks, what is here, who would give the rest.

Part of node_facts.py; reads only. Standard library only, Python 3.10.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from checkpoint_files import INDEX, gaps, snapshot_of
from checkpoint_manifest import unverified

HUB_S = 8.0

Json = dict[str, Any]


def checkpoint(hf_cache: str, model: str, revision: str, shards: int, others: list[str], endpoint: str | None) -> Json:
    """What a revision lacks, the bytes of it that are here, other revisions, and whether the hub would give the rest.

    `outside` is where the model's folder really is when a link leads out of the cache, which no container can follow.
    """
    hub = Path(hf_cache) / "hub"
    snapshot = snapshot_of(hub, model, revision)
    folder = snapshot.parent.parent
    lacking = gaps(snapshot, shards, *others)
    if not lacking:
        lacking = [f"{name} was never proven by its hash, or changed since" for name in unverified(snapshot)]
    real = os.path.realpath(folder)
    return {
        "path": str(snapshot),
        "gaps": lacking,
        "bytes_present": bytes_present(folder, snapshot),
        "revisions": sorted(path.name for path in snapshot.parent.glob("*") if path.is_dir()),
        "outside": None if real.startswith(f"{os.path.realpath(hub)}/") else real,
        "hub_error": hub_error(endpoint, model, revision) if lacking and endpoint else None,
    }


def bytes_present(model: Path, snapshot: Path) -> int:
    """Bytes of the revision that are here, what is under way included: the same disk will hold it when whole."""
    present = sum(path.stat().st_size for path in snapshot.rglob("*") if path.is_file())
    for path in (model / "blobs").glob("*"):
        if path.name.endswith((".incomplete", ".spark-part")):
            with contextlib.suppress(FileNotFoundError):
                present += path.stat().st_blocks * 512
    return present


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
