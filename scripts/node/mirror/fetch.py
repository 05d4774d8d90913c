"""The streams of the mirror's copy: each blob goes from the head to its place, and is verified on the way.

A stream is a connection with its own thread. It receives, hashes and writes a blob beside its place, and moves it there
only when its hash is its name. So a file at its place is verified, and until then the previous one stays.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hub.blob_hash import hasher
from mirror.head import AGAIN, SILENCE_S, Head, Lost, MirrorError
from mirror.wire import Wire, WireError

PIECE_BYTES = 1 << 20
TRIES = 3
"""A stream gives up after so many connections in a row that broke before one blob was complete."""


@dataclass(frozen=True)
class Blob:
    """One file to copy: its name in the hub cache, its size in bytes, and the path to put it at."""

    name: str
    size: int
    target: Path


class Fetch:
    """Copies blobs over several connections, in their order as far as the head already offers them.

    `on_bytes` gets the length of each piece as it arrives, and a negative number when bytes turn out damaged or lost;
    `on_verified` gets each blob that is verified and in place. Both are called in a stream's thread, one call at a
    time. A stream waits for what the head does not offer yet, at most `limit_s` after the last byte. A blob that
    arrives damaged is fetched once more; a stream that breaks connects again, and gives up at the third break in a row.
    """

    def __init__(
        self,
        head: Head,
        blobs: Sequence[Blob],
        *,
        limit_s: float = 3600,
        on_bytes: Callable[[int], None] = lambda _: None,
        on_verified: Callable[[Blob], None] = lambda _: None,
    ) -> None:
        self._head, self._limit_s = head, limit_s
        self._on_bytes, self._on_verified = on_bytes, on_verified
        self._telling = threading.Lock()
        # its holder asks the head for all that is left, so the others have nothing to ask for
        self._choosing = threading.Lock()
        self._left = list(blobs)
        self._last_byte = time.monotonic()
        self._guard = threading.Lock()
        self._wires: list[Wire] = []
        self._stopped = False

    def run(self, streams: int) -> None:
        """Raises MirrorError, and what a callback raises; then no partial file is left."""
        with ThreadPoolExecutor(streams, thread_name_prefix="mirror") as pool:
            running = [pool.submit(self._stream) for _ in range(min(streams, len(self._left)))]
            try:
                done, _ = wait(running, return_when=FIRST_EXCEPTION)
                for stream in done:
                    stream.result()
            finally:
                self._stop()

    def _stop(self) -> None:
        with self._guard:
            self._stopped = True
            for wire in self._wires:
                wire.shut()

    def _stream(self) -> None:
        tries = 0
        while True:
            with closing(self._head.connect(SILENCE_S)) as wire:
                with self._guard:
                    self._wires.append(wire)
                try:
                    while (chosen := self._choose(wire)) is not None:
                        self._copy(wire, *chosen)
                        tries = 0
                    return
                except Lost:
                    tries += 1
                    if self._stopped or tries == TRIES:
                        raise
                finally:
                    with self._guard:
                        self._wires.remove(wire)

    def _choose(self, wire: Wire) -> tuple[Blob, int] | None:
        """The next blob, whose bytes follow on the wire, and its size on the head; None when none is left."""
        with self._choosing:
            while self._left and not self._stopped:
                answer = self._head.ask(wire, {"ask": "blob", "of": [blob.name for blob in self._left]})
                for blob in self._left:
                    if answer.get("blob") == blob.name:
                        self._left.remove(blob)
                        return blob, answer["size"]
                waited = time.monotonic() - self._last_byte
                if waited > self._limit_s:
                    raise MirrorError(
                        f"the head at {self._head.fabric_ip} had nothing new for {waited:.0f} s, and this node still "
                        f"lacks {len(self._left)} files: look at the head's own progress, then {AGAIN}"
                    )
        return None

    def _copy(self, wire: Wire, blob: Blob, size: int) -> None:
        try:
            digest = self._receive(wire, blob, size)
            if digest != blob.name:
                self._tell(-blob.size)
                answer = self._head.ask(wire, {"ask": "blob", "of": [blob.name]})
                digest = self._receive(wire, blob, answer["size"])
        except Lost:
            # the next to ask takes it first; without the lock, which another stream may hold in a long wait
            self._left.insert(0, blob)
            raise
        if digest != blob.name:
            self._tell(-blob.size)
            raise MirrorError(
                f"{blob.target} arrived damaged twice (its hash is {digest}): the head's file, its memory or the "
                "cable is at fault: look at `dmesg` and `ethtool -S` of both ends, then run pulumi up again"
            )
        with self._telling:
            self._on_verified(blob)

    def _receive(self, wire: Wire, blob: Blob, size: int) -> str:
        """Receive a blob and put it at its place if its hash is its name; returns the hash of what arrived."""
        if size != blob.size:
            raise MirrorError(
                f"the head has {size:,} bytes of {blob.target} instead of {blob.size:,}: was it changed there after "
                "it was verified? Run pulumi up again"
            )
        part = blob.target.with_name(f"{blob.name}.spark-part")
        try:
            try:
                with part.open("wb", buffering=0) as file:
                    digest = self._write(wire, file, blob)
                    os.fdatasync(file.fileno())
                if digest == blob.name:
                    os.replace(part, blob.target)
            finally:
                part.unlink(missing_ok=True)
        except WireError as error:
            raise self._head.lost(error) from None
        except OSError as error:
            raise unwritable(blob, error) from None
        return digest

    def _write(self, wire: Wire, file: io.FileIO, blob: Blob) -> str:
        digest = hasher(blob.name, blob.size)
        if digest is None:
            raise ValueError(f"{blob.name} is not a hash, so nothing could verify what arrives")
        buffer, left = memoryview(bytearray(min(PIECE_BYTES, blob.size))), blob.size
        while left:
            try:
                piece = buffer[: wire.receive_into(buffer[:left])]
            except WireError:
                self._tell(left - blob.size)
                raise
            left -= len(piece)
            self._tell(len(piece))
            digest.update(piece)
            while piece:
                piece = piece[file.write(piece) :]
        return digest.hexdigest()

    def _tell(self, count: int) -> None:
        self._last_byte = time.monotonic()
        with self._telling:
            self._on_bytes(count)


def unwritable(blob: Blob, error: OSError) -> MirrorError:
    folder = blob.target.parent
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(folder).free
        return MirrorError(
            f"no room for {blob.target} of {blob.size:,} bytes: {free:,} are free there (the partial file is removed): "
            f"make room, then {AGAIN}"
        )
    return MirrorError(
        f"{blob.target} cannot be written: {error.strerror}: look at the disk and at who owns {folder}, then {AGAIN}"
    )
