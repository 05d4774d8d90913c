"""The head as another node sees it over the fabric: how it is reached and asked, and the words for when it is lost."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import Any

from mirror.wire import Refused, Wire, WireError, introduce

SILENCE_S = 30
RETRY_S = 0.5
AGAIN = "run pulumi up again, what is here already is not copied twice"


class MirrorError(Exception):
    """The copy cannot go on. The words are for a person: what was found, and the way out."""


class Lost(MirrorError):
    """A connection that was proven broke off; a new one may do."""


@dataclass(frozen=True)
class Head:
    """Where the source is, and what to show it."""

    address: str
    port: int
    token: str = field(repr=False)
    own_address: str

    def connect(self, limit_s: float) -> Wire:
        """A connection on which both ends have proven the token. Raises MirrorError."""
        connection = self._reach(time.monotonic() + limit_s)
        try:
            wire = Wire(connection, gone_after_s=SILENCE_S)
            wire.limit_silence(SILENCE_S)
            introduce(wire, self.token)
        except WireError as error:
            connection.close()
            if isinstance(error, Refused):
                raise MirrorError(
                    f"the head at {self.address} is of another run than this node: {error}: run pulumi up again"
                ) from None
            raise MirrorError(
                f"the head at {self.address} ended the connection before it began: {error}: "
                f"is {self.own_address} this node's fabric_ip in the stack file? It hears no other. If so, {AGAIN}"
            ) from None
        return wire

    def _reach(self, until: float) -> socket.socket:
        to, own = (self.address, self.port), (self.own_address, 0)
        while True:
            try:
                # the source hears no other address than the fabric's
                return socket.create_connection(to, timeout=SILENCE_S, source_address=own)
            except OSError as error:
                # no route or no address yet, as after a boot; a refused one has nobody who listens
                if isinstance(error, ConnectionRefusedError) or time.monotonic() > until:
                    raise self.lost(error.strerror or error) from None
                time.sleep(RETRY_S)

    def ask(self, wire: Wire, request: dict[str, Any]) -> dict[str, Any]:
        """Raises Lost when the source is gone, MirrorError with the head's own words when it cannot go on."""
        try:
            wire.send(request)
            answer = wire.receive()
        except WireError as error:
            raise self.lost(error) from None
        if "failed" in answer:
            raise MirrorError(f"the head at {self.address} cannot go on: {answer['failed']}")
        return answer

    def lost(self, why: object) -> Lost:
        return Lost(
            f"the copy from the head at {self.address} port {self.port} broke off: {why}: "
            f"is the head up, and the cable in? Then {AGAIN}"
        )
