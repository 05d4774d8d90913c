"""Which blobs of a model were hashed and found right, so that a complete tree is verified again in seconds.

The file `.spark-stack.json` lies beside `blobs/`, because blobs outlive a stack and stacks share them:
{"verified": {blob: [size, mtime_ns, inode]}, "main": revision that we wrote into refs/main, or absent,
"lists": {revision: [[path, blob, size], ...]}}. An entry counts only while the file still has that size, mtime and
inode. A list is the hub's, kept because a damaged tree cannot tell what belongs to it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAME = ".spark-stack.json"


def identity_of(path: Path) -> list[int]:
    """What changes when a file's content does. Raises FileNotFoundError."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


class VerifiedBlobs:
    """The verified blobs of one model. Threads may share it; each change is on disk when the call returns."""

    def __init__(self, model: Path) -> None:
        self.file = model / NAME
        self._lock = threading.Lock()
        try:
            kept = json.loads(self.file.read_text())
            blobs = {str(blob): list(identity) for blob, identity in kept["verified"].items()}
            main, lists = kept.get("main"), dict(kept.get("lists") or {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # no file, or an unreadable one: everything gets hashed once more
            blobs, main, lists = {}, None, {}
        self._blobs: dict[str, list[int]] = blobs
        self.main: str | None = main
        self.lists: dict[str, Any] = lists
        """As they were read: see hub.manifest.listed."""

    def holds(self, blob: str, path: Path) -> bool:
        """Whether the file at `path` is the one that was hashed as `blob`."""
        try:
            return self._blobs.get(blob) == identity_of(path)
        except OSError:
            return False

    def add(self, blob: str, path: Path) -> None:
        """The file at `path` was just hashed as `blob`."""
        with self._lock:
            self._blobs[blob] = identity_of(path)
            self._save()

    def wrote_main(self, revision: str) -> None:
        with self._lock:
            self.main = revision
            self._save()

    def keep_list(self, revision: str, rows: list[tuple[str, str, int]]) -> None:
        with self._lock:
            self.lists[revision] = rows
            self._save()

    def forget(self, blobs: Iterable[str]) -> None:
        """Drop removed blobs, and refs/main if it was removed; writes nothing if the file itself is gone."""
        with self._lock:
            for blob in blobs:
                self._blobs.pop(blob, None)
            if not self.file.with_name("refs").joinpath("main").exists():
                self.main = None
            if self.file.exists():
                self._save()

    def _save(self) -> None:
        snapshots = self.file.with_name("snapshots")
        lists = {revision: rows for revision, rows in self.lists.items() if (snapshots / revision).is_dir()}
        others = {"lists": lists, "main": self.main}
        document = {"verified": self._blobs, **{name: value for name, value in others.items() if value}}
        part = self.file.with_name(f"{NAME}.spark-part")
        part.write_text(json.dumps(document, indent=0, sort_keys=True))
        os.replace(part, self.file)
