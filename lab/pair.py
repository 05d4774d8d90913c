"""The pair of one place with its services: which kind of nodes it is, who may change it, and its way up and down."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lab import access
from lab.containers.pair import ContainerPair
from lab.machines.pair import MachinePair
from lab.nodes import Nodes
from lab.place import MACHINES, SERVICES, Place
from lab.report import LabError, elapsed_s, say

LOCK_LIMIT_S = 900
SERVICES_LIMIT_S = 1800
"""The runtime image may have to be built."""


def of(place: Place) -> Nodes:
    """The pair of this place."""
    return MachinePair(place) if place.kind == MACHINES else ContainerPair(place)


@contextmanager
def locked(place: Place) -> Iterator[Nodes]:
    """One command at a time may change the lab; the others wait for it, and say for which process."""
    place.root.mkdir(parents=True, exist_ok=True)
    with (place.root / "lock").open("a+") as lock:
        spoke = -10.0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip()
                if elapsed_s() > LOCK_LIMIT_S:
                    raise LabError(f"another lab command (pid {holder}) held the lab for {LOCK_LIMIT_S} s") from None
                if elapsed_s() - spoke >= 10:
                    spoke = elapsed_s()
                    say(f"waiting for another lab command (pid {holder}) to end")
                time.sleep(0.2)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield of(place)


def up(pair: Nodes, *, fresh: bool) -> None:
    """Both nodes answer ssh and Docker, and the services run; whatever is there already stays."""
    pair.place.write_down()
    access.prepare(pair.place)
    pair.prepare()
    services = _services(pair.place, "start")
    pair.up(fresh=fresh)
    _join(services)


def down(pair: Nodes, *, discard: bool) -> None:
    """Nodes and services end."""
    _join(_services(pair.place, "stop"))
    pair.down(discard=discard)


def _services(place: Place, verb: str) -> subprocess.Popen[bytes]:
    """`lab/services VERB` of this place, beside what else is done."""
    environment = os.environ | {"SPARK_LAB": str(place.root)}
    return subprocess.Popen([str(SERVICES), verb], env=environment, stdin=subprocess.DEVNULL)


def _join(services: subprocess.Popen[bytes]) -> None:
    try:
        code = services.wait(timeout=SERVICES_LIMIT_S)
    except subprocess.TimeoutExpired:
        services.terminate()
        raise LabError(f"lab/services: not within {SERVICES_LIMIT_S} s") from None
    if code != 0:
        raise LabError(f"lab/services ended with {code}; its own words are above. The nodes stay as they are")
