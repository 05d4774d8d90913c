"""The head as another node sees it over the fabric: how to reach and ask it, and what to say when it is lost."""

from __future__ import annotations

import socket
import time
from typing import Any

from mirror.wire import Refused, Wire, WireError, introduce

SILENCE_S = 30
RETRY_S = 0.5
AGAIN = "run pulumi up again, it resumes with what is already on disk"


class MirrorError(Exception):
    """The copy cannot continue; the message says what was found, and the way out."""


class Lost(MirrorError):
    """An admitted connection broke; a new one may work."""


class Head:
    """One node's connection to the source; a context manager that closes it. Every method may raise MirrorError."""

    def __init__(self, fabric_ip: str, port: int, token: str, *, own_fabric_ip: str, limit_s: float = 30) -> None:
        """Connects, trying for `limit_s` while the fabric has no route to the head."""
        self.fabric_ip, self.port, self.own_fabric_ip = fabric_ip, port, own_fabric_ip
        self._token = token
        self._wire = self.connect(limit_s)

    def __enter__(self) -> Head:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def document(self, limit_s: float) -> Any:
        """The manifest, as soon as the head announces it within `limit_s`."""
        until = time.monotonic() + limit_s
        while "document" not in (answer := self._ask({"ask": "document"})):
            if time.monotonic() > until:
                raise MirrorError(
                    f"the head at {self.fabric_ip} announced no files within {limit_s:.0f} s: "
                    f"look at its own progress, then {AGAIN}"
                )
        return answer["document"]

    def finished(self) -> None:
        """Tell the source that this node has everything."""
        self._ask({"ask": "finished"})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer, over a new connection if this one was lost in the hours that it was idle."""
        try:
            return self.ask(self._wire, request)
        except Lost:
            self._wire.close()
            self._wire = self.connect(SILENCE_S)
            return self.ask(self._wire, request)

    def connect(self, limit_s: float) -> Wire:
        """A further connection, on which both ends have proven that they know the token."""
        connection = self._reach(time.monotonic() + limit_s)
        try:
            wire = Wire(connection, gone_after_s=SILENCE_S)
            wire.limit_silence(SILENCE_S)
            introduce(wire, self._token)
        except WireError as error:
            connection.close()
            if isinstance(error, Refused):
                raise MirrorError(
                    f"the head at {self.fabric_ip} and this node belong to different runs: {error}: run pulumi up again"
                ) from None
            raise MirrorError(
                f"the head at {self.fabric_ip} closed the connection at once: {error}: is {self.own_fabric_ip} "
                f"this node's fabric_ip in the stack file? The head admits no other. If so, {AGAIN}"
            ) from None
        return wire

    def _reach(self, until: float) -> socket.socket:
        to, own = (self.fabric_ip, self.port), (self.own_fabric_ip, 0)
        while True:
            try:
                # the source admits fabric addresses only
                return socket.create_connection(to, timeout=SILENCE_S, source_address=own)
            except OSError as error:
                # after a boot there may be no route or address yet; where the connection is refused, nobody listens
                if isinstance(error, ConnectionRefusedError) or time.monotonic() > until:
                    raise self.lost(error.strerror or error) from None
                time.sleep(RETRY_S)

    def ask(self, wire: Wire, request: dict[str, Any]) -> dict[str, Any]:
        """Raises Lost when the source is gone, MirrorError with the head's own message when it cannot continue."""
        try:
            wire.send(request)
            answer = wire.receive()
        except WireError as error:
            raise self.lost(error) from None
        if "failed" in answer:
            raise MirrorError(f"the head at {self.fabric_ip} cannot continue: {answer['failed']}")
        return answer

    def lost(self, why: object) -> Lost:
        return Lost(
            f"the copy from the head at {self.fabric_ip} port {self.port} broke off: {why}: "
            f"is the head up, and the cable plugged in? Then {AGAIN}"
        )
