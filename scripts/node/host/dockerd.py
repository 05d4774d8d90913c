"""The Docker Engine API over its unix socket, with the standard library alone.

HTTP/1.0, so that an answer is neither chunked nor kept open; http.client would take longer to import than to ask.
Raises DockerError with the daemon's own words; what keeps a connection from being made (PermissionError,
FileNotFoundError, ConnectionRefusedError, other OSError) passes through, since each of them has another way out.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any, BinaryIO, NamedTuple

SOCKET = "/var/run/docker.sock"


class DockerError(Exception):
    """The daemon answered with an error; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Answer(NamedTuple):
    """An answer whose body is still to be read: `body` gives it line by line as it comes, or whole."""

    status: int
    header: bytes
    body: BinaryIO


def where() -> str:
    """The daemon's socket: DOCKER_HOST's when it names one."""
    return os.environ.get("DOCKER_HOST", "").partition("unix://")[2] or SOCKET


def ask(method: str, path: str, *, timeout_s: float = 30) -> Answer:
    """Send one request without a body. `path` starts with / and carries no API version."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        daemon.settimeout(timeout_s)
        daemon.connect(where())
        daemon.sendall(f"{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Length: 0\r\n\r\n".encode())
        # the stream holds the connection open by itself
        stream: BinaryIO = daemon.makefile("rb")
    words = stream.readline().split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        stream.close()
        raise OSError(f"{where()} was closed without an answer")
    header = b""
    while (line := stream.readline()).strip():
        header += line
    return Answer(int(words[1]), header, stream)


def request(method: str, path: str, *, timeout_s: float = 30) -> BinaryIO:
    """The body of a good answer, to be read as it comes. Raises DockerError for any other."""
    answer = ask(method, path, timeout_s=timeout_s)
    if answer.status >= 400:
        with answer.body as body:
            text = body.read().decode(errors="replace")
        with contextlib.suppress(ValueError, KeyError):
            text = json.loads(text)["message"]
        raise DockerError(answer.status, text.strip())
    return answer.body


def get(path: str, *, timeout_s: float = 30) -> Any:
    """The parsed JSON of a GET."""
    with request("GET", path, timeout_s=timeout_s) as body:
        return json.loads(body.read())
