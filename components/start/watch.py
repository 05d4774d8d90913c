"""Following every rank's start at once, until the head serves, a rank ends, or the limit is reached.

One `docker logs --follow` for each node, over SSH: nothing is polled, and the end of a container is seen as it happens.
"""

import queue
import subprocess
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from components.ssh.shell import command_line
from components.start.failure import StartFailed, failure
from components.start.watched import Watched, doing
from host.console import say

QUIET_S = 15.0
RECONNECTS = 5
ENDING_S = 60.0
"""How long an engine that said that it ends may take; one that serves needs 12 s."""

Event = tuple[Watched, str | None]


def follow(rank: Watched, events: "queue.Queue[Event]") -> subprocess.Popen[str]:
    """Stream a rank's log into `events`; None marks the stream's end."""
    # the loop ends with the stream: grep fails when its output is closed; sshd gives each command a process group
    script = (
        "while sleep 15 && grep MemAvailable /proc/meminfo; do :; done & "
        f"{command_line(['docker', 'logs', '--follow', '--timestamps', rank.container])} 2>&1; kill 0"
    )
    stream = subprocess.Popen(
        rank.ssh(command_line(["sh", "-c", script])),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )

    def read() -> None:
        assert stream.stdout is not None
        with stream.stdout as lines:
            for text in lines:
                events.put((rank, text))
        stream.wait()
        events.put((rank, None))

    threading.Thread(target=read, daemon=True).start()
    return stream


class Watch:
    """The ranks of one pair during their start."""

    def __init__(self, ranks: list[Watched]) -> None:
        self.ranks = ranks
        self.events: queue.Queue[Event] = queue.Queue()
        self.began = time.monotonic()
        self._shown_at = 0.0
        self._streams = [follow(rank, self.events) for rank in ranks]

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def until(self, reached: Callable[[], bool], what: str, limit_s: float) -> None:
        """Take events until `reached`; raises StartFailed when a rank ends, or at the limit."""
        deadline = time.monotonic() + limit_s
        while not reached():
            if time.monotonic() > deadline:
                for rank in self.ranks:
                    rank.state = rank.inspect()
                error = failure(self.ranks, self.ranks[0], self.elapsed_s)
                raise StartFailed(f"{what} took more than {limit_s:.0f} s; the ranks still run\n{error}")
            self._end_what_hangs()
            try:
                rank, line = self.events.get(timeout=0.2)
            except queue.Empty:
                self._progress(changed=False)
                continue
            if line is None:
                self._ended(rank)
            elif line.startswith("MemAvailable:"):
                rank.memory = f", {int(line.split()[1]) / 2**20:.1f} GiB free"
            else:
                self._progress(changed=rank.log.feed(line))

    def _progress(self, *, changed: bool) -> None:
        now = time.monotonic()
        # at most a line a second, and one every QUIET_S when nothing changes
        if now - self._shown_at < (1.0 if changed else QUIET_S):
            return
        self._shown_at = now
        shown = [f"{rank.role} {doing(rank, self.ranks)}{rank.memory}" for rank in self.ranks]
        say(f"{self.elapsed_s:5.0f} s   " + "   ".join(shown))

    def _ended(self, rank: Watched) -> None:
        rank.state = rank.inspect()
        if rank.state.running:
            if rank.reconnects == RECONNECTS:
                error = failure(self.ranks, rank, self.elapsed_s)
                raise StartFailed(f"the log stream of {rank.role} broke off {RECONNECTS + 1} times\n{error}")
            rank.reconnects += 1
            say(f"the log stream of {rank.role} broke off, reconnecting ({rank.reconnects} of {RECONNECTS})")
            self._streams.append(follow(rank, self.events))
            return
        # its peers notice within seconds: their last lines belong in the report
        self._drain(3.0)
        self._fail(rank)

    def _end_what_hangs(self) -> None:
        now = time.monotonic()
        for rank in self.ranks:
            rank.failing_since = (rank.failing_since or now) if rank.log.error.fatal else None
            if rank.failing_since and now - rank.failing_since > ENDING_S:
                self._fail(rank)

    def _fail(self, rank: Watched) -> NoReturn:
        for other in self.ranks:
            other.state = other.state or other.inspect()
        raise failure(self.ranks, rank, self.elapsed_s)

    def _drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                rank, line = self.events.get(timeout=0.2)
            except queue.Empty:
                continue
            if line is None:
                rank.state = rank.inspect()
            elif not line.startswith("MemAvailable:"):
                rank.log.feed(line)
            if all(rank.state for rank in self.ranks):
                return

    def close(self) -> None:
        for stream in self._streams:
            if stream.poll() is None:
                stream.terminate()
                stream.wait(5)
