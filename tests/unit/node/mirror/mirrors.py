"""A head that offers files at 127.0.0.1, and a node that copies them from 127.0.0.2, in one process."""

import contextlib
import hashlib
import io
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from mirror.fetch import Blob, Fetch
from mirror.head import Head
from mirror.source import Source
from mirror.wire import Wire, admit

HEAD, NODE, FOREIGN, TOKEN = "127.0.0.1", "127.0.0.2", "127.0.0.3", "one-time"


class Pair:
    """A head's folder and a node's, and the source between them."""

    def __init__(self, folder: Path) -> None:
        self.head, self.node = folder / "head", folder / "node"
        self.head.mkdir()
        self.node.mkdir()
        self.source = Source([HEAD], [NODE], TOKEN)
        self.counted: list[int] = []
        self.verified: list[str] = []

    def blob(self, content: bytes, *, offered: bool = True) -> Blob:
        """A blob on the head, named by its hash."""
        name = hashlib.sha256(content).hexdigest()
        (self.head / name).write_bytes(content)
        if offered:
            self.offer(name)
        return Blob(name, len(content), self.node / name)

    def offer(self, name: str) -> None:
        self.source.offer(name, self.head / name)

    def connect(self) -> Head:
        return Head(HEAD, self.source.port, TOKEN, own_fabric_ip=NODE, limit_s=1)

    def fetch(
        self,
        *blobs: Blob,
        streams: int = 2,
        limit_s: float = 5,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        def count(size: int) -> None:
            self.counted.append(size)
            on_bytes(size)

        with self.connect() as head:
            Fetch(
                head, blobs, limit_s=limit_s, on_bytes=count, on_verified=lambda blob: self.verified.append(blob.name)
            ).run(streams)

    def cut(self) -> None:
        """Every connection breaks, as when the cable was out for a moment; the head keeps running."""
        for wire in list(self.source._wires):
            wire.shut()

    def copied(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.node.iterdir()}


class Grudging(io.FileIO):
    """A file that takes half of what it is given."""

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        return super().write(data[: len(data) // 2 + 1])


@contextlib.contextmanager
def silent_head() -> Iterator[int]:
    """The port of a head that knows the token and answers nothing."""
    connections: list[socket.socket] = []

    def admit_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                admit(Wire(connection, gone_after_s=5), TOKEN)

    with socket.create_server((HEAD, 0)) as listener:
        thread = threading.Thread(target=admit_all)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()
