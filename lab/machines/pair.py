"""A pair of virtual machines with kernels of their own: QEMU with KVM if the processor offers it, else emulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lab import access
from lab.boot import docker_answers
from lab.machines import host, image
from lab.machines.machine import FABRIC_PORTS, Machine
from lab.nodes import CLEAN
from lab.place import NODES, Node, Place
from lab.report import LabError, each, elapsed_s, say

SUSPENDED = "suspended"


@dataclass(frozen=True)
class MachinePair:
    """See lab.nodes.Nodes. `down` suspends both machines, and the next `up` resumes them."""

    place: Place

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """Both machines, with the accelerator and image that they run with, or else that a start would use."""
        probe = [Machine(self.place, node, "kvm", Path()) for node in NODES]
        running = next(filter(None, (machine.running_accelerator() for machine in probe)), None)
        accelerator = running or host.accelerator()
        disk = Machine(self.place, NODES[0], accelerator, Path())
        return self._of(accelerator, disk.image_in_use() or image.folder())

    def _of(self, accelerator: str, folder: Path) -> tuple[Machine, ...]:
        return tuple(Machine(self.place, node, accelerator, folder) for node in NODES)

    def machine(self, node: Node) -> Machine:
        return self.machines[NODES.index(node)]

    @property
    def about(self) -> str:
        return f"machines ({self.machines[0].accelerator})"

    @property
    def states(self) -> set[str]:
        return set.intersection(*(machine.states() for machine in self.machines)) - {SUSPENDED}

    def runs(self, node: Node) -> bool:
        return self.machine(node).pid() is not None

    def power(self, node: Node) -> str:
        machine = self.machine(node)
        if pid := machine.pid():
            return f"on (pid {pid})"
        return "suspended" if SUSPENDED in machine.states() else "off" if machine.disk.exists() else "not made"

    def prepare(self) -> None:
        host.require_programs()

    def up(self, *, fresh: bool) -> None:
        if fresh:
            self._forget()
        running = [machine for machine in self.machines if machine.pid() is not None]
        complete = CLEAN in self.states and len(running) == len(NODES)
        if complete and all(each(lambda machine: docker_answers(machine.place, machine.node, 30), running)):
            say(f"both machines are up ({running[0].accelerator})")
        elif not all(machine.tags() for machine in self.machines):
            # without any kept state, no first `up` on these disks ever finished
            self._forget()
            self._first_start()
        else:
            self._resume()

    def _first_start(self) -> None:
        accelerator = self.machines[0].accelerator
        # replace the cached property: the machines now use the image that was just made
        self.__dict__["machines"] = self._of(accelerator, image.ensure(accelerator))
        for machine in self.machines:
            say(f"{machine.node.name}: new disk, booting ({machine.accelerator})")
            machine.make_disk()
        self.place.cable.unlink(missing_ok=True)
        each(Machine.start, self.machines)
        self.apply_cable()
        each(lambda machine: machine.boot().wait_ready(), self.machines)
        self.save(CLEAN)

    def _resume(self) -> None:
        base = self.machines[0].image
        if not (base / "base.qcow2").exists():
            raise LabError(
                f"the image below the machines' disks is gone from the cache: {base}\n"
                "  way out: lab/lab up --fresh makes new machines (what the old ones hold is lost)"
            )
        if base != image.folder():
            say("the image's inputs changed after these machines were made; `lab/lab up --fresh` makes new ones")
        suspended = {machine.node for machine in self.machines if SUSPENDED in machine.states()}
        started = [machine for machine in self.machines if machine.pid() is None]
        for machine in started:
            how = "resuming" if machine.node in suspended else "booting"
            say(f"{machine.node.name}: {how} ({machine.accelerator})")
        each(lambda machine: machine.start(SUSPENDED if machine.node in suspended else None), started)
        self._end_suspension(started)
        self.apply_cable()
        each(lambda machine: machine.boot().wait_ready(restored=machine.node in suspended), self.machines)

    def save(self, state: str) -> None:
        """Keep memory and disk. A state of the same name is replaced."""
        if off := [node.name for node in NODES if not self.runs(node)]:
            raise LabError(f"a snapshot needs both machines running, and {' and '.join(off)} is off: lab/lab up first")
        began = elapsed_s()
        access.close_connections(self.place)
        each(lambda machine: machine.qmp("stop"), self.machines)
        try:
            each(lambda machine: machine.monitor(f"savevm {machine.tag(state)}"), self.machines)
        finally:
            each(lambda machine: machine.qmp("cont"), self.machines)
        say(f"kept state `{state}` in {elapsed_s() - began:.1f} s; `lab/lab reset {state}` brings it back")

    def restore(self, state: str) -> None:
        """In new processes, so that no old connection survives."""
        access.prepare(self.place)
        access.close_connections(self.place)
        each(Machine.kill, self.machines)
        self.place.faults.unlink(missing_ok=True)
        self.place.cable.unlink(missing_ok=True)
        each(lambda machine: machine.start(state), self.machines)
        self._end_suspension(self.machines)
        self.apply_cable()
        each(lambda machine: machine.boot().wait_ready(restored=True), self.machines)

    def down(self, *, discard: bool) -> None:
        if discard:
            self._forget()
            return
        access.close_connections(self.place)
        each(self._suspend, self.machines)

    def _suspend(self, machine: Machine) -> None:
        began = elapsed_s()
        if machine.pid() is None:
            say(f"{machine.node.name}: is off already")
            return
        machine.qmp("stop")
        machine.monitor(f"savevm {machine.tag(SUSPENDED)}")
        machine.kill()
        say(f"{machine.node.name}: suspended in {elapsed_s() - began:.1f} s")

    def _end_suspension(self, machines: list[Machine] | tuple[Machine, ...]) -> None:
        for machine in machines:
            if SUSPENDED in machine.states():
                machine.monitor(f"delvm {machine.tag(SUSPENDED)}")

    def _forget(self) -> None:
        """End the machines and remove their disks, with every state in them."""
        access.close_connections(self.place)
        for machine in self.machines:
            machine.kill()
            machine.disk.unlink(missing_ok=True)

    def power_cut(self, node: Node) -> None:
        if not self.runs(node):
            raise LabError(f"{node.name} is off already")
        self.machine(node).kill()
        self.apply_cable()
        access.close_connections(self.place, (node,))
        say(f"{node.name}: power is cut")

    def power_on(self, node: Node) -> None:
        machine = self.machine(node)
        if not machine.disk.exists():
            raise LabError(f"{node.name} was never started: lab/lab up")
        if machine.pid() is None:
            say(f"{node.name}: booting ({machine.accelerator})")
            machine.start()
            self.apply_cable()
        machine.boot().wait_ready()

    def reboot(self, node: Node) -> None:
        if not self.runs(node):
            raise LabError(f"{node.name} is off: lab/lab power-on {node.name}")
        boot = self.machine(node).boot()
        before = boot.wait_ssh()
        access.run(self.place, node, ["systemctl", "reboot"], limit_s=20)
        access.close_connections(self.place, (node,))
        say(f"{node.name}: rebooting")
        boot.wait_ready(unlike_boot=before)

    def apply_cable(self) -> None:
        running = [machine for machine in self.machines if machine.pid() is not None]
        up = not self.place.cable.exists() and len(running) == len(NODES)
        for machine in running:
            for port in FABRIC_PORTS:
                machine.qmp("set_link", name=f"fabric{port}", up=up)
