"""The Docker Engine API over its unix socket, with the standard library only.

HTTP/1.0, so that an answer is neither chunked nor kept open; importing http.client would take longer than asking.
Raises DockerError with the daemon's own message. A failed connection raises its OSError (PermissionError,
FileNotFoundError, ConnectionRefusedError, ...), because each needs another way out.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any, BinaryIO

SOCKET = "/var/run/docker.sock"


class DockerError(Exception):
    """The daemon answered with an error; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def where() -> str:
    """The daemon's socket: that of DOCKER_HOST if it names one."""
    return os.environ.get("DOCKER_HOST", "").partition("unix://")[2] or SOCKET


def request(method: str, path: str, *, timeout_s: float = 30) -> BinaryIO:
    """The body of a good answer, to read as it arrives. Raises DockerError for any other answer.

    `path` starts with / and carries no API version; the request has no body.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        daemon.settimeout(timeout_s)
        daemon.connect(where())
        daemon.sendall(f"{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Length: 0\r\n\r\n".encode())
        # the stream keeps the connection open
        stream: BinaryIO = daemon.makefile("rb")
    status_line = stream.readline().split(None, 2)
    if len(status_line) < 2 or not status_line[1].isdigit():
        stream.close()
        raise OSError(f"{where()} closed the connection without an answer")
    while stream.readline().strip():
        pass  # headers
    if (status := int(status_line[1])) >= 400:
        with stream:
            text = stream.read().decode(errors="replace")
        with contextlib.suppress(ValueError, KeyError):
            text = json.loads(text)["message"]
        raise DockerError(status, text.strip())
    return stream


def get(path: str, *, timeout_s: float = 30) -> Any:
    """The parsed JSON of a GET."""
    with request("GET", path, timeout_s=timeout_s) as body:
        return json.loads(body.read())
