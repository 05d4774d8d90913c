"""Child processes: run one to its end, line by line, and end all of them when the engine cancels."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL when the engine cancels."""


@dataclass
class Ended:
    """A finished process. Its output is decoded as UTF-8, with invalid bytes replaced."""

    status: int
    """The exit status, or minus the signal's number if a signal ended it."""
    stdout: str
    stderr: str
    both: str
    """stdout and stderr in the order of arrival."""


@dataclass
class Children:
    """The running children. After `end_all` no new one starts."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self,
        argv: Sequence[str],
        stdin: str,
        env: Mapping[str, str],
        on_line: Callable[[str, str], None] | None = None,
    ) -> Ended:
        """Run a child to the end of its output. `on_line` gets ("stdout" | "stderr", the line without its end).

        Raises OSError if it cannot be started, InterruptedError if the engine has cancelled.
        """
        with self._lock:
            if self.cancelled.is_set():
                raise InterruptedError("cancelled")
            # in a group of its own, so that what a shell starts ends with it
            child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                process_group=0,
            )
            self._running.add(child)
        pieces: list[tuple[str, bytes]] = []

        def collect(name: str, pipe: IO[bytes]) -> None:
            with pipe:
                for line in pipe:
                    pieces.append((name, line))
                    if on_line:
                        on_line(name, line.decode(errors="replace").rstrip("\r\n"))

        assert child.stdin and child.stdout and child.stderr
        readers = [
            threading.Thread(target=collect, args=("stdout", child.stdout), daemon=True),
            threading.Thread(target=collect, args=("stderr", child.stderr), daemon=True),
        ]
        for reader in readers:
            reader.start()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(stdin.encode())
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        for reader in readers:
            reader.join()
        status = child.wait()
        with self._lock:
            self._running.discard(child)

        def text(*names: str) -> str:
            return b"".join(line for name, line in pieces if name in names).decode(errors="replace")

        return Ended(status, text("stdout"), text("stderr"), text("stdout", "stderr"))

    def end_all(self) -> None:
        """Send SIGTERM to each group now, and SIGKILL to those that are left after GRACE."""
        with self._lock:
            self.cancelled.set()
            left = list(self._running)
        _signal(left, signal.SIGTERM)
        timer = threading.Timer(GRACE, _signal, (left, signal.SIGKILL))
        timer.daemon = True
        timer.start()


def _signal(children: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for child in children:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
