"""What the processes of a node are doing: who listens on a port, what runs, which container a process belongs to.

Also owns how a fact script runs a command. Standard library only, Python 3.10.
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
    """A command's stdout. Raises OSError with its words when it is not there or fails, TimeoutError when it is late."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise OSError(f"{argv[0]} is not on PATH") from None
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{argv[0]} gave no answer within {COMMAND_LIMIT_S:.0f} s") from None
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()
        raise OSError(f"{argv[0]} ended with {done.returncode}: {words[-1]}")
    return done.stdout


def is_running(program: str) -> bool:
    """Whether any process has this name."""
    return any(read_text(f"/proc/{pid}/comm") == program for pid in names_in("/proc") if pid.isdecimal())


def container_id(pid: int) -> str | None:
    """The id of the container that a process runs in, from its control group.

    The innermost of the path: where the node is a container itself, its own id stands in front.
    """
    groups = (read_text(f"/proc/{pid}/cgroup") or "").splitlines()
    ids = next(filter(None, (re.findall(r"[0-9a-f]{64}", group) for group in groups)), None)
    return ids[-1] if ids else None


def listening(ports: set[int]) -> list[tuple[int, str, str]]:
    """(port, address, socket inode) of each TCP listener on one of the ports, IPv4 and IPv6."""
    found: list[tuple[int, str, str]] = []
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
                words = [bytes.fromhex(packed[i : i + 8]) for i in range(0, len(packed), 8)]
                raw = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
                found.append((int(port, 16), socket.inet_ntop(family, raw), fields[9]))
    return sorted(found)


def owners(inodes: set[str]) -> dict[str, int]:
    """The pid that holds each socket, as far as this user may look."""
    found: dict[str, int] = {}
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in (name for name in names_in("/proc") if name.isdecimal()):
        for number in names_in(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            if link in wanted:
                found[wanted[link]] = int(pid)
    return found


def owner_as_root(inode: str) -> int | None:
    """The pid that holds a socket of another user, where `sudo -n` works."""
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
