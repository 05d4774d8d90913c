"""The files of one revision: which there are, the blob behind each, and how they lie in a Hugging Face cache.

A blob's name is its hash: 64 hex digits of sha256 (LFS), or 40 of Git's own blob id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hub.verified import VerifiedBlobs

HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
PART, DAMAGED = ".spark-part", ".damaged"
"""Endings of files of ours beside the blobs: one that is still arriving, one that was found damaged."""
INCOMPLETE = ".incomplete"
"""huggingface_hub's ending of one that is still arriving."""
PARTIAL = (INCOMPLETE, PART)


@dataclass(frozen=True)
class Entry:
    path: str
    """Inside the snapshot, with / between folders."""
    blob: str
    size: int

    @property
    def large(self) -> bool:
        """Whether it is in the repository's LFS, as every shard is."""
        return len(self.blob) == 64


class ManifestError(ValueError):
    """A manifest, or a tree, that cannot be used; the words say what and the way out."""


def checked(rows: Iterable[Any]) -> list[Entry]:
    """Entries from rows [path, blob, size]. Raises ManifestError for one that leaves the snapshot or names no hash."""
    entries = []
    for path, blob, size in rows:
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts:
            raise ManifestError(f"the manifest names {path!r}, which is no file inside a snapshot")
        if not HASH.fullmatch(blob) or not isinstance(size, int) or size < 0:
            raise ManifestError(f"the manifest gives {path} the blob {blob!r} of {size!r} bytes, which names no hash")
        entries.append(Entry(str(path), str(blob), size))
    return entries


def one_of_each(entries: Iterable[Entry]) -> list[Entry]:
    """An entry of each blob, for work that must not be done twice, or by two at once: several names may share one."""
    return list({entry.blob: entry for entry in entries}.values())


def of_snapshot(snapshot: Path) -> list[Entry] | None:
    """The manifest as a whole snapshot's links tell it; None where a file is no link to a blob named by its hash."""
    entries = []
    for parent, _, names in os.walk(snapshot):
        for name in names:
            path = Path(parent, name)
            blob = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
            if not HASH.fullmatch(blob):
                return None
            entries.append(Entry(path.relative_to(snapshot).as_posix(), blob, path.stat().st_size))
    return sorted(entries, key=lambda entry: entry.path)


def content_of(model: Path, snapshot: Path, entry: Entry) -> Path | None:
    """Where the entry's content should be now, right or damaged: a blob of the model, a shared one, a plain file."""
    blob = model / "blobs" / entry.blob
    if blob.is_file():
        return blob
    seen = snapshot / entry.path
    if not seen.is_file():
        return None
    behind = seen.resolve()
    return behind if behind.name == entry.blob or not seen.is_symlink() else None


def place(model: Path, snapshot: Path, entry: Entry, content: Path) -> None:
    """Make the snapshot's name a link to its blob. A plain file becomes the blob itself."""
    blob, seen = model / "blobs" / entry.blob, snapshot / entry.path
    if content != blob and seen.is_symlink():
        return  # a store that several models share
    if seen.is_dir() and not seen.is_symlink():
        raise ManifestError(f"{seen} is a folder where a file of the checkpoint belongs: move it away")
    wanted = os.path.relpath(blob, seen.parent)
    if seen.is_symlink() and os.readlink(seen) == wanted:
        return
    seen.parent.mkdir(parents=True, exist_ok=True)
    if content != blob:
        os.link(content, blob)
    part = seen.with_name(f"{seen.name}{PART}")
    part.unlink(missing_ok=True)
    part.symlink_to(wanted)
    os.replace(part, seen)


def write_main(model: Path, revision: str, verified: VerifiedBlobs) -> str | None:
    """Make refs/main name a revision that is here; returns words when it stays as somebody else set it.

    A download of a pinned commit writes no ref, and code of the model that drops the revision falls back to main.
    """
    ref = model / "refs" / "main"
    found = ref.read_text() if ref.is_file() else ""
    if found == revision:
        return None
    foreign = re.fullmatch(r"[0-9a-f]{40}", found) and found != verified.main
    if foreign and (model / "snapshots" / found).is_dir():
        return f"refs/main stays at {found[:8]}, which is here and was not set by us"
    ref.parent.mkdir(parents=True, exist_ok=True)
    part = ref.with_name(f"main{PART}")
    part.write_text(revision)
    os.replace(part, ref)
    verified.wrote_main(revision)
    return None


def unverified(snapshot: Path) -> list[str]:
    """Files of a snapshot whose content was never hashed, or has changed since; seconds for 155 GiB."""
    verified = VerifiedBlobs(snapshot.parent.parent)
    found = []
    for parent, _, names in os.walk(snapshot):
        for name in names:
            path = Path(parent, name)
            blob = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
            if not verified.holds(blob, path):
                found.append(path.relative_to(snapshot).as_posix())
    return sorted(found)
