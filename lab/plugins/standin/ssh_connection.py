"""A remote.Command's connection, made by the ssh program.

It reads no ssh config and no default key, like the official plugin, which has an SSH client of its own. Host key,
private key and ssh's messages are in memory files of this process: no secret is on an argv or a disk, and nothing is
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
    """A file that lives as long as this object. Other processes of this user can open it by its path."""

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
    """The ssh command up to the host. A file is used only if the connection has its content."""
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
    if connection.get("agentSocketPath"):
        settings["IdentityAgent"] = connection["agentSocketPath"]
    for name, value in settings.items():
        argv += ["-o", f"{name}={value}"]
    return argv


class Dialer:
    """Makes the argv of an attempt, and tells afterwards whether ssh had connected."""

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
        # ssh writes this file once it is connected and authenticated: a later failure is the command's, not the dial's
        self._argv += ["-o", "PermitLocalCommand=yes", "-o", f"LocalCommand=echo > {self._connected.path}"]

    def _file(self, name: str, content: str = "") -> MemoryFile:
        file = MemoryFile(name, content)
        self._stack.callback(file.close)
        return file

    def _options(self, connection: Mapping[str, Plain], log: MemoryFile) -> list[str]:
        key = self._file("key", connection.get("privateKey", "").rstrip("\n") + "\n")
        known_hosts = self._file("known_hosts", f"pinned {connection.get('hostKey', '')}\n")
        return options(connection, key.path, known_hosts.path, log.path)

    def argv(self, line: str) -> list[str]:
        """The argv of the next attempt. Clears what the last one left behind."""
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
        """Why the attempts did not connect, in ssh's own words."""
        proxy_log = self._proxy_log.read()
        reason = " ".join((proxy_log or self.ssh_says).split()) or "ssh printed nothing"
        return f"{'proxy: ' if proxy_log else ''}after {attempts} failed attempts: {reason}"


@contextmanager
def dialer(connection: Mapping[str, Plain]) -> Iterator[Dialer]:
    with contextlib.ExitStack() as stack:
        yield Dialer(connection, stack)
