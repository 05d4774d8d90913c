"""A rank's faults, which it reads over HTTP from the control host's hub, before and while it runs.

die-at-load        traceback and exit code 1 at shard 20
hang-at-load       nothing happens after shard 20
out-of-memory      torch.OutOfMemoryError at the end of the load
slow               loads and computes SLOW times as slowly
hang-after-ready   the rank takes part in no step: requests wait, /health stays 200
die-after-ready    the rank's GPU process ends a moment after the rank is ready
"""

import json
import os
import socket
import time

NAMES = ("die-at-load", "hang-at-load", "slow", "out-of-memory", "hang-after-ready", "die-after-ready")
DEFAULT_URL = "http://10.0.2.2:5055/lab/faults"
TIMEOUT_S = 2.0
POLL_S = 2.0
"""How often a ready rank reads its fault again."""
SLOW = 20
STEP_S = 0.004
"""The time of one decode step. A real pair takes about 57 ms."""


def fetch(url: str) -> bytes:
    """The body behind an http URL. Over a plain socket, since the standard client takes long to import."""
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port or 80)), timeout=TIMEOUT_S) as sock:
        sock.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        with sock.makefile("rb") as reply:
            return reply.read().partition(b"\r\n\r\n")[2]


def pause(seconds: float) -> None:
    time.sleep(seconds * float(os.environ.get("LAB_SPEED") or 1))


class Fault:
    """One rank's fault, as last read."""

    def __init__(self, rank: int) -> None:
        self.rank, self.name = rank, ""

    def look(self) -> str:
        """The current fault. Empty if there is none, nobody answers, or the name is unknown."""
        self.name = ""
        if url := os.environ.get("LAB_FAULTS_URL", DEFAULT_URL):
            try:
                name = json.loads(fetch(url)).get(str(self.rank), "")
            except (OSError, ValueError, AttributeError):
                return ""
            self.name = name if name in NAMES else ""
        return self.name

    def pause(self, seconds: float) -> None:
        pause(seconds * (SLOW if self.name == "slow" else 1))

    def work(self) -> None:
        """The rank's part of one step. It takes time only with a fault."""
        while self.name == "hang-after-ready":
            time.sleep(0.1)
        if self.name == "slow":
            pause(STEP_S * SLOW)
