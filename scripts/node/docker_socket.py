"""The Docker Engine API over its unix socket (DOCKER_HOST's, as the facts use), with the standard library alone.

Raises DockerError with the daemon's own words; ConnectionError kinds (PermissionError, FileNotFoundError,
ConnectionRefusedError) pass through, since each of them has another way out.
"""

import contextlib
import http.client
import json
import os
import socket
from typing import Any

SOCKET = "/var/run/docker.sock"


class DockerError(Exception):
    """The daemon answered with an error; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def where() -> str:
    """The daemon's socket: DOCKER_HOST's when it names one."""
    return os.environ.get("DOCKER_HOST", "").partition("unix://")[2] or SOCKET


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def request(
    method: str, path: str, body: object = None, *, timeout_s: float = 30, socket_path: str | None = None
) -> http.client.HTTPResponse:
    """Send one request; returns the open response. `path` starts with / and carries no API version."""
    connection = _UnixConnection(socket_path or where(), timeout_s)
    data = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        response = connection.getresponse()
    except Exception:
        connection.close()
        raise
    if response.status >= 400:
        text = response.read().decode(errors="replace")
        with contextlib.suppress(ValueError, KeyError):
            text = json.loads(text)["message"]
        raise DockerError(response.status, text.strip())
    return response


def get(path: str, *, timeout_s: float = 30, socket_path: str | None = None) -> Any:
    """The parsed JSON of a GET."""
    return json.loads(request("GET", path, timeout_s=timeout_s, socket_path=socket_path).read())
