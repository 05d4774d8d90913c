"""The two machines together: up, down, the states to come back to, power and reboots."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import access, boot, fabric, host, image
from lab.machine import Machine
from lab.place import NODES, PORT_SHIFT, SERVICES, Node, Place
from lab.report import LabError, each, elapsed_s, say

CLEAN = "clean"
SUSPENDED = "suspended"
RESERVED = (CLEAN, SUSPENDED)

LOCK_LIMIT_S = 900


@dataclass(frozen=True)
class Pair:
    """Both machines of one lab, on one accelerator."""

    place: Place
    machines: tuple[Machine, ...]

    def machine(self, node: Node) -> Machine:
        return self.machines[NODES.index(node)]

    @property
    def running(self) -> tuple[Machine, ...]:
        return tuple(machine for machine in self.machines if machine.pid() is not None)

    @property
    def states(self) -> set[str]:
        """Names of the states that both machines can come back to."""
        return set.intersection(*(machine.states() for machine in self.machines))


def find(place: Place) -> Pair:
    """The lab's pair: of the accelerator and image that its machines run with, else of those a start would use."""
    probe = [Machine(place, node, "kvm", Path()) for node in NODES]
    accelerator = next(filter(None, (machine.running_accelerator() for machine in probe)), None) or host.accelerator()
    head = Machine(place, NODES[0], accelerator, Path())
    return of(place, accelerator, head.image_in_use() or image.folder())


def of(place: Place, accelerator: str, folder: Path) -> Pair:
    """The pair with a given accelerator and image."""
    return Pair(place, tuple(Machine(place, node, accelerator, folder) for node in NODES))


@contextmanager
def locked(place: Place) -> Iterator[None]:
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
        yield


def answers(machine: Machine) -> bool:
    """True when the machine runs and Docker answers user spark on it, now."""
    return machine.pid() is not None and boot.docker_answers(machine, limit_s=30)


def up(place: Place, *, fresh: bool = False) -> Pair:
    """Both machines answer ssh and Docker, and the services run; whatever is there already stays."""
    host.require_programs()
    access.prepare(place)
    services = None if _services_run(place) else _start_services(place)
    pair = find(place)
    if fresh:
        forget(pair)
    if len(pair.running) == len(NODES) and all(each(answers, pair.machines)):
        say(f"both machines are up ({pair.machines[0].accelerator})")
    else:
        pair = _start(place, pair)
    if services is not None:
        _join(services)
    return pair


def _start(place: Place, pair: Pair) -> Pair:
    accelerator = pair.machines[0].accelerator
    if not all(machine.tags() for machine in pair.machines):
        # without any kept state nobody ever got past a first `up` on these disks
        forget(pair)
        pair = of(place, accelerator, image.ensure(accelerator))
        _first_start(pair)
        return pair
    if not (pair.machines[0].image / "base.qcow2").exists():
        raise LabError(
            f"the image that the machines' disks lie on is gone from the cache: {pair.machines[0].image}\n"
            "  way out: lab/lab up --fresh makes new machines (what they hold is lost)"
        )
    if pair.machines[0].image != image.folder():
        say("the inputs of the image changed since these machines were made; `lab/lab up --fresh` makes new ones")
    suspended = {machine.node for machine in pair.machines if SUSPENDED in machine.states()}
    for machine in pair.machines:
        if machine.pid() is None:
            how = "resuming" if machine.node in suspended else "booting"
            say(f"{machine.node.name}: {how} ({accelerator})")
    started = [machine for machine in pair.machines if machine.pid() is None]
    each(lambda machine: machine.start(SUSPENDED if machine.node in suspended else None), started)
    for machine in started:
        if machine.node in suspended:
            machine.monitor(f"delvm {machine.tag(SUSPENDED)}")
    fabric.apply_cable(place, pair.machines)
    each(lambda machine: boot.wait_ready(machine, restored=machine.node in suspended), pair.machines)
    return pair


def _first_start(pair: Pair) -> None:
    for machine in pair.machines:
        say(f"{machine.node.name}: new disk, booting ({machine.accelerator})")
        machine.make_disk()
    pair.place.cable.unlink(missing_ok=True)
    each(Machine.start, pair.machines)
    fabric.apply_cable(pair.place, pair.machines)
    each(boot.wait_ready, pair.machines)
    save(pair, CLEAN)


def save(pair: Pair, name: str) -> None:
    """Keep the state of both machines, memory and disk, under `name`; a state of that name is replaced."""
    if len(pair.running) != len(NODES):
        off = [machine.node.name for machine in pair.machines if machine.pid() is None]
        raise LabError(f"a state is kept of both running machines, and {' and '.join(off)} is off: lab/lab up first")
    began = elapsed_s()
    access.close_connections(pair.place)
    each(lambda machine: machine.qmp("stop"), pair.machines)
    try:
        each(lambda machine: machine.monitor(f"savevm {machine.tag(name)}"), pair.machines)
    finally:
        each(lambda machine: machine.qmp("cont"), pair.machines)
    say(f"state `{name}` kept in {elapsed_s() - began:.1f} s; `lab/lab reset {name}` comes back to it")


def restore(pair: Pair, name: str) -> None:
    """Both machines as they were when `name` was kept, with fresh processes, so that no old connection survives."""
    if name not in pair.states:
        known = ", ".join(sorted(pair.states - {SUSPENDED})) or "none"
        raise LabError(
            f"no state `{name}` that these machines can come back to; kept are: {known}\n"
            "  way out: lab/lab snapshot NAME keeps one; lab/lab up --fresh makes new machines and keeps `clean`"
            " (states of another QEMU or other virtual hardware do not count)"
        )
    access.prepare(pair.place)
    access.close_connections(pair.place)
    each(Machine.kill, pair.machines)
    pair.place.faults.unlink(missing_ok=True)
    pair.place.cable.unlink(missing_ok=True)
    each(lambda machine: machine.start(name), pair.machines)
    for machine in pair.machines:
        if SUSPENDED in machine.states():
            machine.monitor(f"delvm {machine.tag(SUSPENDED)}")
    fabric.apply_cable(pair.place, pair.machines)
    each(lambda machine: boot.wait_ready(machine, restored=True), pair.machines)


def down(pair: Pair, *, discard: bool = False) -> None:
    """Machines off, their state kept for the next `up` unless it is to be discarded; services stopped."""
    if discard:
        forget(pair)
    elif pair.place.ssh_config.exists():
        access.close_connections(pair.place)

    def suspend(machine: Machine) -> None:
        began = elapsed_s()
        if machine.pid() is None:
            say(f"{machine.node.name}: is off")
            return
        machine.qmp("stop")
        machine.monitor(f"savevm {machine.tag(SUSPENDED)}")
        machine.kill()
        say(f"{machine.node.name}: suspended in {elapsed_s() - began:.1f} s")

    each(suspend, pair.machines)
    if SERVICES.exists() and not PORT_SHIFT:
        _services(pair.place, "stop", limit_s=60)


def forget(pair: Pair) -> None:
    """End the machines and remove their disks, with every state in them."""
    if pair.place.ssh_config.exists():
        access.close_connections(pair.place)
    for machine in pair.machines:
        machine.kill()
        machine.disk.unlink(missing_ok=True)


def power_cut(pair: Pair, node: Node) -> None:
    """The machine loses its power, now; its peer loses the fabric's carrier."""
    if pair.machine(node).pid() is None:
        raise LabError(f"{node.name} is off already")
    pair.machine(node).kill()
    fabric.apply_cable(pair.place, pair.machines)
    access.close_connections(pair.place, (node,))
    say(f"{node.name}: power cut")


def power_on(pair: Pair, node: Node) -> None:
    """Boot a machine that is off, from its disk as it is."""
    machine = pair.machine(node)
    if not machine.disk.exists():
        raise LabError(f"{node.name} was never started: lab/lab up")
    if machine.pid() is None:
        say(f"{node.name}: booting ({machine.accelerator})")
        machine.start()
        fabric.apply_cable(pair.place, pair.machines)
    boot.wait_ready(machine)


def reboot(pair: Pair, node: Node) -> None:
    """Clean reboot of the guest; returns when it is back with Docker."""
    machine = pair.machine(node)
    if machine.pid() is None:
        raise LabError(f"{node.name} is off: lab/lab power-on {node.name}")
    before = boot.wait_ssh(machine)
    access.run(pair.place, node, ["systemctl", "reboot"], limit_s=20)
    access.close_connections(pair.place, (node,))
    say(f"{node.name}: rebooting")
    boot.wait_ready(machine, unlike_boot=before)


def _services(place: Place, verb: str, limit_s: float) -> bool:
    command = [str(SERVICES), verb]
    environment = os.environ | {"SPARK_LAB": str(place.root)}
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise LabError(f"lab/services {verb}: not within {limit_s:.0f} s") from None
    return done.returncode == 0


def _services_run(place: Place) -> bool:
    """True when registry and hub run, and also when this checkout has none to run."""
    if PORT_SHIFT:
        return True
    if not SERVICES.exists():
        say("lab/services does not exist in this checkout: no registry, no hub")
        return True
    done = subprocess.run(
        [str(SERVICES), "status"],
        env=os.environ | {"SPARK_LAB": str(place.root)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode == 0


def _start_services(place: Place) -> subprocess.Popen[bytes]:
    say("services: starting registry and hub beside the machines")
    environment = os.environ | {"SPARK_LAB": str(place.root)}
    return subprocess.Popen([str(SERVICES), "start"], env=environment, stdin=subprocess.DEVNULL)


def _join(services: subprocess.Popen[bytes], limit_s: float = 1800) -> None:
    try:
        code = services.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        services.terminate()
        raise LabError(f"lab/services start: not within {limit_s:.0f} s") from None
    if code != 0:
        raise LabError(f"lab/services start ended with {code}; its own words are above. The machines stay up")
    say("services: registry and hub run")
