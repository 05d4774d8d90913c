"""The files of one revision: their paths, the blob behind each, and how they lie in a Hugging Face cache.

A blob's name is its hash: 64 hex digits of sha256 (LFS), or 40 of Git's own blob id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hub.verified import VerifiedBlobs

HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
PART, DAMAGED, KEPT = ".spark-part", ".damaged", ".kept"
"""Our endings of files: still arriving; found damaged; somebody's own that had the name of one of the checkpoint's."""
INCOMPLETE = ".incomplete"
"""huggingface_hub's ending of a file that is still arriving."""
PARTIAL = (INCOMPLETE, PART)


@dataclass(frozen=True)
class Entry:
    path: str
    """Inside the snapshot, with / between folders."""
    blob: str
    size: int


class ManifestError(ValueError):
    """A manifest or a tree cannot be used; the message says why, and the way out."""


def checked(rows: Iterable[Any]) -> list[Entry]:
    """Entries from rows [path, blob, size]. Raises ManifestError for one that leaves the snapshot or names no hash."""
    entries = []
    for path, blob, size in rows:
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts:
            raise ManifestError(f"the manifest names {path!r}, which is not a file inside a snapshot")
        if not HASH.fullmatch(blob) or not isinstance(size, int) or size < 0:
            raise ManifestError(f"the manifest gives {path} the blob {blob!r} of {size!r} bytes, which is not a hash")
        entries.append(Entry(str(path), str(blob), size))
    return entries


def one_of_each(entries: Iterable[Entry]) -> list[Entry]:
    """One entry of each blob, for work that must not be done twice: several paths may share a blob."""
    return list({entry.blob: entry for entry in entries}.values())


def listed(snapshot: Path) -> list[Entry] | None:
    """The hub's list of this revision, as the last job kept it; None where none was kept."""
    try:
        return checked(VerifiedBlobs(snapshot.parent.parent).lists[snapshot.name])
    except (KeyError, TypeError, ValueError):
        return None


def of_snapshot(snapshot: Path) -> list[Entry] | None:
    """A manifest from a snapshot's links, which cannot tell what is missing; None if one leads to no blob of a hash."""
    entries = []
    for path, blob in linked_files(snapshot):
        if not HASH.fullmatch(blob) or not path.is_file():
            return None
        entries.append(Entry(path.relative_to(snapshot).as_posix(), blob, path.stat().st_size))
    return sorted(entries, key=lambda entry: entry.path)


def linked_files(snapshot: Path) -> Iterator[tuple[Path, str]]:
    """Every file of a snapshot with the blob that it links to; an empty name for a plain file."""
    for parent, _, names in os.walk(snapshot):
        for path in (Path(parent, name) for name in names):
            yield path, os.path.basename(os.readlink(path)) if path.is_symlink() else ""


def files_of(snapshot: Path) -> list[tuple[Path, str]]:
    """Every file of the revision with its blob: by the kept list, else by all that lies there."""
    entries = listed(snapshot)
    if entries is None:
        return list(linked_files(snapshot))
    return [(snapshot / entry.path, entry.blob) for entry in entries]


def others(snapshot: Path, entries: Iterable[Entry]) -> list[str]:
    """Files in a snapshot that the list does not name."""
    here = {path.relative_to(snapshot).as_posix() for path, _ in linked_files(snapshot)}
    return sorted(here - {entry.path for entry in entries})


def put_aside(path: Path) -> Path:
    """Give a file another name beside its own, and return that."""
    kept = path.with_name(f"{path.name}{KEPT}")
    while os.path.lexists(kept):
        kept = kept.with_name(f"{kept.name}{KEPT}")
    os.rename(path, kept)
    return kept


def content_of(model: Path, snapshot: Path, entry: Entry) -> Path | None:
    """Where the entry's content lies now, right or damaged: a blob of the model, a shared one, or a plain file."""
    blob = model / "blobs" / entry.blob
    if blob.is_file():
        return blob
    path = snapshot / entry.path
    if not path.is_file():
        return None
    target = path.resolve()
    return target if target.name == entry.blob or not path.is_symlink() else None


def place(model: Path, snapshot: Path, entry: Entry, content: Path) -> None:
    """Make the entry's path a link to its blob. A plain file becomes the blob itself."""
    blob, path = model / "blobs" / entry.blob, snapshot / entry.path
    if content != blob and path.is_symlink():
        return  # a store that several models share
    if path.is_dir() and not path.is_symlink():
        raise ManifestError(f"{path} is a folder where a file of the checkpoint belongs: move it away")
    path.parent.mkdir(parents=True, exist_ok=True)
    if snapshot.resolve() not in (path.parent.resolve() / path.name).parents:
        raise ManifestError(f"{path.parent} leads out of the model's folder: move it away")
    target = os.path.relpath(blob, path.parent)
    if path.is_symlink() and os.readlink(path) == target:
        return
    if content != blob:
        os.link(content, blob)
    part = path.with_name(f"{path.name}{PART}")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    os.replace(part, path)


def write_main(model: Path, revision: str, verified: VerifiedBlobs) -> str | None:
    """Make refs/main name the revision; returns a note if it stays at a revision that somebody else set.

    A download of a pinned commit writes no ref, and model code that drops the revision falls back to main.
    """
    ref = model / "refs" / "main"
    current = ref.read_text() if ref.is_file() else ""
    if current == revision:
        return None
    foreign = re.fullmatch(r"[0-9a-f]{40}", current) and current != verified.main
    if foreign and (model / "snapshots" / current).is_dir():
        return f"refs/main stays at {current[:8]}, which is on this node and was not set by us"
    ref.parent.mkdir(parents=True, exist_ok=True)
    part = ref.with_name(f"main{PART}")
    part.write_text(revision)
    os.replace(part, ref)
    verified.wrote_main(revision)
    return None


def unverified(snapshot: Path) -> list[str]:
    """Files of the revision whose content was never verified, or has changed since; takes seconds for 155 GiB."""
    verified = VerifiedBlobs(snapshot.parent.parent)
    files = files_of(snapshot)
    return sorted(path.relative_to(snapshot).as_posix() for path, blob in files if not verified.holds(blob, path))
