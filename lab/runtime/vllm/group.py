"""Ranks that have met: the connections between them, and what they do together.

Messages are JSON, one on each line. As in the real engine, ranks do not check on each other: the end of a process shows
by its closed connection, and a rank that hangs or lost its cable makes the others wait.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

STALL_S = 60.0
"""How long a step may take before the engine logs a line about it. It keeps waiting."""


class Line:
    """One connection between two ranks."""

    def __init__(self, sock: socket.socket, rank: int, ip: str, timeout_s: float | None = None) -> None:
        sock.settimeout(timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self.rank, self.ip = sock, rank, ip
        self.port = sock.getpeername()[1]
        self.reader = sock.makefile("rb")
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        """Send a message. Raises OSError if the other side is gone."""
        with self._sending:
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """The next message. Raises OSError if there will be none."""
        text = self.reader.readline()
        if not text:
            raise ConnectionResetError("closed")
        try:
            message = json.loads(text)
        except ValueError:
            raise ConnectionResetError("not a rank's message") from None
        return message if isinstance(message, dict) else {}

    def hang_up(self) -> None:
        """End the connection and wake up its reader."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        self.reader.close()
        self.sock.close()


class Group:
    """All ranks of a job. Rank 0 has a line to each other rank; each other rank has one to rank 0."""

    def __init__(self, rank: int, lines: list[Line]) -> None:
        self.rank, self.lines = rank, lines
        self.lost: RuntimeError | None = None
        self.work: Callable[[], None] = lambda: None
        """This rank's part of a step."""
        self.on_stall: Callable[[], None] = lambda: None
        self.when_closed: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._stepping = threading.Lock()
        self._steps = 0
        self._arrived: dict[str, dict[int, Any]] = {}
        self._released: dict[str, dict[str, Any]] = {}
        self._threads = [threading.Thread(target=self._listen, args=(line,), daemon=True) for line in lines]
        for thread in self._threads:
            thread.start()

    def barrier(self, name: str, value: Any = None) -> dict[str, Any]:
        """Wait for every rank, and return each rank's value by its number as text. RuntimeError if one is lost."""
        if self.rank:
            self._send(self.lines[0], at=name, value=value)
            released: dict[str, Any] = self._await(lambda: self._released.get(name))
            return released
        others = {line.rank for line in self.lines}
        arrived = self._await(
            lambda: self._arrived.get(name, {}) if others <= self._arrived.get(name, {}).keys() else None
        )
        values = {"0": value} | {str(rank): theirs for rank, theirs in arrived.items()}
        for line in self.lines:
            self._send(line, release=name, values=values)
        return values

    def step(self) -> None:
        """Run one forward pass, which needs every rank. Raises RuntimeError if one is gone."""
        with self._stepping:
            self.work()
            self._steps += 1
            name = f"step {self._steps}"
            for line in self.lines:
                self._send(line, step=name)
            self._await(lambda: True if len(self._arrived.get(name, {})) == len(self.lines) else None)
            self._arrived.pop(name, None)

    def close(self) -> None:
        """End every connection. The peers see a loss, as in the real engine."""
        with self._changed:
            self.lost = self.lost or RuntimeError("closed")
        for line in self.lines:
            line.hang_up()
        for thread in self._threads:
            thread.join(1.0)
        for line in self.lines:
            line.close()
        self.when_closed()

    def _await(self, ready: Callable[[], Any]) -> Any:
        began = time.monotonic()
        with self._changed:
            while True:
                if self.lost:
                    raise self.lost
                if (value := ready()) is not None:
                    return value
                self._changed.wait(1.0)
                if time.monotonic() - began > STALL_S:
                    began = time.monotonic()
                    self.on_stall()

    def _send(self, line: Line, **message: Any) -> None:
        try:
            line.send(**message)
        except OSError:
            self._lose(line)

    def _listen(self, line: Line) -> None:
        try:
            while True:
                message = line.receive()
                if "step" in message:
                    self.work()
                    line.send(at=message["step"])
                with self._changed:
                    if "at" in message:
                        self._arrived.setdefault(message["at"], {})[line.rank] = message.get("value")
                    elif "release" in message:
                        self._released[message["release"]] = message["values"]
                    self._changed.notify_all()
        except OSError:
            self._lose(line)

    def _lose(self, line: Line) -> None:
        with self._changed:
            where = "/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547"
            self.lost = self.lost or RuntimeError(f"[{where}] Connection closed by peer [{line.ip}]:{line.port}")
            self._changed.notify_all()
