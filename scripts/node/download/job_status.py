"""What a detached job says about itself: one JSON file, written whole every second, read by whoever follows it.

A job of 155 GiB outlives SSH sessions, so nothing else may carry its result.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

WINDOW_S = 30.0
"""The rate is that of the last seconds, so that the time left follows a line that got slower."""


class JobStatus(TypedDict):
    id: str
    state: Literal["running", "done", "failed"]
    """One that was killed is running for ever."""
    phase: str
    files: list[int]
    """Verified, and all."""
    bytes: list[int]
    """Arrived, and all."""
    rate: float
    """Bytes a second."""
    notes: list[str]
    trouble: str | None
    """Why the hub is waited for."""
    error: str | None


class Status:
    """The writing end. Threads may share it; counts are in memory, `publish` puts them on disk."""

    def __init__(self, file: Path, identity: str) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, int]] = deque()
        self.document: JobStatus = {
            "id": identity,
            "state": "running",
            "phase": "starting",
            "files": [0, 0],
            "bytes": [0, 0],
            "rate": 0.0,
            "notes": [],
            "trouble": None,
            "error": None,
        }

    def publish(self, **changes: Any) -> None:
        with self._lock:
            before = self.document
            self.document = {**before, **changes}  # type: ignore[typeddict-item]
            now, (here, total) = time.monotonic(), self.document["bytes"]
            if here > before["bytes"][0]:
                # one file may wait while others arrive, and one that goes on takes long to end
                self.document["trouble"] = None
            if (self.document["phase"], total) != (before["phase"], before["bytes"][1]):
                # what was here already, and what was only hashed, is no speed of what now arrives
                self._seen.clear()
            self._seen.append((now, here))
            while now - self._seen[0][0] > WINDOW_S:
                self._seen.popleft()
            then, first = self._seen[0]
            self.document["rate"] = max(0.0, (here - first) / (now - then)) if now > then else 0.0
            part = self.file.with_name(f"{self.file.name}.part")
            part.write_text(json.dumps(self.document))
            os.replace(part, self.file)

    def note(self, words: str) -> None:
        """Something a person should read once, though the job goes on."""
        self.publish(notes=[*self.document["notes"], words])


def read(file: Path) -> JobStatus | None:
    """The last words of the last job; None when there was none, or they cannot be read."""
    try:
        found: Any = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or "state" not in found:
        return None
    return cast(JobStatus, found)


def line(status: JobStatus) -> str:
    """One line on a job under way: phase, files and bytes of all, rate, and the time left at that rate."""
    (verified, files), (arrived, total) = status["files"], status["bytes"]
    if status["trouble"]:
        return f"checkpoint: {verified} of {files or 'all'} files are here, the hub is waited for ({status['trouble']})"
    if not files:
        return f"checkpoint: {status['phase']}"
    unit, name = (2**30, "GiB") if total >= 2**30 else (2**20, "MiB")
    words = (
        f"checkpoint: {status['phase']} {verified} of {files} files, {arrived / unit:.1f} of {total / unit:.1f} {name}"
    )
    if status["rate"] > 0 and total > arrived:
        left = duration((total - arrived) / status["rate"])
        words += f", {status['rate'] / 2**20:,.1f} MiB/s, {left} left"
    return words


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
