"""Following every rank's start at once, until the head serves, a rank ends, or the limit is reached.

One `docker logs --follow` a node over SSH: no polling, and the end of a container is seen the moment it happens.
"""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from components.ssh.shell import command_line, python_line
from components.ssh.target import Resolved, Target, ssh_argv
from components.start.rank_log import RankLog
from components.start.troubleshooting import explain
from loader import payload
from rank.probe import Answer, ProbeInputs

HEARTBEAT_S = 15.0
RECONNECTS = 5
SHOWN_LINES = 12


class StartFailed(Exception):
    """The pair will not serve; the text has all ranks' last lines and what is known about them."""


@dataclass
class Watched:
    """One rank as the watcher sees it."""

    role: str
    container: str
    target: Target
    resolved: Resolved
    log: RankLog = field(init=False)
    memory: str = ""
    """Last seen MemAvailable, ready to print."""
    reconnects: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    """Docker's State of the container once it has ended."""

    def __post_init__(self) -> None:
        self.log = RankLog(self.role)

    def ssh(self, line: str) -> list[str]:
        return ssh_argv(self.target, line, multiplexed=self.resolved.multiplexed)

    @property
    def ended(self) -> str:
        """How the container ended, in words, or what it is still doing."""
        if not self.state or self.state.get("Running"):
            return f"still {self.log.phase}"
        if self.state.get("Lost"):
            return f"cannot be seen any more: {self.state['Lost']}"
        if self.state.get("OOMKilled"):
            return "was killed for lack of memory"
        if self.state.get("Error"):
            return f"could not start: {self.state['Error']}"
        return f"ended with exit code {self.state.get('ExitCode')}"


Event = tuple[Watched, str | None]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def follow(rank: Watched, events: "queue.Queue[Event]") -> subprocess.Popen[str]:
    """Stream a rank's log into `events`; None marks the stream's end."""
    # the memory loop ends with the stream: grep fails once nobody reads
    line = (
        "{ while sleep 15 && grep MemAvailable /proc/meminfo; do :; done & } ; "
        f"{command_line(['docker', 'logs', '--follow', rank.container])} 2>&1; kill $!"
    )
    stream = subprocess.Popen(
        rank.ssh(line),
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


def inspect(rank: Watched) -> dict[str, Any]:
    """Docker's State of the rank's container; {"Lost": words} when there is none or the node does not answer."""
    line = command_line(["timeout", "20", "docker", "inspect", "--format", "{{json .State}}", rank.container])
    try:
        done = subprocess.run(rank.ssh(line), capture_output=True, text=True, timeout=40, check=False)
    except subprocess.TimeoutExpired:
        return {"Lost": "the node does not answer any more"}
    if done.returncode:
        return {"Lost": done.stderr.strip() or f"docker inspect ended with {done.returncode}"}
    state: dict[str, Any] = json.loads(done.stdout)
    return state


def failure(ranks: list[Watched], first: Watched, elapsed_s: float, what: str | None = None) -> StartFailed:
    """What a person needs to see: who ended how, every rank's last lines, the row of the table that fits.

    `what` is what failed where no rank ended.
    """
    headline = what or f"{first.role}'s rank {first.ended}"
    parts = [f"{headline}, {elapsed_s:.0f} s after the start"]
    for rank in ranks:
        parts.append(f"--- {rank.role}: {rank.ended}; its last lines:")
        shown = list(rank.log.tail)[-SHOWN_LINES:]
        cause = rank.log.first_error
        if cause and not any(cause in line for line in shown):
            parts.append(f"    first error: {cause}")
        parts += [f"    {line}" for line in shown] or ["    (no line)"]
    ordered = [first, *(rank for rank in ranks if rank is not first)]
    known = explain([headline, *(line for rank in ordered for line in said(rank))])
    if known:
        parts += [f"what this means: {known.cause}", f"way out: {known.fix}"]
    else:
        parts.append("no row of docs/troubleshooting.md fits: read the lines above; pulumi up starts both ranks anew")
    return StartFailed("\n".join(parts))


def said(rank: Watched) -> list[str]:
    """All that a rank and Docker tell of its end."""
    return [*([rank.log.first_error] if rank.log.first_error else []), *rank.log.tail, rank.ended]


class Watch:
    """The ranks of one pair during their start."""

    def __init__(self, ranks: list[Watched]) -> None:
        self.ranks = ranks
        self.events: queue.Queue[Event] = queue.Queue()
        self.began = time.monotonic()
        self._said = 0.0
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
                    rank.state = inspect(rank)
                error = failure(self.ranks, self.ranks[0], self.elapsed_s)
                raise StartFailed(f"{what} took more than {limit_s:.0f} s; the ranks still run\n{error}")
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
        # at most a line a second, and one every HEARTBEAT_S when nothing changes
        if now - self._said < (1.0 if changed else HEARTBEAT_S):
            return
        self._said = now
        say(f"{self.elapsed_s:5.0f} s   " + "   ".join(f"{rank.log}{rank.memory}" for rank in self.ranks))

    def _ended(self, rank: Watched) -> None:
        rank.state = inspect(rank)
        if rank.state.get("Running"):
            if rank.reconnects == RECONNECTS:
                error = failure(self.ranks, rank, self.elapsed_s)
                raise StartFailed(f"the log stream of {rank.role} broke off {RECONNECTS + 1} times\n{error}")
            rank.reconnects += 1
            say(f"the log stream of {rank.role} broke off, connecting again ({rank.reconnects} of {RECONNECTS})")
            self._streams.append(follow(rank, self.events))
            return
        # peers notice within seconds: their last lines belong into the report
        self._drain(3.0)
        for other in self.ranks:
            other.state = other.state or inspect(other)
        ended = [other for other in self.ranks if not other.state.get("Running")]
        first = min(ended or [rank], key=lambda other: str(other.state.get("FinishedAt", "")))
        raise failure(self.ranks, first, self.elapsed_s)

    def _drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                rank, line = self.events.get(timeout=0.2)
            except queue.Empty:
                continue
            if line is None:
                rank.state = inspect(rank)
            elif not line.startswith("MemAvailable:"):
                rank.log.feed(line)
            if all(rank.state for rank in self.ranks):
                return

    def close(self) -> None:
        for stream in self._streams:
            if stream.poll() is None:
                stream.terminate()
                stream.wait(5)


class Probe:
    """The completion and the warm-up, on the head's node, while the ranks are still watched."""

    def __init__(self, head: Watched, inputs: ProbeInputs, limit_s: int) -> None:
        self.process = subprocess.Popen(
            head.ssh(python_line(inputs, limit_s)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.words: list[str] = []
        self._out = ""
        self._threads = [threading.Thread(target=reader, daemon=True) for reader in (self._read_words, self._read_out)]
        for thread in self._threads:
            thread.start()
        assert self.process.stdin is not None
        # a connection that failed at once reads nothing; its words say why
        with contextlib.suppress(BrokenPipeError), self.process.stdin as script:
            script.write(payload("rank.probe"))

    def _read_words(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.words.append(line.rstrip())
                say(f"        {line.rstrip()}")

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            self._out = out.read()

    def done(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        """End it; nothing happens when it has ended."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(5)

    def result(self) -> Answer:
        """What rank.probe printed. Raises StartFailed with its last words when no completion came back."""
        for thread in self._threads:
            thread.join(5)
        if self.process.returncode:
            raise StartFailed(self.words[-1] if self.words else f"the probe ended with {self.process.returncode}")
        found: Answer = json.loads(self._out)
        return found
