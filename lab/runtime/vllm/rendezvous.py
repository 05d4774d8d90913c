"""The ranks' meeting at master_addr:master_port.

Rank 0 listens; the others connect and introduce themselves; rank 0 sends everyone the table of all ranks. Then every
rank connects to every other over the fabric, as NCCL's bootstrap does. The first connections stay open (group.py).
"""

import contextlib
import errno
import socket
import threading
import time
from typing import Any

from .config import Config
from .errors import DistNetworkError, DistStoreError
from .fabric import Nccl
from .group import Group, Line

RETRY_S = 0.1
MESH_LIMIT_S = 30.0

Introduction = dict[str, Any]
"""What a rank tells about itself: rank, ip, port of its mesh socket."""


def meet(config: Config, host_ip: str) -> Group:
    """Meet the other ranks. Raises what torch.distributed and NCCL raise."""
    with socket.create_server((host_ip, 0), backlog=16) as mesh, contextlib.ExitStack() as undo:
        about = {"rank": config.node_rank, "ip": host_ip, "port": mesh.getsockname()[1]}
        if config.node_rank == 0:
            store = Store(config)
            undo.callback(store.close)
            lines, table = store.gather(about)
        else:
            store = None
            line, table = attend(config, about)
            undo.callback(line.close)
            lines = [line]
        connect_to_all(config.node_rank, host_ip, table)
        undo.pop_all()
        group = Group(config.node_rank, lines)
        if store:
            group.when_closed = store.close
        # our mesh socket stays open until every rank has reached it
        group.barrier("mesh")
    return group


class Store:
    """Rank 0's listening socket, which stays open as torch's does, and the ranks that have joined."""

    def __init__(self, config: Config) -> None:
        self.nnodes, self.timeout_s = config.nnodes, config.timeout_s
        self.joined: dict[int, tuple[Line, Introduction]] = {}
        self._changed = threading.Condition()
        try:
            self.sock = socket.create_server((config.master_addr, config.master_port), backlog=64)
        except OSError as refusal:
            number, message = refusal.errno or 0, (refusal.strerror or "").lower()
            raise DistNetworkError(
                f"The server socket has failed to listen on any local network address. port: {config.master_port}, "
                f"useIpv6: false, code: -{number}, name: {errno.errorcode.get(number)}, message: {message}"
            ) from None
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def gather(self, about: Introduction) -> tuple[list[Line], list[Introduction]]:
        """Wait for every other rank, and send everyone the table."""
        deadline = time.monotonic() + self.timeout_s
        with self._changed:
            while len(self.joined) < self.nnodes - 1:
                if time.monotonic() > deadline:
                    count = f"{len(self.joined) + 1}/{self.nnodes} clients joined."
                    raise DistStoreError(f"Timed out after {self.timeout_s + 1} seconds waiting for clients. {count}")
                self._changed.wait(0.2)
            ranks = [self.joined[rank] for rank in sorted(self.joined)]
        table = [about] + [introduction for _, introduction in ranks]
        for line, _ in ranks:
            try:
                line.send(table=table)
            except OSError:
                raise DistNetworkError(
                    f"Failed to send, rank {line.rank} at {line.ip} closed the connection."
                ) from None
        return [line for line, _ in ranks], table

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._accepting.join(1.0)
        self.sock.close()
        for line, _ in self.joined.values():
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, (ip, _) = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self._introduce, args=(sock, ip), daemon=True).start()

    def _introduce(self, sock: socket.socket, ip: str) -> None:
        """Let a rank join. Drop a connection that does not introduce itself, such as a port check."""
        line = Line(sock, -1, ip)
        try:
            introduction = line.receive()
            line.rank, line.ip = int(introduction["rank"]), str(introduction["ip"])
            sock.settimeout(None)
        except (OSError, KeyError, ValueError):
            line.close()
            return
        with self._changed:
            if not 0 < line.rank < self.nnodes or line.rank in self.joined:
                line.close()
                return
            self.joined[line.rank] = (line, introduction)
            self._changed.notify_all()


def attend(config: Config, about: Introduction) -> tuple[Line, list[Introduction]]:
    """The side of the other ranks: connect as soon as rank 0 listens, then wait for the table."""
    head, deadline = (config.master_addr, config.master_port), time.monotonic() + config.timeout_s
    line = Line(connect(head, deadline, config.timeout_s), 0, head[0], max(1.0, deadline - time.monotonic()))
    try:
        line.send(**about)
        table = line.receive()["table"]
    except OSError:
        line.close()
        lost = "Connection was likely closed. Did the remote server shutdown or crash?"
        raise DistNetworkError(f"Failed to recv, got 0 bytes. {lost}") from None
    line.sock.settimeout(None)
    return line, table


def connect(head: tuple[str, int], deadline: float, timeout_s: int) -> socket.socket:
    """Connect to rank 0, silently trying again until it listens. Raises DistNetworkError at the deadline."""
    while True:
        try:
            return socket.create_connection(head, timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise DistNetworkError(
                    f"The client socket has timed out after {timeout_s * 1000}ms "
                    f"while trying to connect to ({head[0]}, {head[1]})."
                ) from None
            time.sleep(RETRY_S)


def connect_to_all(rank: int, host_ip: str, table: list[Introduction]) -> None:
    """Reach every other rank's mesh socket from our own fabric address."""
    for row in table:
        if row["rank"] != rank:
            try:
                socket.create_connection((row["ip"], row["port"]), MESH_LIMIT_S, (host_ip, 0)).close()
            except OSError as refusal:
                reason = f"Connect to {row['ip']}<{row['port']}> failed : {refusal.strerror or refusal}"
                raise Nccl("unhandled system error", "misc/socket.cc:457", f"socketStartConnect: {reason}") from None
