"""A pair of node-containers: each a Debian system with its own sshd and dockerd, on a Docker daemon of this host."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from lab import access
from lab.boot import Boot
from lab.containers import cable, docker, image
from lab.containers.docker import LABEL, Docker
from lab.nodes import CLEAN
from lab.place import CHECKOUT, NODE_ROOT, Node, Place
from lab.report import LabError, each, elapsed_s, say

SOURCE = CHECKOUT / "lab" / "containers"
CABLE = "cable"
SHUTDOWN_S = 30
"""The limit of a node's clean shutdown, in which its dockerd waits for the ranks."""

# Not --privileged: it fails if the daemon itself lacks a capability ("unable to apply caps"). Some hosts lack
# SYS_RESOURCE, and no part of a node needs it. SYS_TIME is dropped because the clock is this host's.
PRIVILEGES = (
    "--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--cap-drop", "SYS_TIME",
    "--device-cgroup-rule", "c *:* rwm", "--device-cgroup-rule", "b *:* rwm",
    "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
    "--security-opt", "systempaths=unconfined",
)  # fmt: skip


@dataclass(frozen=True)
class ContainerPair:
    """See lab.nodes.Nodes. `down` removes both nodes with everything in them, since new ones take seconds."""

    place: Place

    @property
    def about(self) -> str:
        if (daemon := docker.find()) is None:
            return "containers, no Docker daemon"
        whose = "the lab's own" if daemon == docker.OwnDaemon().docker else "this host's"
        return f"containers on {whose} Docker {daemon.run('version', '--format', '{{.Server.Version}}')}"

    @property
    def states(self) -> set[str]:
        """`clean` can always be made again; every other state is a pair of images that `save` made."""
        if (daemon := docker.find()) is None:
            return {CLEAN}
        tags = daemon.run("image", "ls", "--filter", f"label={LABEL}={self.place.identity}", "--format", "{{.Tag}}")
        names = [tag.rpartition("-")[0] for tag in tags.split() if tag != "<none>"]
        return {CLEAN} | {name for name in names if names.count(name) == len(self.place.nodes)}

    def name(self, part: str) -> str:
        """The name of one of our containers or volumes: a node's, or the cable's."""
        return f"spark-lab-{self.place.identity}-{part}"

    def process(self, part: str) -> int | None:
        """The pid on this host of process 1 in one of our containers; None if it is not running."""
        if (daemon := docker.find()) is None:
            return None
        done = daemon.call("container", "inspect", "--format", "{{.State.Pid}}", self.name(part))
        return int(done.stdout) or None if done.returncode == 0 else None

    def runs(self, node: Node) -> bool:
        return self.process(node.name) is not None

    def power(self, node: Node) -> str:
        if pid := self.process(node.name):
            return f"on (pid {pid})"
        return "off" if self._exists(node.name) else "not made"

    def prepare(self) -> None:
        with docker.held():
            daemon = docker.ensure()
            if self.name("net") not in daemon.ours("network", self.place.identity):
                self._make_network(daemon)

    def _make_network(self, daemon: Docker) -> None:
        # a device's name has at most 15 characters
        bridge = f"sparklab{self.place.number:x}-{self.place.identity[:5]}"
        # Docker would use an existing bridge of that name, and does not check who else has its addresses
        cable.remove_leftover_bridge(bridge)
        cable.refuse_taken(self.place.subnet)
        # internal: the nodes reach each other and this host, and nothing beyond
        options = ["--internal", "--subnet", self.place.subnet, "--gateway", self.place.control, *self._labels()]
        options += ["--opt", f"com.docker.network.bridge.name={bridge}"]
        done = daemon.call("network", "create", *options, self.name("net"))
        if done.returncode != 0:
            raise LabError(
                f"cannot make the lab's management network {self.place.subnet} ({bridge}): {done.stderr.strip()}\n"
                "  way out: `docker network ls` and `ip address` show who has those addresses; use others here:"
                " lab/lab up --pair N"
            )

    def up(self, *, fresh: bool) -> None:
        if fresh:
            self._forget_nodes()
        missing = [node for node in self.place.nodes if not self._exists(node.name)]
        if len(missing) == len(self.place.nodes):
            self.place.cable.unlink(missing_ok=True)
        if missing:
            clean = image.ensure(docker.demand())
            each(lambda node: self._create(node, clean), missing)
        self._start([node for node in self.place.nodes if not self.runs(node)])

    def down(self, *, discard: bool) -> None:
        access.close_connections(self.place)
        if (daemon := docker.find_for_removal()) is None:
            docker.stop_own_when_unused()
            return
        identity = self.place.identity
        for kind in ("container", "network", "volume", "image"):
            docker.remove(daemon, kind, daemon.ours(kind, identity))
        if discard:
            docker.remove_node_image(daemon)
            shutil.rmtree(self.place.control_sockets, ignore_errors=True)
        say("both nodes are removed, with their network and volumes")
        docker.stop_own_when_unused()

    def save(self, state: str) -> None:
        """Keep the disks only. Both nodes shut down and boot again for it, so the state has no running container."""
        daemon, began = docker.demand(), elapsed_s()
        if off := [node.name for node in self.place.nodes if not self.runs(node)]:
            raise LabError(f"a snapshot needs both nodes running, and {' and '.join(off)} is off: lab/lab up first")
        self._stop_all()

        def keep(node: Node) -> None:
            label = f"LABEL {LABEL}={self.place.identity}"
            daemon.call("image", "rm", self._image_of(state, node))
            daemon.run("commit", "--change", label, self.name(node.name), self._image_of(state, node))
            self._copy_volume(self.name(node.name), self._volume_of(state, node))

        try:
            each(keep, self.place.nodes)
        finally:
            self._start(list(self.place.nodes))
        say(f"kept state `{state}` in {elapsed_s() - began:.1f} s; `lab/lab reset {state}` brings its disks back")

    def restore(self, state: str) -> None:
        access.prepare(self.place)
        self._forget_nodes()
        self.place.faults.unlink(missing_ok=True)
        self.place.cable.unlink(missing_ok=True)

        clean = image.ensure(docker.demand())

        def make(node: Node) -> None:
            if state != CLEAN:
                self._copy_volume(self._volume_of(state, node), self.name(node.name))
            self._create(node, clean if state == CLEAN else self._image_of(state, node))

        each(make, self.place.nodes)
        self._start(list(self.place.nodes))

    def power_cut(self, node: Node) -> None:
        if not self.runs(node):
            raise LabError(f"{node.name} is off already")
        docker.demand().run("kill", "--signal", "KILL", self.name(node.name))
        access.close_connections(self.place, (node,))
        self.apply_cable()
        say(f"{node.name}: power is cut")

    def power_on(self, node: Node) -> None:
        if not self._exists(node.name):
            raise LabError(f"{node.name} was never started: lab/lab up")
        self._start([] if self.runs(node) else [node])

    def reboot(self, node: Node) -> None:
        if not self.runs(node):
            raise LabError(f"{node.name} is off: lab/lab power-on {node.name}")
        say(f"{node.name}: rebooting")
        access.close_connections(self.place, (node,))
        docker.demand().run("stop", "--time", str(SHUTDOWN_S), self.name(node.name))
        self.apply_cable()
        self._start([node])

    def apply_cable(self) -> None:
        if (holder := self.process(CABLE)) is None:
            return
        plugged = not self.place.cable.exists()
        running = [node for node in self.place.nodes if self.runs(node)]
        for node in running:
            cable.set_carrier(holder, node, running if plugged else [])

    def _exists(self, part: str) -> bool:
        daemon = docker.find()
        return daemon is not None and self.name(part) in daemon.ours("container", self.place.identity)

    def _image_of(self, state: str, node: Node) -> str:
        return f"spark-lab-state-{self.place.identity}:{state}-{node.name}"

    def _volume_of(self, state: str, node: Node) -> str:
        return f"{self.name(node.name)}-{state}"

    def _labels(self) -> list[str]:
        return ["--label", f"{LABEL}={self.place.identity}"]

    def _copy_volume(self, source: str, target: str) -> None:
        daemon = docker.demand()
        daemon.call("volume", "rm", target)
        daemon.run("volume", "create", *self._labels(), target)
        mounts = ["--volume", f"{source}:/from:ro", "--volume", f"{target}:/to"]
        clean = image.ensure(daemon)
        daemon.run("run", "--rm", "--network", "none", *self._labels(), *mounts, clean, "cp", "-a", "/from/.", "/to")

    def _create(self, node: Node, image_name: str) -> None:
        daemon = docker.demand()
        if self.name(node.name) not in daemon.ours("volume", self.place.identity):
            daemon.run("volume", "create", *self._labels(), self.name(node.name))
        address, _ = self.place.ssh_address(node)
        files = {
            NODE_ROOT: "/lab/node",
            SOURCE / "root": "/lab/containers",
            SOURCE / "boot": "/lab/boot",
            access.seed(self.place, node): "/lab/seed",
        }
        daemon.run(
            "create", "--init", "--name", self.name(node.name), "--hostname", node.name, *self._labels(), *PRIVILEGES,
            "--network", self.name("net"), "--ip", address, "--env", f"LAB_CONTROL={self.place.control}",
            *(("--env", "LAB_RING=1") if node.in_ring else ()),
            # the inner Docker's overlayfs does not work on top of overlayfs
            "--volume", f"{self.name(node.name)}:/var/lib/docker",
            *(word for path, inside in files.items() for word in ("--volume", f"{path}:{inside}:ro")),
            "--tmpfs", "/run:exec,mode=755", "--tmpfs", "/tmp:exec,mode=1777",
            image_name, "/lab/boot", node.name,
        )  # fmt: skip

    def _cable(self) -> int:
        """The process that holds the cable's network namespace. Makes its container if there is none."""
        daemon = docker.demand()
        if (holder := self.process(CABLE)) is None:
            daemon.call("rm", "--force", self.name(CABLE))
            options = ["--network", "none", "--init", *self._labels(), image.ensure(daemon), "sleep", "infinity"]
            daemon.run("run", "--detach", "--name", self.name(CABLE), *options)
            holder = self.process(CABLE)
            assert holder is not None
        cable.lay(holder, self.place.nodes)
        return holder

    def _start(self, nodes: list[Node]) -> None:
        """Start these nodes, which are off, and plug in their cables. Return when both nodes answer."""
        daemon, holder = docker.demand(), self._cable()

        def start(node: Node) -> None:
            say(f"{node.name}: booting")
            daemon.run("start", self.name(node.name))
            if (process := self.process(node.name)) is None:
                raise LabError(f"{node.name} ended at once:\n{self._log_end(node)}")
            if not cable.is_process_of(process, node.name):
                raise LabError(
                    f"{node.name}: Docker names process {process}, which is not on this host: the daemon is elsewhere"
                    " (Docker Desktop, a socket of another machine)\n  way out: lab/lab up --nodes machines"
                )
            cable.plug(holder, node, process)

        each(start, nodes)
        self.apply_cable()
        each(lambda node: self._boot(node).wait_ready(), [node for node in self.place.nodes if self.runs(node)])

    def _boot(self, node: Node) -> Boot:
        def check_alive() -> None:
            if not self.runs(node):
                raise LabError(f"{node.name} went off while it booted\n{self._log_end(node)}")

        return Boot(self.place, node, check_alive, lambda: self._log_end(node))

    def _log_end(self, node: Node) -> str:
        done = docker.demand().call("logs", "--tail", "15", self.name(node.name))
        return "\n".join(f"  | {line}" for line in (done.stdout + done.stderr).splitlines())

    def _stop_all(self) -> None:
        access.close_connections(self.place)
        names = [self.name(node.name) for node in self.place.nodes]
        docker.demand().run("stop", "--time", str(SHUTDOWN_S), *names)

    def _forget_nodes(self) -> None:
        """Remove both nodes with everything in them. Kept states stay."""
        daemon = docker.demand()
        access.close_connections(self.place)
        names = {self.name(node.name) for node in self.place.nodes}
        for kind in ("container", "volume"):
            docker.remove(daemon, kind, sorted(names & set(daemon.ours(kind, self.place.identity))))
