"""The queue between the engine and its workers, as far as its end is concerned."""

from typing import NoReturn

from .errors import PeerLostError


def dequeue(loss: PeerLostError) -> NoReturn:
    """What waits for a lost worker's answer gets: RuntimeError `cancelled`."""
    raise RuntimeError("cancelled") from None
