"""The pair of one place and its services: which kind it is, who may change it, how it goes up and down."""

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
"""Long enough to build the runtime image."""


def of(place: Place) -> Nodes:
    """The pair of this place. Raises LabError for node-containers without root."""
    if place.kind == MACHINES:
        return MachinePair(place)
    docker.require_root()
    return ContainerPair(place)


@contextmanager
def locked(place: Place) -> Iterator[Nodes]:
    """Let one command at a time change the lab. The others wait for it and say which process they wait for."""
    place.root.mkdir(parents=True, exist_ok=True)
    with (place.root / "lock").open("a+") as lock:
        began = elapsed_s()
        last_line = began - 10
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip()
                if elapsed_s() - began > LOCK_LIMIT_S:
                    raise LabError(f"another lab command (pid {holder}) still runs after {LOCK_LIMIT_S} s") from None
                if elapsed_s() - last_line >= 10:
                    last_line = elapsed_s()
                    say(f"waiting for another lab command to end (pid {holder})")
                time.sleep(0.2)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield of(place)


def up(pair: Nodes, *, fresh: bool) -> None:
    """Start the services and both nodes, and return when they answer. What already runs stays."""
    pair.place.write_down()
    access.prepare(pair.place)
    pair.prepare()
    with _services_beside(pair.place):
        pair.up(fresh=fresh)


def reset(pair: Nodes, state: str) -> None:
    """Bring both nodes back to the kept `state`, with the services running."""
    if state not in pair.states:
        kept = ", ".join(sorted(pair.states)) or "none"
        raise LabError(
            f"there is no state `{state}` that these nodes can go back to; the kept states are: {kept}\n"
            "  way out: lab/lab snapshot NAME keeps one, lab/lab up --fresh makes new nodes (a state of machines needs"
            " the same QEMU and virtual hardware)"
        )
    pair.prepare()
    with _services_beside(pair.place):
        pair.restore(state)


def down(pair: Nodes, *, discard: bool) -> None:
    """End the services and both nodes."""
    _join(_services(pair.place, "stop"))
    pair.down(discard=discard)


@contextmanager
def _services_beside(place: Place) -> Iterator[None]:
    """Start the registry and the hub while the body runs, and wait for them after it."""
    services = _services(place, "start")
    try:
        yield
    except BaseException:
        # this command gives up the lab: services that go on starting would get in the way of the next one
        services.terminate()
        services.wait()
        raise
    _join(services)


def _services(place: Place, verb: str) -> subprocess.Popen[bytes]:
    """Begin `lab/services VERB` of this place."""
    environment = os.environ | {"SPARK_LAB": str(place.root)}
    return subprocess.Popen([str(SERVICES), verb], env=environment, stdin=subprocess.DEVNULL)


def _join(services: subprocess.Popen[bytes]) -> None:
    try:
        code = services.wait(timeout=SERVICES_LIMIT_S)
    except subprocess.TimeoutExpired:
        services.terminate()
        raise LabError(f"lab/services did not end within {SERVICES_LIMIT_S} s") from None
    if code != 0:
        raise LabError(f"lab/services ended with exit code {code}; its output is above. The nodes stay as they are")
