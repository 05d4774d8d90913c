"""The other nodes' end of the mirror: what the head announces, and its blobs, copied while they still arrive there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from mirror.fetch import Blob, Fetch
from mirror.head import AGAIN, SILENCE_S, Head, Lost, MirrorError
from mirror.wire import Wire

__all__ = ["Blob", "Copy", "MirrorError", "connect"]


def connect(head_fabric_ip: str, port: int, token: str, *, own_fabric_ip: str, limit_s: float = 30) -> Copy:
    """Reach the source over the fabric, trying for `limit_s` while it has no route. Raises MirrorError."""
    head = Head(head_fabric_ip, port, token, own_fabric_ip)
    return Copy(head, head.connect(limit_s))


class Copy:
    """One node's connection to the source; a context manager that closes it."""

    def __init__(self, head: Head, wire: Wire) -> None:
        self._head, self._wire = head, wire

    def close(self) -> None:
        self._wire.close()

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def document(self, limit_s: float) -> Any:
        """The manifest, as soon as the head announces it. Raises MirrorError, also after `limit_s`."""
        until = time.monotonic() + limit_s
        while "document" not in (answer := self._ask({"ask": "document"})):
            if time.monotonic() > until:
                raise MirrorError(
                    f"the head at {self._head.fabric_ip} announced no files within {limit_s:.0f} s: "
                    f"look at its own progress, then {AGAIN}"
                )
        return answer["document"]

    def finished(self) -> None:
        """Tell the source that this node has everything. Raises MirrorError."""
        self._ask({"ask": "finished"})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer, over a new connection if this one was lost in the hours that it was idle."""
        try:
            return self._head.ask(self._wire, request)
        except Lost:
            self._wire.close()
            self._wire = self._head.connect(SILENCE_S)
            return self._head.ask(self._wire, request)

    def fetch(
        self,
        blobs: Sequence[Blob],
        *,
        streams: int,
        limit_s: float = 3600,
        on_bytes: Callable[[int], None] = lambda _: None,
        on_verified: Callable[[Blob], None] = lambda _: None,
    ) -> None:
        """Copy all the blobs over `streams` connections, in their order as far as the head already offers them.

        `on_bytes` gets the length of each piece as it arrives, and a negative number when bytes turn out damaged or
        lost; `on_verified` gets each blob that is verified and in place. Both are called in a stream's thread, one call
        at a time. A stream waits for what the head does not offer yet, at most `limit_s` after the last byte. A blob
        that arrives damaged is fetched once more; a stream that breaks connects again, and gives up at the third break
        in a row. Raises MirrorError, and what a callback raises; then no partial file is left.
        """
        streams = min(streams, len(blobs))
        if streams:
            Fetch(self._head, blobs, limit_s, on_bytes, on_verified).run(streams)
