"""The Docker daemon of one provider: the connection to it, and the few requests that the resources need.

For an ssh:// host, one ssh process forwards the daemon's socket to a private local one, for as long as this process
lives. It starts with the first request, so a preview needs no host.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import docker

CONNECT_TIMEOUT = 30
"""Seconds for TCP and login, unless the ssh options set their own. The docker client uses the same number."""

LOGIN_LIMIT = 60.0
"""Seconds in which the far end of the tunnel must answer."""

REQUEST_LIMIT = 1200
"""Seconds without a byte from the daemon. The official plugin limits an operation to as much."""


class DaemonError(Exception):
    """The daemon refused. The text is what the docker client would print."""


class Gone(DaemonError):
    """The daemon has no such object."""


class Unreachable(DaemonError):
    """The daemon cannot be reached."""


@contextlib.contextmanager
def daemon_errors() -> Iterator[None]:
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.APIError as error:
        kind = Gone if error.status_code == 404 else DaemonError
        raise kind(f"Error response from daemon: {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise DaemonError(str(error)) from error


@dataclass
class Tunnel:
    """An ssh process that forwards a local socket to the daemon's, and ends with this process."""

    host: str
    options: Sequence[str]
    _process: subprocess.Popen[bytes] | None = None

    def argv(self, socket: str) -> list[str]:
        """Raises DaemonError for a URL that the docker client would refuse."""
        url = urllib.parse.urlsplit(self.host)
        if not url.hostname or url.password or url.query or url.fragment:
            raise DaemonError(f"{self.host} is not ssh://[user@]host[:port][/path of the daemon's socket]")
        target = url.path if url.path not in ("", "/") else "/var/run/docker.sock"
        argv = ["ssh", "-T", "-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes"]
        # Docker's own client speaks through `docker system dial-stdio`; of the two same options ssh takes the first
        argv += ["-o", "ClearAllForwardings=no", "-L", f"{socket}:{target}"]
        argv += ["-l", url.username] if url.username else []
        argv += ["-p", str(url.port)] if url.port else []
        argv += self.options
        if not any("ConnectTimeout" in option for option in self.options):
            argv += ["-o", f"ConnectTimeout={CONNECT_TIMEOUT}"]
        # netloc, not hostname: hostname is in lower case, and an alias need not be
        host = url.netloc.rpartition("@")[2].partition(":")[0] if ":" not in url.hostname else url.hostname
        return [*argv, "--", host, "echo up; exec cat"]

    def open(self) -> str:
        """Open the tunnel and return the local socket's URL. Raises DaemonError if ssh fails.

        Nothing closes the tunnel: ssh ends when its standard input does, which is with this process.
        """
        self.argv("")  # raises for a bad URL before anything is made
        folder = tempfile.mkdtemp(prefix="pulumi-docker-")
        argv = self.argv(os.path.join(folder, "s"))
        # a shell in its own session removes the folder when ssh ends, even after this process was killed
        remove = 'folder=$1; shift; "$@"; status=$?; rm -rf "$folder"; exit $status'
        with tempfile.TemporaryFile() as stderr:
            process = subprocess.Popen(
                ["sh", "-c", remove, "sh", folder, *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
            self._process = process
            assert process.stdout
            ready, _, _ = select.select([process.stdout], [], [], LOGIN_LIMIT)
            if ready and process.stdout.readline() == b"up\n":
                return f"unix://{folder}/s"
            status = _end(process)
            shutil.rmtree(folder, ignore_errors=True)
            stderr.seek(0)
            reason = stderr.read().decode(errors="replace").strip()
        raise DaemonError(
            f"error during connect: command [{' '.join(argv)}] has exited with exit status {status}, make sure the URL "
            "is valid, and Docker 18.09 or later is installed on the remote host: "
            f"stderr={reason or f'no answer in {LOGIN_LIMIT:g} s'}"
        )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None


def _end(process: subprocess.Popen[bytes]) -> int:
    """The exit status of an ssh that failed to connect. Ends one that hangs."""
    try:
        return process.wait(1)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        return process.wait()


@dataclass
class Daemon:
    """Every request may raise DaemonError: Gone for a missing object, Unreachable if the daemon cannot be reached."""

    host: str
    ssh_options: Sequence[str] = ()
    _tunnel: Tunnel | None = None
    _client: docker.APIClient | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self) -> docker.APIClient:
        """The connected client. Connects on first use, and again if the tunnel has ended."""
        with self._lock:
            if self._client is None or (self._tunnel and not self._tunnel.alive):
                self._client = self._connect()
            return self._client

    def _connect(self) -> docker.APIClient:
        try:
            with daemon_errors():
                import docker

                url = self.host
                if self.host.startswith("ssh://"):
                    self._tunnel = Tunnel(self.host, self.ssh_options)
                    url = self._tunnel.open()
                client = docker.APIClient(url, version="auto", timeout=REQUEST_LIMIT)
                client.ping()
                return client
        except DaemonError as error:
            raise Unreachable(
                f"failed to create Docker client: Error pinging Docker server, please make sure that {self.host} is "
                f"reachable and has a  '_ping' endpoint. Error: {error}"
            ) from error

    def ask(self, request: Callable[[Any], Any]) -> Any:
        """The daemon's answer to a request. Any: the types of the SDK's client are incomplete."""
        client = self.client()
        with daemon_errors():
            return request(client)

    def image(self, name: str) -> dict[str, Any] | None:
        try:
            inspected: dict[str, Any] = self.ask(lambda client: client.inspect_image(name))
        except Gone:
            return None
        return inspected

    def find_image(self, name: str) -> dict[str, Any]:
        """The image, pulled if it is missing. As in the official plugin, a pull that breaks off shows no cause."""
        if image := self.image(name):
            return image
        try:
            self.ask(lambda client: client.pull(name))
        except DaemonError as error:
            raise DaemonError(f"unable to pull image {name}: error pulling image {name}: {error}") from error
        if image := self.image(name):
            return image
        raise DaemonError(f"unable to find or pull image {name}")

    def container(self, container_id: str) -> dict[str, Any]:
        inspected: dict[str, Any] = self.ask(lambda client: client.inspect_container(container_id))
        return inspected

    def create_container(self, body: dict[str, Any], name: str) -> str:
        created = self.ask(lambda client: client.create_container_from_config(body, name))
        return str(created["Id"])

    def upload(self, container_id: str, archive: bytes) -> None:
        self.ask(lambda client: client.put_archive(container_id, "/", archive))

    def start(self, container_id: str) -> None:
        self.ask(lambda client: client.start(container_id))

    def set_restart(self, container_id: str, policy: str) -> None:
        self.ask(lambda client: client.update_container(container_id, restart_policy={"Name": policy}))

    def stop(self, container_id: str, grace: int) -> None:
        self.ask(lambda client: client.stop(container_id, timeout=grace))

    def remove_container(self, container_id: str) -> None:
        """Remove it, with its anonymous volumes."""
        self.ask(lambda client: client.remove_container(container_id, v=True, force=True))
