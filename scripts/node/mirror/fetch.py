"""The streams of the mirror's copy: blobs from the head to their places, and none of them believed.

Each stream is a connection and a thread of its own that receives, hashes and writes a blob beside its place, and moves
it there only when its hash is its name, so a file at its place is whole and what was there before stays until then.
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
"""Connections in a row that may break off without one whole blob, before a stream gives up."""


@dataclass(frozen=True)
class Blob:
    """One file to copy: `name` as the hub cache names it, `size` in bytes, `target` where it shall lie."""

    name: str
    size: int
    target: Path


class Fetch:
    """One call of fetch: what its streams share."""

    def __init__(
        self,
        head: Head,
        blobs: Sequence[Blob],
        limit_s: float,
        on_bytes: Callable[[int], None],
        on_whole: Callable[[Blob], None],
    ) -> None:
        self._head, self._limit_s = head, limit_s
        self._on_bytes, self._on_whole = on_bytes, on_whole
        self._telling = threading.Lock()
        # who holds it asks for all that is left, so nobody else has anything to ask for
        self._choosing = threading.Lock()
        self._left = list(blobs)
        self._last_byte = time.monotonic()
        self._guard = threading.Lock()
        self._wires: list[Wire] = []
        self._stopped = False

    def run(self, streams: int) -> None:
        with ThreadPoolExecutor(streams, thread_name_prefix="mirror") as pool:
            running = [pool.submit(self._stream) for _ in range(streams)]
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
        """The next blob and the size that the head has of it, its bytes to be received; None when none is left."""
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
                        f"the head at {self._head.address} had nothing new for {waited:.0f} s, files still "
                        f"missing here: {len(self._left)}: look at its own progress, then {AGAIN}"
                    )
        return None

    def _copy(self, wire: Wire, blob: Blob, size: int) -> None:
        try:
            found = self._receive(wire, blob, size)
            if found != blob.name:
                self._tell(-blob.size)
                answer = self._head.ask(wire, {"ask": "blob", "of": [blob.name]})
                found = self._receive(wire, blob, answer["size"])
        except Lost:
            # first again, by whoever asks next; the lock is with one who may be waiting long for another blob
            self._left.insert(0, blob)
            raise
        if found != blob.name:
            self._tell(-blob.size)
            raise MirrorError(
                f"{blob.target} arrived damaged twice (its content is {found}): the head's file, its memory or the "
                "cable is at fault: look at `dmesg` and `ethtool -S` of both ends, then run pulumi up again"
            )
        with self._telling:
            self._on_whole(blob)

    def _receive(self, wire: Wire, blob: Blob, size: int) -> str:
        """Receive a blob and put it at its place if its hash is its name; returns the name its content deserves."""
        if size != blob.size:
            raise MirrorError(
                f"the head has {size:,} bytes of {blob.target} instead of {blob.size:,}: was it changed there since "
                "it was verified? Run pulumi up again"
            )
        part = blob.target.with_name(f"{blob.name}.spark-part")
        try:
            try:
                with part.open("wb", buffering=0) as file:
                    found = self._write(wire, file, blob)
                    os.fdatasync(file.fileno())
                if found == blob.name:
                    os.replace(part, blob.target)
            finally:
                part.unlink(missing_ok=True)
        except WireError as error:
            raise self._head.lost(error) from None
        except OSError as error:
            raise unwritable(blob, error) from None
        return found

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
            f"no room for {blob.target} of {blob.size:,} bytes: {free:,} are free there, the partial file is removed: "
            f"make room, then {AGAIN}"
        )
    return MirrorError(
        f"{blob.target} cannot be written: {error.strerror}: look at the disk and at who owns {folder}, then {AGAIN}"
    )
