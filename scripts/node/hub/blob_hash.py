"""The hash that names a blob of a hub cache: does a file's content match its name?

A name of 64 hex digits is the sha256 of the content (LFS), one of 40 is git's sha1 of `blob SIZE\\0` and the content.
Any other name says nothing about the content. hashlib releases the interpreter lock for each piece, so threads hash in
parallel.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

PIECE_BYTES = 1 << 20
HEX = re.compile(r"[0-9a-f]+")


class Hasher(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def hasher(blob: str, size: int) -> Hasher | None:
    """Feed it the blob's `size` bytes, and its hexdigest is the name; None for a name that is not a hash."""
    if not HEX.fullmatch(blob):
        return None
    if len(blob) == 64:
        return hashlib.sha256()
    if len(blob) == 40:
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return None


def digest_of(path: Path, blob: str, on_bytes: Callable[[int], None] = lambda _: None) -> str | None:
    """The hash of the file's content, of the same kind as `blob`; None if that name is not a hash.

    `on_bytes` gets the length of each piece as it is read. Raises OSError when the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        digest = hasher(blob, os.fstat(file.fileno()).st_size)
        if digest is None:
            return None
        piece = memoryview(bytearray(PIECE_BYTES))
        while count := file.readinto(piece):
            digest.update(piece[:count])
            on_bytes(count)
    return digest.hexdigest()
