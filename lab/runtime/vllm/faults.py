"""Faults that the lab switches on for a rank: read over HTTP from the control host's hub, before and while it runs.

die-at-load        traceback and exit code 1 at shard 20
hang-at-load       nothing more after shard 20
slow               half a second a shard
out-of-memory      torch.OutOfMemoryError when the KV pool is made
memory-held        somebody else holds the GPU's memory: the admission check fails
hang-after-ready   /health is 200, completions never answer
die-after-ready    the engine ends a moment after it was ready
"""

import json
import os
import socket

NAMES = (
    "die-at-load", "hang-at-load", "slow", "out-of-memory", "memory-held", "hang-after-ready", "die-after-ready",
)  # fmt: skip
DEFAULT_URL = "http://10.0.2.2:5055/lab/faults"
TIMEOUT_S = 2.0
POLL_S = 2.0
"""How often a rank that is ready looks again."""
DIE_AFTER_S = 2.0
"""From seeing die-after-ready to the end."""


def fetch(url: str) -> bytes:
    """The body behind an http URL. By hand: the standard client takes a second to import on an emulated CPU."""
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port or 80)), timeout=TIMEOUT_S) as sock:
        sock.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        with sock.makefile("rb") as reply:
            return reply.read().partition(b"\r\n\r\n")[2]


def fault_of(rank: int) -> str:
    """The rank's fault, or an empty string: also when nobody answers and for a name that is none of ours."""
    url = os.environ.get("LAB_FAULTS_URL", DEFAULT_URL)
    if not url:
        return ""
    try:
        name = json.loads(fetch(url)).get(str(rank), "")
    except (OSError, ValueError, AttributeError):
        return ""
    return name if name in NAMES else ""
