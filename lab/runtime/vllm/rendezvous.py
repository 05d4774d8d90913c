"""The ranks' meeting at master_addr:master_port.

Rank 0 listens, the others connect and say who they are; rank 0 sends the table of all; then every rank opens a
connection to every other over the fabric, as NCCL's bootstrap does. The first connections stay open (group.py).
"""

import contextlib
import os
import socket
import threading
import time
from typing import Any

from .config import Config
from .errors import DistNetworkError, DistStoreError
from .fabric import Nccl
from .group import SILENCE_S, Group, Line
from .log import Log

LIMIT_S = 600.0
"""torch's time-out of a process group's start."""
RETRY_S = 0.3
MESH_LIMIT_S = 30.0

Introduction = dict[str, Any]
"""What a rank says about itself: rank, ip, port of its mesh socket, and (only to rank 0) its flags."""


def limit_s() -> float:
    return float(os.environ.get("LAB_RENDEZVOUS_S") or LIMIT_S)


def meet(config: Config, host_ip: str, log: Log) -> Group:
    """All ranks' first meeting. Raises what torch.distributed and NCCL raise."""
    with socket.create_server((host_ip, 0), backlog=16) as mesh, contextlib.ExitStack() as undo:
        about = {"rank": config.node_rank, "ip": host_ip, "port": mesh.getsockname()[1], "flags": config.fingerprint}
        if config.node_rank == 0:
            store = Store(config)
            undo.callback(store.close)
            lines, table = store.gather(about)
        else:
            store = None
            line, table = attend(config, about, log)
            undo.callback(line.close)
            lines = [line]
        weave(config.node_rank, host_ip, mesh, table)
        undo.pop_all()
    group = Group(config.node_rank, lines)
    if store:
        group.when_closed = store.close
    return group


class Store:
    """Rank 0's listening socket, which stays open as torch's does, and the ranks that came to it."""

    def __init__(self, config: Config) -> None:
        self.nnodes = config.nnodes
        self.came: dict[int, tuple[Line, Introduction]] = {}
        self._changed = threading.Condition()
        try:
            self.sock = socket.create_server((config.master_addr, config.master_port), backlog=64)
        except OSError as refusal:
            raise DistNetworkError(
                f"The server socket has failed to listen on any local network address. port: {config.master_port}, "
                f"useIpv6: false, code: -{refusal.errno}, message: {(refusal.strerror or '').lower()}"
            ) from None
        self._door = threading.Thread(target=self._welcome, daemon=True)
        self._door.start()

    def gather(self, about: Introduction) -> tuple[list[Line], list[Introduction]]:
        """Wait for every other rank, compare their flags with ours, tell all about all."""
        deadline = time.monotonic() + limit_s()
        with self._changed:
            while len(self.came) < self.nnodes - 1:
                if time.monotonic() > deadline:
                    joined = f"{len(self.came) + 1}/{self.nnodes} clients joined."
                    raise DistStoreError(f"Timed out after {limit_s() + 1:.0f} seconds waiting for clients. {joined}")
                self._changed.wait(0.2)
            ranks = [self.came[rank] for rank in sorted(self.came)]
        table = [about] + [introduction for _, introduction in ranks]
        difference = first_difference(table)
        for line, _ in ranks:
            try:
                line.send(
                    refused=difference, table=[{key: row[key] for key in ("rank", "ip", "port")} for row in table]
                )
            except OSError:
                raise DistNetworkError(
                    f"Failed to send, rank {line.rank} at {line.ip} closed the connection."
                ) from None
        if difference:
            raise RuntimeError(difference)
        return [line for line, _ in ranks], table

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._door.join(1.0)
        self.sock.close()
        for line, _ in self.came.values():
            line.close()

    def _welcome(self) -> None:
        while True:
            try:
                sock, (ip, _) = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self._introduce, args=(sock, ip), daemon=True).start()

    def _introduce(self, sock: socket.socket, ip: str) -> None:
        """Take a rank in; whoever only looks whether the port is open goes away unharmed."""
        line = Line(sock, -1, ip)
        try:
            introduction = line.receive()
            line.rank, line.ip = int(introduction["rank"]), str(introduction["ip"])
        except (OSError, KeyError, ValueError):
            line.close()
            return
        with self._changed:
            stale = self.came.get(line.rank)
            if not 0 < line.rank < self.nnodes or len(self.came) == self.nnodes - 1:
                line.close()
                return
            self.came[line.rank] = (line, introduction)
            self._changed.notify_all()
        if stale:
            stale[0].close()


def first_difference(table: list[Introduction]) -> str:
    """Words about a flag that two ranks were given differently; empty when all agree."""
    for row in table[1:]:
        for name, value in table[0]["flags"].items():
            if row["flags"].get(name) != value:
                return (
                    f"rank 0 and rank {row['rank']} were started with different settings: "
                    f"--{name.replace('_', '-')} is {value} and {row['flags'].get(name)}"
                )
    return ""


def attend(config: Config, about: Introduction, log: Log) -> tuple[Line, list[Introduction]]:
    """The other ranks' side: connect as soon as rank 0 listens, then wait for the table."""
    head, deadline = (config.master_addr, config.master_port), time.monotonic() + limit_s()
    line = Line(connect(head, deadline, log), 0, head[0], max(1.0, deadline - time.monotonic()))
    try:
        line.send(**about)
        message = line.receive()
    except OSError:
        line.close()
        lost = f"Connection was likely closed by ({head[0]}, {head[1]})."
        raise DistNetworkError(f"Failed to recv, got 0 bytes. {lost}") from None
    if message["refused"]:
        line.close()
        raise RuntimeError(message["refused"])
    line.sock.settimeout(SILENCE_S)
    return line, message["table"]


def connect(head: tuple[str, int], deadline: float, log: Log) -> socket.socket:
    """A connection to rank 0, asked for until it listens. DistNetworkError at the deadline."""
    spoke = False
    while True:
        try:
            return socket.create_connection(head, timeout=5)
        except OSError as refusal:
            if time.monotonic() > deadline:
                raise DistNetworkError(
                    f"The client socket has timed out after {limit_s() * 1000:.0f}ms "
                    f"while trying to connect to ({head[0]}, {head[1]})."
                ) from None
            if not spoke:
                spoke = True
                log.raw(
                    f"[W{time.strftime('%m%d %H:%M:%S')} socket.cpp:767] [c10d] The client socket has failed "
                    f"to connect to [{head[0]}]:{head[1]} (errno: {refusal.errno} - {refusal.strerror or refusal})."
                )
            time.sleep(RETRY_S)


def weave(rank: int, host_ip: str, mesh: socket.socket, table: list[Introduction]) -> None:
    """Connect to every other rank from the own fabric address and be connected to by each, once."""
    others = [row for row in table if row["rank"] != rank]
    failures: list[str] = []

    def reach(row: Introduction) -> None:
        target = (row["ip"], row["port"])
        try:
            with contextlib.closing(Line(socket.create_connection(target, MESH_LIMIT_S, (host_ip, 0)), -1, "")) as line:
                line.send(rank=rank)
        except OSError as refusal:
            words = refusal.strerror or refusal
            failures.append(f"socketStartConnect: Connect to {target[0]}<{target[1]}> failed : {words}")

    threads = [threading.Thread(target=reach, args=(row,), daemon=True) for row in others]
    for thread in threads:
        thread.start()
    missing = {row["rank"]: row["ip"] for row in others}
    mesh.settimeout(1.0)
    deadline = time.monotonic() + MESH_LIMIT_S
    while missing and not failures and time.monotonic() < deadline:
        with contextlib.suppress(OSError, KeyError):
            sock, _ = mesh.accept()
            with contextlib.closing(Line(sock, -1, "", 5.0)) as line:
                missing.pop(line.receive()["rank"], None)
    for thread in threads:
        thread.join(MESH_LIMIT_S)
    failures += [
        f"socketPollConnect: no connection from rank {peer} at {ip} within {MESH_LIMIT_S:.0f} s"
        for peer, ip in missing.items()
    ]
    if failures:
        raise Nccl("unhandled system error", "misc/socket.cc:457", *failures)
