"""The mirror's protocol on one connection: frames, and the proof that both ends know the token.

A frame is its length (4 bytes, big-endian) and one JSON object. The copy asks, the source answers at once or within
HEARTBEAT_S, so each end hears from the other every few seconds. A blob's bytes follow its frame as they are.

    source -> copy   {"nonce": N}                    the token never travels, only
    copy -> source   {"nonce": M, "proof": ...}      HMACs of both nonces with it, one
    source -> copy   {"proof": ...}                  for each direction; or {"refused": true}

    {"ask": "document"}           {"document": {...}}                   once it is announced
    {"ask": "blob", "of": [...]}  {"blob": name, "size": n}, n bytes    the first of them that is offered
    {"ask": "finished"}           {"noted": true}
                                  {"wait": true}      none of it is offered yet: ask again
                                  {"failed": reason}  and none will be
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import socket
import struct
from typing import Any

HEARTBEAT_S = 3.0
HANDSHAKE_BYTES = 1024
FRAME_BYTES = 16 << 20
LENGTH = struct.Struct(">I")
NONCE = re.compile(r"[0-9a-f]{64}")


class WireError(Exception):
    """The other end is gone or silent, or sent something else than a frame; the message says which."""


class Refused(WireError):
    """The other end does not know the token."""


def pack(message: dict[str, Any]) -> bytes:
    """Raises TypeError or ValueError for what JSON cannot express, or what is longer than a frame."""
    body = json.dumps(message, allow_nan=False).encode()
    if len(body) > FRAME_BYTES:
        raise ValueError(f"a message of {len(body):,} bytes is longer than a frame, {FRAME_BYTES:,}")
    return LENGTH.pack(len(body)) + body


class Wire:
    """One connection. Its errors are all WireErrors, so an OSError is about a file."""

    def __init__(self, connection: socket.socket, *, gone_after_s: float) -> None:
        """`gone_after_s`: how long the other machine may leave segments and probes unanswered."""
        self._connection = connection
        connection.settimeout(None)
        for level, option, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(gone_after_s * 1000)),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        ):
            self._set(level, option, value)

    def limit_silence(self, seconds: float) -> None:
        """How long a receive waits for the next byte; 0: without limit."""
        # Python's own timeout would make the socket non-blocking, and then MSG_WAITALL does not wait
        self._set(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))

    def _set(self, level: int, option: int, value: int | bytes) -> None:
        try:
            self._connection.setsockopt(level, option, value)
        except OSError as error:  # it was reset in the meantime
            raise WireError(_reason(error)) from None

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(pack(message))
        except OSError as error:
            raise WireError(_reason(error)) from None

    def receive_into(self, piece: memoryview) -> int:
        """Fill the piece, or as much of it as arrives within the limit on silence; at least one byte."""
        try:
            count = self._connection.recv_into(piece, 0, socket.MSG_WAITALL)
        except OSError as error:
            raise WireError(_reason(error)) from None
        if not count and len(piece):
            raise WireError("it closed the connection")
        return count

    def receive(self, most: int = FRAME_BYTES) -> dict[str, Any]:
        """The next frame's object. Refuses a frame of more than `most` bytes without reading it."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if length > most:
            raise WireError(f"it sent a frame of {length:,} bytes, more than {most:,}")
        try:
            message = json.loads(self._exactly(length))
        except (ValueError, RecursionError):
            raise WireError("it sent a frame that is not JSON") from None
        if not isinstance(message, dict):
            raise WireError("it sent a frame that is not a JSON object")
        return message

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        left = memoryview(data)
        while left:
            left = left[self.receive_into(left) :]
        return bytes(data)

    def shut(self) -> None:
        """End the connection, also for a thread that is waiting on it."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # no longer connected
            return

    def close(self) -> None:
        self._connection.close()


def _reason(error: OSError) -> str:
    if isinstance(error, BlockingIOError):
        return "it was silent for too long"
    return error.strerror or str(error)


def admit(wire: Wire, token: str) -> bool:
    """The source's half of the handshake: False when the other end does not know the token. Raises WireError."""
    ours = secrets.token_hex(32)
    wire.send({"nonce": ours})
    answer = wire.receive(HANDSHAKE_BYTES)
    theirs = _nonce(answer)
    if not _same(answer.get("proof"), _proof(token, "copy", ours, theirs)):
        wire.send({"refused": True})
        return False
    wire.send({"proof": _proof(token, "source", ours, theirs)})
    return True


def introduce(wire: Wire, token: str) -> None:
    """The copy's half. Raises Refused when either end does not know the token, WireError when the source is gone."""
    theirs = _nonce(wire.receive(HANDSHAKE_BYTES))
    ours = secrets.token_hex(32)
    wire.send({"nonce": ours, "proof": _proof(token, "copy", theirs, ours)})
    answer = wire.receive(HANDSHAKE_BYTES)
    if answer.get("refused"):
        raise Refused("it refused this node's token")
    if not _same(answer.get("proof"), _proof(token, "source", theirs, ours)):
        raise Refused("it could not prove that it knows the token")


def _nonce(message: dict[str, Any]) -> str:
    nonce = message.get("nonce")
    if not isinstance(nonce, str) or not NONCE.fullmatch(nonce):
        raise WireError("it does not speak the mirror's protocol")
    return nonce


def _proof(token: str, role: str, source_nonce: str, copy_nonce: str) -> str:
    # the role keeps either end from sending the other's proof back
    text = f"spark mirror {role} {source_nonce} {copy_nonce}"
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def _same(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode())
