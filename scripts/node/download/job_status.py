"""What a detached job says about itself: one JSON file, replaced every second, for the step that follows the job.

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
    """A job that was killed stays running."""
    phase: str
    files: list[int]
    """Verified, and all."""
    bytes: list[int]
    """Arrived, and all."""
    rate: float
    """Bytes a second."""
    notes: list[str]
    trouble: str | None
    """Why the hub does not answer."""
    error: str | None


class Status:
    """The writing end. Threads may share it; counts are in memory, `publish` puts them on disk."""

    def __init__(self, file: Path, identity: str) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, int]] = deque()
        """Time and bytes arrived, within the window."""
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
            now, (arrived, total) = time.monotonic(), self.document["bytes"]
            if arrived > before["bytes"][0]:
                # one file may wait while others arrive, and a resumed one takes long to end
                self.document["trouble"] = None
            if (self.document["phase"], total) != (before["phase"], before["bytes"][1]):
                # bytes that were on disk before, or were only hashed, do not count as speed
                self._samples.clear()
            self._samples.append((now, arrived))
            while now - self._samples[0][0] > WINDOW_S:
                self._samples.popleft()
            then, first = self._samples[0]
            self.document["rate"] = max(0.0, (arrived - first) / (now - then)) if now > then else 0.0
            part = self.file.with_name(f"{self.file.name}.part")
            part.write_text(json.dumps(self.document))
            os.replace(part, self.file)

    def note(self, text: str) -> None:
        """Something that a person should read once although the job continues."""
        self.publish(notes=[*self.document["notes"], text])


def read(file: Path) -> JobStatus | None:
    """The status that the last job left; None when there is none, or it cannot be read."""
    try:
        status: Any = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return cast(JobStatus, status) if isinstance(status, dict) and "state" in status else None


def line(status: JobStatus) -> str:
    """One line on a running job: phase, files and bytes of all, rate, and the time left at that rate."""
    (verified, files), (arrived, total) = status["files"], status["bytes"]
    if status["trouble"]:
        return f"checkpoint: {verified} of {files or 'all'} files verified, waiting for the hub ({status['trouble']})"
    if not files:
        return f"checkpoint: {status['phase']}"
    unit, name = (2**30, "GiB") if total >= 2**30 else (2**20, "MiB")
    text = (
        f"checkpoint: {status['phase']} {verified} of {files} files, {arrived / unit:.1f} of {total / unit:.1f} {name}"
    )
    if status["rate"] > 0 and total > arrived:
        left = duration((total - arrived) / status["rate"])
        text += f", {status['rate'] / 2**20:,.1f} MiB/s, {left} left"
    return text


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
