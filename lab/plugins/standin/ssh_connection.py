"""A remote.Command's connection as the ssh program runs it.

Reads no ssh config and no default key, as the official plugin, which has an SSH client of its own. Host key, private
key and ssh's own messages are in memory files of this process: nothing secret is on an argv or a disk, and nothing is
left behind when the plugin is killed. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from standin.values import Plain


class MemoryFile:
    """A file that lives as long as this object; other processes of this user open it by its path."""

    def __init__(self, name: str, content: str = "") -> None:
        self._fd = os.memfd_create(name)
        os.fchmod(self._fd, 0o600)
        os.write(self._fd, content.encode())
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def read(self) -> str:
        size = os.fstat(self._fd).st_size
        return os.pread(self._fd, size, 0).decode(errors="replace")

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        os.close(self._fd)


def host_key_algorithms(host_key: str) -> str:
    kind = host_key.split()[0]
    return "rsa-sha2-512,rsa-sha2-256" if kind == "ssh-rsa" else kind


def options(connection: Mapping[str, Plain], key_file: str, known_hosts_file: str, log_file: str) -> list[str]:
    """The ssh program and everything up to the host. File names are used only for what the connection has."""
    argv = ["ssh", "-F", "none", "-T", "-x", "-a", "-E", log_file]
    argv += ["-p", str(connection["port"]), "-l", connection["user"]]
    settings = {
        "BatchMode": "yes",
        "LogLevel": "ERROR",
        "ControlPath": "none",
        "UpdateHostKeys": "no",
        "GlobalKnownHostsFile": "none",
        "PreferredAuthentications": "publickey",
    }
    if connection["perDialTimeout"]:
        settings["ConnectTimeout"] = str(connection["perDialTimeout"])
    if connection.get("hostKey"):
        settings["HostKeyAlias"] = "pinned"
        settings["HostKeyAlgorithms"] = host_key_algorithms(connection["hostKey"])
        settings["UserKnownHostsFile"] = known_hosts_file
        settings["StrictHostKeyChecking"] = "yes"
    else:
        settings["UserKnownHostsFile"] = "/dev/null"
        settings["StrictHostKeyChecking"] = "no"
    if connection.get("privateKey"):
        settings["IdentityFile"] = key_file
        settings["IdentitiesOnly"] = "yes"
    else:
        settings["IdentityFile"] = "none"
    for name, value in settings.items():
        argv += ["-o", f"{name}={value}"]
    return argv


class Dialer:
    """Makes the argv of one attempt, and tells from what ssh left behind whether it had connected."""

    def __init__(self, connection: Mapping[str, Plain], stack: contextlib.ExitStack) -> None:
        self._connection = connection
        self._stack = stack
        self._log = self._file("log")
        self._proxy_log = self._file("proxy-log")
        self._connected = self._file("connected")
        self._argv = self._options(connection, self._log)
        proxy = connection.get("proxy")
        if proxy:
            hop = [*self._options(proxy, self._proxy_log), "-W", "[%h]:%p", proxy["host"]]
            self._argv += ["-o", f"ProxyCommand={shlex.join(hop)}"]
        # written by ssh once it is connected and authenticated: what fails later is the command, not the dial
        self._argv += ["-o", "PermitLocalCommand=yes", "-o", f"LocalCommand=echo > {self._connected.path}"]

    def _file(self, name: str, content: str = "") -> MemoryFile:
        file = MemoryFile(name, content)
        self._stack.callback(file.close)
        return file

    def _options(self, connection: Mapping[str, Plain], log: MemoryFile) -> list[str]:
        key = self._file("key", connection.get("privateKey", "").rstrip("\n") + "\n")
        known = self._file("known_hosts", f"pinned {connection.get('hostKey', '')}\n")
        return options(connection, key.path, known.path, log.path)

    def argv(self, line: str) -> list[str]:
        """The next attempt, with a clean slate."""
        self._log.clear()
        self._proxy_log.clear()
        self._connected.clear()
        return [*self._argv, self._connection["host"], line]

    @property
    def connected(self) -> bool:
        return bool(self._connected.read())

    @property
    def ssh_says(self) -> str:
        return self._log.read()

    def error(self, attempts: int) -> str:
        """Why the attempts did not connect, in ssh's words."""
        said = self._proxy_log.read()
        reason = " ".join((said or self.ssh_says).split()) or "ssh ended without a word"
        return f"{'proxy: ' if said else ''}after {attempts} failed attempts: {reason}"


@contextmanager
def dialer(connection: Mapping[str, Plain]) -> Iterator[Dialer]:
    with contextlib.ExitStack() as stack:
        yield Dialer(connection, stack)
