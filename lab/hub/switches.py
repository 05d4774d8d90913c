"""What the hub can be told to do badly, in the file `.lab/hub.json`. The hub reads it again whenever it changes.

rate_bytes_s      all downloads together send at most this many bytes a second
require_token     every download needs this token; none gets 401, another one 403, as for a gated repository
down_after_bytes  after this many bytes in all, the hub cuts every download and answers 503 until the file changes
flip              files (by their path in the repository) whose middle byte is sent wrong
wrong_size        files that are sent three bytes shorter than listed, with a Content-Length to match

A file may be in both lists: it is shortened first, then flipped. The lists apply to all revisions of all repositories.
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
        """Raises ValueError for an unknown key, since a test with a typo would test nothing."""
        if not isinstance(document, dict):
            raise ValueError("hub.json is not a JSON object")
        names = {item.name for item in fields(cls)}
        if unknown := sorted(set(document) - names):
            raise ValueError(f"hub.json: unknown {', '.join(unknown)}; the switches are {', '.join(sorted(names))}")
        return cls(**document)


class Valve:
    """The current switches, and the byte counts that they apply to. All connections share it."""

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
        self._version: tuple[int, int] | None = None
        self._switches = Switches()
        self._sent = 0
        self._free_at = 0.0

    def switches(self) -> Switches:
        """The switches, read again if the file changed. Raises ValueError for a wrong file."""
        with self._lock:
            try:
                status = self.file.stat()
                version = (status.st_mtime_ns, status.st_size)
            except FileNotFoundError:
                version = None
            if version != self._version:
                self._switches = Switches.of(json.loads(self.file.read_text())) if version else Switches()
                self._version, self._sent, self._free_at = version, 0, 0.0
            return self._switches

    @property
    def is_down(self) -> bool:
        limit = self.switches().down_after_bytes
        return limit is not None and self._sent >= limit

    def pass_through(self, count: int) -> int:
        """Wait as the rate demands, then return how many of `count` bytes may be sent; 0: cut the connection."""
        switches = self.switches()
        with self._lock:
            allowed = count
            if switches.down_after_bytes is not None:
                allowed = max(0, min(count, switches.down_after_bytes - self._sent))
            self._sent += allowed
            pause = 0.0
            if switches.rate_bytes_s:
                now = self.clock()
                self._free_at = max(self._free_at, now) + allowed / switches.rate_bytes_s
                pause = self._free_at - now
        if pause:
            self.sleep(pause)
        return allowed
