"""Ranks that have met: the connections between them, what they wait for together, and the news that one is gone.

Messages are JSON, one a line. A heartbeat runs on every connection, so the end of a process is seen at once, and a
machine that vanished after SILENCE_S.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .errors import PeerLostError

BEAT_S = 1.0
SILENCE_S = 20.0
"""A peer that says nothing for so long is lost: its machine is gone, or the cable."""


class Line:
    """One connection between two ranks."""

    def __init__(self, sock: socket.socket, rank: int, ip: str, silence_s: float = SILENCE_S) -> None:
        sock.settimeout(silence_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self.rank, self.ip = sock, rank, ip
        self.reader = sock.makefile("rb")
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        """Raises OSError when the other side is gone."""
        with self._sending:
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """The next message; OSError when there will be none."""
        text = self.reader.readline()
        if not text:
            raise ConnectionResetError("closed")
        try:
            message = json.loads(text)
        except ValueError:
            raise ConnectionResetError("no message of a rank") from None
        return message if isinstance(message, dict) else {}

    def hang_up(self) -> None:
        """End the connection; whoever reads from it wakes up."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        self.reader.close()
        self.sock.close()


class Group:
    """All ranks of a job. Rank 0 has a line to each other rank, the others one to rank 0."""

    def __init__(self, rank: int, lines: list[Line]) -> None:
        self.rank, self.lines = rank, lines
        self.lost: PeerLostError | None = None
        self.on_loss: Callable[[PeerLostError], None] | None = None
        self.when_closed: Callable[[], None] | None = None
        self._changed = threading.Condition()
        self._arrived: dict[str, dict[int, Any]] = {}
        self._released: dict[str, dict[str, Any]] = {}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._listen, args=(line,), daemon=True) for line in lines]
        self._threads += [threading.Thread(target=self._beat, args=(line,), daemon=True) for line in lines]
        for thread in self._threads:
            thread.start()

    def barrier(self, name: str, word: Any = None) -> dict[str, Any]:
        """Wait until every rank is here; each rank's word, by rank as text. PeerLostError when one cannot come."""
        if self.rank:
            self._send(self.lines[0], at=name, word=word)
            return self._await(lambda: self._released.get(name))
        others = {line.rank for line in self.lines}
        arrived = self._await(
            lambda: self._arrived.get(name, {}) if others <= self._arrived.get(name, {}).keys() else None
        )
        words = {"0": word} | {str(rank): said for rank, said in arrived.items()}
        for line in self.lines:
            self._send(line, release=name, words=words)
        return words

    def close(self) -> None:
        """End every connection on purpose; the peers see a loss, as with the real engine."""
        self._over.set()
        for line in self.lines:
            line.hang_up()
        for thread in self._threads:
            thread.join(1.0)
        for line in self.lines:
            line.close()
        if self.when_closed:
            self.when_closed()

    def _await(self, ready: Callable[[], dict[Any, Any] | None]) -> dict[Any, Any]:
        with self._changed:
            while True:
                if self.lost:
                    raise self.lost
                if (value := ready()) is not None:
                    return value
                self._changed.wait(1.0)

    def _send(self, line: Line, **message: Any) -> None:
        try:
            line.send(**message)
        except OSError:
            self._lose(line)

    def _listen(self, line: Line) -> None:
        try:
            while True:
                message = line.receive()
                with self._changed:
                    if "at" in message:
                        self._arrived.setdefault(message["at"], {})[line.rank] = message.get("word")
                    elif "release" in message:
                        self._released[message["release"]] = message["words"]
                    self._changed.notify_all()
        except OSError:
            self._lose(line)

    def _beat(self, line: Line) -> None:
        while not self._over.wait(BEAT_S):
            self._send(line, beat=time.time())

    def _lose(self, line: Line) -> None:
        with self._changed:
            if self._over.is_set():
                return
            self.lost = PeerLostError(line.rank, line.ip)
            self._over.set()
            self._changed.notify_all()
        if self.on_loss:
            self.on_loss(self.lost)
