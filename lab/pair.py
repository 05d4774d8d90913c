"""The pair of one place with its services: which kind of nodes it is, who may change it, and its way up and down."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lab import access
from lab.containers import docker
from lab.containers.pair import ContainerPair
from lab.machines.pair import MachinePair
from lab.nodes import Nodes
from lab.place import MACHINES, SERVICES, Place
from lab.report import LabError, elapsed_s, say

LOCK_LIMIT_S = 900
SERVICES_LIMIT_S = 1800
"""The runtime image may have to be built."""


def of(place: Place) -> Nodes:
    """The pair of this place. LabError for node-containers without root."""
    if place.kind == MACHINES:
        return MachinePair(place)
    docker.require_root()
    return ContainerPair(place)


@contextmanager
def locked(place: Place) -> Iterator[Nodes]:
    """One command at a time may change the lab; the others wait for it, and say for which process."""
    place.root.mkdir(parents=True, exist_ok=True)
    with (place.root / "lock").open("a+") as lock:
        began = elapsed_s()
        spoke = began - 10
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip()
                if elapsed_s() - began > LOCK_LIMIT_S:
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
    with _services_beside(pair.place):
        pair.up(fresh=fresh)


def reset(pair: Nodes, state: str) -> None:
    """Both nodes as they were when `state` was kept, and the services run."""
    if state not in pair.states:
        kept = ", ".join(sorted(pair.states)) or "none"
        raise LabError(
            f"no state `{state}` that these nodes can come back to; kept are: {kept}\n"
            "  way out: lab/lab snapshot NAME keeps one, lab/lab up --fresh makes new nodes (a state of machines counts"
            " only under the same QEMU and virtual hardware)"
        )
    pair.prepare()
    with _services_beside(pair.place):
        pair.restore(state)


def down(pair: Nodes, *, discard: bool) -> None:
    """Nodes and services end."""
    _join(_services(pair.place, "stop"))
    pair.down(discard=discard)


@contextmanager
def _services_beside(place: Place) -> Iterator[None]:
    """Registry and hub start while something else is done, and run when both have ended."""
    services = _services(place, "start")
    try:
        yield
    except BaseException:
        # nobody holds the lab any more: what goes on alone would undo the next command
        services.terminate()
        services.wait()
        raise
    _join(services)


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
