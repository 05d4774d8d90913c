"""What the hub can be told to do badly: the file `.lab/hub.json`, read again whenever it changes.

rate_bytes_s      all downloads together send at most so many bytes a second
require_token     token that every download needs; without it 401, with another one 403, as for a gated repository
down_after_bytes  after so many bytes in all, the hub cuts what is under way and answers 503 until the file changes
flip              files (their path in the repository) whose middle byte is sent wrong
wrong_size        files that are sent three bytes shorter than the listing says, with a Content-Length to match

A file may be in both lists: it is flipped in what is sent of it. All revisions of a repository, and all repositories,
share the lists. A hub that is only slow is rate_bytes_s.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Switches:
    """The file's content; all off by default."""

    rate_bytes_s: int | None = None
    require_token: str | None = None
    down_after_bytes: int | None = None
    flip: list[str] = field(default_factory=list)
    wrong_size: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, document: Any) -> Switches:
        """Raises ValueError for a key that is none of ours: a typo would test nothing."""
        if not isinstance(document, dict):
            raise ValueError("hub.json holds no JSON object")
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(document) - known):
            raise ValueError(f"hub.json: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        return cls(**document)


class Valve:
    """The switches of now, and the byte counts that they are about. Shared by all connections."""

    def __init__(
        self,
        file: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.file = file
        self.clock = clock
        self.sleep = sleep
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._switches = Switches()
        self._sent = 0
        self._free_at = 0.0

    def switches(self) -> Switches:
        """Read again when the file changed. Raises ValueError for a file that is wrong."""
        with self._lock:
            try:
                about = self.file.stat()
                stamp = (about.st_mtime_ns, about.st_size)
            except FileNotFoundError:
                stamp = None
            if stamp != self._stamp:
                self._switches = Switches.of(json.loads(self.file.read_text())) if stamp else Switches()
                self._stamp, self._sent, self._free_at = stamp, 0, 0.0
            return self._switches

    @property
    def is_down(self) -> bool:
        limit = self.switches().down_after_bytes
        return limit is not None and self._sent >= limit

    def pass_through(self, wanted: int) -> int:
        """Wait for the rate, then say how many of `wanted` bytes may go; 0 means: cut the connection."""
        switches = self.switches()
        with self._lock:
            allowed = wanted
            if switches.down_after_bytes is not None:
                allowed = max(0, min(wanted, switches.down_after_bytes - self._sent))
            self._sent += allowed
            pause = 0.0
            if switches.rate_bytes_s:
                now = self.clock()
                self._free_at = max(self._free_at, now) + allowed / switches.rate_bytes_s
                pause = self._free_at - now
        if pause:
            self.sleep(pause)
        return allowed
