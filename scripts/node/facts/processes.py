"""The processes of a node: who listens on a port, what runs, which container a process belongs to.

Also how a probe runs a command. Standard library only, Python 3.10.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

from facts.document import ListenerFacts
from gid.sysfs import names_in, read_text

COMMAND_LIMIT_S = 12.0


def run(*argv: str) -> str:
    """A command's stdout. Raises OSError with its message if it is missing or fails, TimeoutError if it is late."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise OSError(f"{argv[0]} is not on PATH") from None
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{argv[0]} did not answer within {COMMAND_LIMIT_S:.0f} s") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise OSError(f"{argv[0]} ended with {done.returncode}: {lines[-1]}")
    return done.stdout


def is_running(program: str) -> bool:
    """Whether any process has this name."""
    return any(read_text(f"/proc/{pid}/comm") == program for pid in names_in("/proc") if pid.isdecimal())


def container_id(pid: int) -> str | None:
    """The id of the container that a process runs in, from its control group: the last one in the path.

    If the node is itself a container, the node's own id comes before it.
    """
    groups = (read_text(f"/proc/{pid}/cgroup") or "").splitlines()
    ids = next(filter(None, (re.findall(r"[0-9a-f]{64}", group) for group in groups)), None)
    return ids[-1] if ids else None


def listening(ports: set[int]) -> list[tuple[int, str, str]]:
    """(port, address, socket inode) of each TCP listener on one of the ports, IPv4 and IPv6."""
    sockets: list[tuple[int, str, str]] = []
    for table, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        try:
            with open(table) as file:
                lines = file.read().splitlines()[1:]
        except FileNotFoundError:
            continue  # a kernel without IPv6
        for line in lines:
            fields = line.split()
            packed, _, port = fields[1].partition(":")
            if fields[3] == "0A" and int(port, 16) in ports:
                # each 32-bit word of the address is in the machine's byte order
                parts = [bytes.fromhex(packed[i : i + 8]) for i in range(0, len(packed), 8)]
                raw = b"".join(part[::-1] if sys.byteorder == "little" else part for part in parts)
                sockets.append((int(port, 16), socket.inet_ntop(family, raw), fields[9]))
    return sorted(sockets)


def owners(inodes: set[str]) -> dict[str, int]:
    """The pid that holds each socket, among the processes that this user may look at."""
    pids: dict[str, int] = {}
    links = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in (name for name in names_in("/proc") if name.isdecimal()):
        for number in names_in(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            if link in links:
                pids[links[link]] = int(pid)
    return pids


def owner_as_root(inode: str) -> int | None:
    """The pid that holds a socket of another user, if `sudo -n` works."""
    try:
        link = run(
            *("sudo", "-n", "find", "/proc", "-mindepth", "3", "-maxdepth", "3"),
            *("-path", "/proc/[0-9]*/fd/*", "-lname", f"socket:[[]{inode}]", "-print", "-quit"),
        )
    except OSError:
        return None
    parts = link.split("/")
    return int(parts[2]) if len(parts) > 2 and parts[2].isdecimal() else None


def listeners(ports: set[int]) -> list[tuple[ListenerFacts, str]]:
    """Who listens on the ports, each with its socket's inode."""
    sockets = listening(ports) if ports else []
    pids = owners({inode for *_, inode in sockets}) if sockets else {}
    return [(ListenerFacts(port, address, *process_of(pids.get(inode))), inode) for port, address, inode in sockets]


def process_of(pid: int | None) -> tuple[int | None, str | None]:
    """The pid with its name."""
    return pid, read_text(f"/proc/{pid}/comm") if pid is not None else None
