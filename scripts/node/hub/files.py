"""Is a snapshot complete? Every file that the index names must be a regular file of the right size.

An exit status or an existing folder proves nothing: downloads that ended with 0 have left `.incomplete` files.
"""

import json
import struct
from pathlib import Path
from typing import TypedDict

INDEX = "model.safetensors.index.json"
NO_SNAPSHOT = "there is no snapshot"


class PinnedRevision(TypedDict):
    """The revision that a stack serves, and what a complete snapshot of it holds."""

    repo: str
    revision: str
    shards: int
    """How many the index names."""
    encoding_file: str
    """The prompt encoder inside the snapshot."""


def folder_name(repo: str) -> str:
    """A model's folder in a hub cache."""
    return f"models--{repo.replace('/', '--')}"


def snapshot_of(hub: Path, repo: str, revision: str) -> Path:
    return hub / folder_name(repo) / "snapshots" / revision


def gaps(snapshot: Path, shards: int, *others: str) -> list[str]:
    """What is missing or wrong in a snapshot, a line each; empty when it is complete.

    `shards` is the number that the index must name, `others` are further files that must exist. A shard must be as long
    as its own safetensors header says, so a truncated file is found without reading it.
    """
    index = snapshot / INDEX
    if not snapshot.is_dir():
        return [f"{NO_SNAPSHOT} {snapshot}"]
    if not index.is_file():
        return [f"{INDEX} is missing in {snapshot}"]
    try:
        named = sorted({str(name) for name in json.loads(index.read_text())["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{INDEX} cannot be read: {type(error).__name__}: {error}"]
    faults = [f"{INDEX} names {len(named)} shards instead of {shards}"] if len(named) != shards else []
    for name in named:
        if fault := shard_fault(snapshot / name):
            faults.append(f"{name} {fault}")
    return faults + [f"{name} is missing" for name in others if not (snapshot / name).is_file()]


def shard_fault(path: Path) -> str | None:
    """None when the file is as long as its safetensors header says."""
    if path.is_symlink() and not path.exists():
        return "is a link to a file that is not there"
    if not path.is_file():
        return "is missing" if not path.exists() else "is not a regular file"
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, size)))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (struct.error, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return f"has no safetensors header ({size} bytes)"
    expected = 8 + length + end
    return None if size == expected else f"has {size:,} bytes instead of {expected:,}"
