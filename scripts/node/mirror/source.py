"""The head's end of the mirror: it offers verified blobs, which the other nodes copy while more arrive.

It listens at its addresses on the fabric only, admits the peers' addresses only, and serves those that prove the
one-time token. A request names a blob, never a path, so nothing is readable that was not offered. Each connection has a
thread; the bytes go from the page cache to the socket by sendfile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from mirror.wire import HEARTBEAT_S, Wire, WireError, admit, pack

# a peer whose disk stalls acknowledges nothing new for a while either
GONE_AFTER_S = 60
HANDSHAKE_S = 10
PIECE_BYTES = 1 << 30

Value = TypeVar("Value")


class Source:
    """Serves from construction to close(), or as a context manager. All methods may be called from any thread."""

    port: int
    """Where it listens; the system chose it."""

    def __init__(self, fabric_ips: Sequence[str], peer_fabric_ips: Sequence[str], token: str) -> None:
        """Raises OSError naming what cannot be bound, ValueError for an address or a token that would admit anyone."""
        if not fabric_ips or {"", "0.0.0.0"} & set(fabric_ips) or not token:
            raise ValueError("the mirror needs addresses to listen at and a token: without them anyone could read")
        self.port, self._listeners = 0, list[socket.socket]()
        for fabric_ip in fabric_ips:
            try:
                # the first gets a port from the system, and the others the same one
                self._listeners.append(socket.create_server((fabric_ip, self.port), backlog=64))
            except OSError as error:
                for listener in self._listeners:
                    listener.close()
                why = f"the mirror cannot listen at {fabric_ip}: {error.strerror}: is that address this node's, and up?"
                raise OSError(error.errno, why) from None
            self.port = self._listeners[0].getsockname()[1]
        self._peers, self._token = frozenset(peer_fabric_ips), token
        self._changed = threading.Condition()
        self._document: Mapping[str, object] | None = None
        self._failed: str | None = None
        self._offered: dict[str, Path] = {}
        self._finished: set[str] = set()
        self._wires: set[Wire] = set()
        self._admitted: set[Wire] = set()
        self._last_left = time.monotonic()
        self._closed = False
        for listener in self._listeners:
            threading.Thread(target=self._listen, args=(listener,), name="mirror", daemon=True).start()

    def announce(self, document: Mapping[str, object]) -> None:
        """Give the peers the manifest they wait for. Raises TypeError or ValueError if a frame cannot carry it."""
        pack({"document": document})
        with self._changed:
            self._document = document
            self._changed.notify_all()

    def offer(self, blob: str, path: Path) -> None:
        """From now on this verified blob may be copied. The path is opened for each request."""
        with self._changed:
            self._offered[blob] = path
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        """The head cannot continue: a peer gets the reason once nothing that it asks for is offered."""
        with self._changed:
            self._failed = reason
            self._changed.notify_all()

    def finished(self) -> set[str]:
        """Fabric addresses of the peers that said they have everything."""
        with self._changed:
            return set(self._finished)

    def quiet_s(self) -> float:
        """Seconds since the last peer left, or since the start; 0 while one is connected (a dead one gets noticed)."""
        with self._changed:
            return 0.0 if self._admitted else time.monotonic() - self._last_left

    def close(self) -> None:
        """End every connection, also in the middle of a blob."""
        self._closed = True
        # first, so that a stream whose connection ends cannot connect again; close alone would not wake accept()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._changed:
            for wire in self._wires:
                wire.shut()
            self._changed.notify_all()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _listen(self, listener: socket.socket) -> None:
        while not self._closed:
            try:
                connection, (host, _) = listener.accept()
            except OSError:
                time.sleep(0.1)  # closed, or out of descriptors for now
                continue
            if host in self._peers:
                threading.Thread(
                    target=self._serve, args=(connection, host), name=f"mirror {host}", daemon=True
                ).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket, host: str) -> None:
        with connection, contextlib.suppress(WireError, OSError):
            wire = Wire(connection, gone_after_s=GONE_AFTER_S)
            with self._changed:
                self._wires.add(wire)
            try:
                if not self._closed and self._admits(wire):
                    while True:
                        self._answer(wire, host, wire.receive())
            finally:
                with self._changed:
                    self._wires.remove(wire)
                    if wire in self._admitted:
                        self._admitted.remove(wire)
                        self._last_left = time.monotonic()

    def _admits(self, wire: Wire) -> bool:
        wire.limit_silence(HANDSHAKE_S)
        if not admit(wire, self._token):
            return False
        wire.limit_silence(0)
        with self._changed:
            self._admitted.add(wire)
        return True

    def _answer(self, wire: Wire, host: str, request: dict[str, Any]) -> None:
        match request:
            case {"ask": "document"}:
                document = self._when_there(lambda: self._document)
                wire.send(self._not_there() if document is None else {"document": document})
            case {"ask": "blob", "of": [*names]}:
                # anything but a string is not offered either, and may not even be a key
                asked = [name for name in names if isinstance(name, str)]
                blob = self._when_there(lambda: next((name for name in asked if name in self._offered), None))
                if blob is None:
                    wire.send(self._not_there())
                else:
                    self._send(wire, blob, self._offered[blob])
            case {"ask": "finished"}:
                with self._changed:
                    self._finished.add(host)
                wire.send({"noted": True})
            case _:
                raise WireError("its request is unknown")

    def _when_there(self, look: Callable[[], Value | None]) -> Value | None:
        """What `look` returns, as soon as it is not None; None after HEARTBEAT_S, or when the head failed."""
        until = time.monotonic() + HEARTBEAT_S
        with self._changed:
            while (value := look()) is None and self._failed is None and not self._closed:
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            return value

    def _not_there(self) -> dict[str, Any]:
        return {"wait": True} if self._failed is None else {"failed": self._failed}

    def _send(self, wire: Wire, blob: str, path: Path) -> None:
        try:
            file = path.open("rb", buffering=0)
        except OSError as error:
            wire.send({"failed": f"{path} cannot be read: {error.strerror}"})
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            wire.send({"blob": blob, "size": size})
            sent = 0
            while sent < size:
                try:
                    count = os.sendfile(wire.fileno(), file.fileno(), sent, min(size - sent, PIECE_BYTES))
                except OSError as error:
                    if error.errno == errno.EIO:
                        print(f"{path} cannot be read: {error.strerror}", file=sys.stderr, flush=True)
                    raise
                if not count:
                    raise WireError(f"{path} became shorter while it was sent")
                sent += count
