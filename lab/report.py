"""Progress lines, and waits that always have a name, a limit and a sign of life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

SIGN_OF_LIFE_S = 10.0

_began = time.monotonic()
_writing = threading.Lock()
_interrupted = threading.Event()


class LabError(Exception):
    """Something that the lab cannot do. The message says what it found, why that stops it, and the way out."""


def elapsed_s() -> float:
    """Seconds since the command began."""
    return time.monotonic() - _began


def say(text: str) -> None:
    """Print one progress line on stderr, with the seconds since the command began. Stdout is for results."""
    with _writing:
        print(f"lab {elapsed_s():5.1f} s  {text}", file=sys.stderr, flush=True)


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    *,
    limit_s: float,
    every_s: float = 0.25,
    evidence: Callable[[], str] = str,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Call `probe` until it returns a true value, and return that. Raises LabError with `evidence` after `limit_s`.

    `probe` may raise LabError to end the wait early.
    """
    began = clock()
    last_line = began
    while not (answer := probe()):
        now = clock()
        if _interrupted.is_set():
            raise LabError(f"{what}: interrupted")
        if now - began >= limit_s:
            details = evidence()
            raise LabError(f"{what}: not within {limit_s:.0f} s" + (f"\n{details}" if details else ""))
        if now - last_line >= SIGN_OF_LIFE_S:
            last_line = now
            say(f"still waiting: {what} ({now - began:.0f} of at most {limit_s:.0f} s)")
        sleep(every_s)
    return answer


def long_step(what: str, command: Sequence[str | Path], log: Path, *, limit_s: float) -> None:
    """Run a program, append its output to `log`, and show its last line as a sign of life.

    Raises LabError with the end of the log if the program fails, is missing, or takes more than `limit_s` seconds.
    """

    def tail(lines: int) -> str:
        kept = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-lines:]
        return "\n".join(f"  | {line[:160]}" for line in kept)

    say(what)
    began = last_line = time.monotonic()
    with log.open("ab") as output:
        try:
            # in a group of its own, so that what it starts ends with it
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except FileNotFoundError as missing:
            raise LabError(f"{what}: {missing.filename} is not installed\n  way out: make setup") from None

        def ended() -> int | None:
            try:
                return process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                return None

        try:
            while (code := ended()) is None:
                now = time.monotonic()
                if now - began > limit_s:
                    raise LabError(f"{what}: not within {limit_s:.0f} s; the end of {log}:\n{tail(8)}")
                if now - last_line >= SIGN_OF_LIFE_S:
                    last_line = now
                    say(f"{what}, {now - began:.0f} s so far: {tail(1).lstrip(' |')[:100]}")
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if code != 0:
        raise LabError(f"{what}: ended with exit code {code}; the end of {log}:\n{tail(12)}")


def each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Do `work` on all items at once, and return the results in order. LabError has every failure, once all ended."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            wait(futures)
        except KeyboardInterrupt:
            # end the waits in the threads, or they would hold the terminal up to their limits
            _interrupted.set()
            raise
    failures = [failure for future in futures if (failure := future.exception())]
    for failure in failures:
        if not isinstance(failure, LabError):
            raise failure
    if failures:
        raise LabError("\n".join(str(failure) for failure in failures))
    return [future.result() for future in futures]
