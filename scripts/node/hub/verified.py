"""Which blobs of a model were hashed and found right, so that a complete tree is verified again in seconds.

The file `.spark-stack.json` lies beside `blobs/`, because blobs outlive a stack and stacks share them:
{"verified": {blob: [size, mtime_ns, inode]}, "main": revision that we wrote into refs/main, or absent}.
An entry counts only while the file still has that size, mtime and inode.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path

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
            main = kept.get("main")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # no file, or an unreadable one: everything gets hashed once more
            blobs, main = {}, None
        self._blobs: dict[str, list[int]] = blobs
        self.main: str | None = main

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
        document = {"verified": self._blobs, **({"main": self.main} if self.main else {})}
        part = self.file.with_name(f"{NAME}.spark-part")
        part.write_text(json.dumps(document, indent=0, sort_keys=True))
        os.replace(part, self.file)
