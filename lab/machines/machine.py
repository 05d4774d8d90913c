"""One machine as a QEMU process: its command line, pid, monitor and disk snapshots."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import access
from lab.boot import Boot
from lab.machines import host
from lab.place import Node, Place, peer
from lab.report import LabError, wait_for

KERNEL_COMMAND_LINE = (
    "console=ttyS0 loglevel=3 net.ifnames=0 mitigations=off nokaslr audit=0 selinux=0 apparmor=0"
    " random.trust_cpu=on systemd.show_status=0"
)
ACCELERATOR = {
    # an outer hypervisor may offer arch-capabilities and then refuse to set them, which ends QEMU
    "kvm": (["-accel", "kvm", "-cpu", "host,arch-capabilities=off"], ""),
    # cx16=off: QEMU 7.2 sometimes emulates cmpxchg16b with garbage in the flags, and an interrupt at that moment is a
    # double fault in the guest. Its kernel does not need the instruction.
    "tcg": (["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max,cx16=off"], " tsc=reliable clocksource=tsc"),
}
"""QEMU options and kernel parameters, by accelerator."""

FABRIC_PORTS = (1, 2)
KVM_HINT = "\n  if KVM itself is at fault: LAB_ACCEL=tcg lab/lab up emulates instead, slowly"

MEMORY_MIB = 4096
CPUS = 2

HARDWARE_OPTIONS = ("-M", "-accel", "-cpu", "-smp", "-m", "-device")


@dataclass(frozen=True)
class Machine:
    """A node's virtual machine. Disks and snapshots belong to one accelerator, since a CPU's state fits no other."""

    place: Place
    node: Node
    accelerator: str
    image: Path
    """The folder with base.qcow2, vmlinux and initrd.img."""

    @property
    def disk(self) -> Path:
        return self.place.root / f"{self.node.name}-{self.accelerator}.qcow2"

    @property
    def pid_file(self) -> Path:
        return self.place.root / f"{self.node.name}.pid"

    @property
    def console(self) -> Path:
        """The file with the output of the machine's serial port."""
        return self.place.root / f"{self.node.name}.console"

    def command(self, tag: str | None = None) -> list[str]:
        """The QEMU command, to be run in `place.root`. `tag` names a snapshot to start from instead of booting.

        The fabric's sockets have relative paths, so that a long checkout path does not exceed a socket's limit. They
        are datagram sockets, so that either machine can stop and come back without the other one noticing.
        """
        name = self.node.name
        options, kernel_parameters = ACCELERATOR[self.accelerator]
        # this host reaches only the machine's sshd
        address, port = self.place.ssh_address(self.node)
        command = ["qemu-system-x86_64", "-name", f"spark-{name}", "-M", "q35,hpet=off,vmport=off", *options]
        command += ["-smp", str(CPUS), "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-display", "none"]
        command += ["-pidfile", self.pid_file.name, "-qmp", f"unix:{name}.qmp,server=on,wait=off"]
        command += ["-chardev", f"file,id=console,path={name}.console", "-serial", "chardev:console"]
        command += ["-kernel", str(self.image / "vmlinux"), "-initrd", str(self.image / "initrd.img")]
        command += ["-append", f"{KERNEL_COMMAND_LINE}{kernel_parameters} lab.node={name}"]
        command += ["-fw_cfg", f"name=opt/spark-lab/seed,file={access.seed(self.place, self.node).name}"]
        command += ["-drive", f"file={self.disk.name},if=none,id=root,format=qcow2,cache=writeback,discard=unmap"]
        command += ["-device", "virtio-blk-pci,drive=root"]
        command += ["-netdev", f"user,id=management,ipv6=off,hostfwd=tcp:{address}:{port}-:22"]
        command += ["-device", f"virtio-net-pci,netdev=management,mac={self.node.mac(0)}"]
        for port in FABRIC_PORTS:
            local = f"local.type=unix,local.path={name}.fabric{port}"
            remote = f"remote.type=unix,remote.path={peer(self.node).name}.fabric{port}"
            command += ["-netdev", f"dgram,id=link{port},{local},{remote}"]
            command += ["-device", f"virtio-net-pci,netdev=link{port},id=fabric{port},mac={self.node.mac(port)}"]
        command += ["-object", "rng-random,id=entropy,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=entropy"]
        return command + (["-loadvm", tag] if tag else [])

    def pid(self) -> int | None:
        """The process id while the machine runs. A pid file that names another process does not count."""
        try:
            pid = int(self.pid_file.read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            folder = os.readlink(f"/proc/{pid}/cwd")
        except (OSError, ValueError):
            return None
        ours = f"spark-{self.node.name}".encode() in arguments and folder == os.path.realpath(self.place.root)
        return pid if ours and b"qemu-system" in arguments[0] else None

    def running_accelerator(self) -> str | None:
        """The accelerator of the running process, which may differ from the one that a start would choose now."""
        pid = self.pid()
        if pid is None:
            return None
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return arguments[arguments.index("-accel") + 1].partition(",")[0]

    def make_disk(self) -> None:
        """Make the disk: an empty layer over the image. What an older disk held is lost."""
        base = ["-F", "qcow2", "-b", str(self.image / "base.qcow2")]
        _run(["qemu-img", "create", "-q", "-f", "qcow2", *base, str(self.disk)])

    @property
    def hardware(self) -> str:
        """A hash over what a kept state depends on: QEMU's version and the virtual hardware."""
        values = [value for option, value in itertools.pairwise(self.command()) if option in HARDWARE_OPTIONS]
        return hashlib.sha256(repr((host.qemu_version(), values)).encode()).hexdigest()[:8]

    def tag(self, state: str) -> str:
        """QEMU's name for the kept `state`."""
        return f"{state}@{self.hardware}"

    def states(self) -> set[str]:
        """The states in the disk that this machine can go back to."""
        kept = (tag.partition("@") for tag in self.tags())
        return {state for state, _, hardware in kept if hardware == self.hardware}

    def tags(self) -> set[str]:
        """All states in the disk, as QEMU names them."""
        return {snapshot["name"] for snapshot in self._disk_info().get("snapshots", ())}

    def image_in_use(self) -> Path | None:
        """The folder of the image that the disk is a layer of. None without a disk."""
        backing = self._disk_info().get("backing-filename")
        return Path(backing).parent if backing else None

    def _disk_info(self) -> dict[str, Any]:
        if not self.disk.exists():
            return {}
        # -U: read although the machine may be running
        info: dict[str, Any] = json.loads(_run(["qemu-img", "info", "-U", "--output=json", str(self.disk)]))
        return info

    def start(self, state: str | None = None) -> None:
        """Start the process and return when its monitor answers. A running machine is left as it is.

        `state` is the state to go back to; without it the machine boots.
        """
        if self.pid() is not None:
            return
        _, port = self.place.ssh_address(self.node)
        if host.is_taken(port):
            raise LabError(
                f"{self.node.name}: the machine needs port {port} of 127.0.0.1, which is taken, perhaps by another"
                " checkout's lab: lab/lab down there (ss -ltnp names the holder), or lab/lab up --pair N here"
            )
        console = self.console
        if console.exists():
            console.rename(console.with_suffix(".console-before"))
        log = self.place.root / f"{self.node.name}.qemu.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(self.tag(state) if state else None),
                cwd=self.place.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

        def answers() -> bool:
            if process.poll() is not None:
                raise LabError(f"{self.node.name}: QEMU ended with {process.returncode}: {log.read_text().strip()}")
            try:
                return self.pid() is not None and bool(self.qmp("query-status"))
            except OSError:
                return False

        limit_s = 60 * host.TIME_FACTOR[self.accelerator]
        wait_for(f"{self.node.name}: QEMU's monitor", answers, limit_s=limit_s, every_s=0.05, evidence=log.read_text)

    def kill(self) -> None:
        """End the process at once, like a power cut, and return when it is gone."""
        pid = self.pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        wait_for(f"{self.node.name}: end of QEMU", lambda: not _alive(pid), limit_s=30, every_s=0.05)
        self.pid_file.unlink(missing_ok=True)

    def qmp(self, execute: str, **arguments: Any) -> Any:
        """Run one monitor command and return its `return`. LabError: QEMU refuses it; OSError: it does not answer."""
        folder = os.open(self.place.root, os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as monitor:
                monitor.settimeout(300)
                # through the folder's descriptor, since the whole path may exceed a socket's limit
                monitor.connect(f"/proc/self/fd/{folder}/{self.node.name}.qmp")
                with monitor.makefile("rw") as stream:
                    stream.readline()
                    answer: dict[str, Any] = {}
                    for request in ({"execute": "qmp_capabilities"}, {"execute": execute, "arguments": arguments}):
                        stream.write(json.dumps(request) + "\n")
                        stream.flush()
                        answer = _answer(stream.readline)
        finally:
            os.close(folder)
        if "error" in answer:
            raise LabError(f"{self.node.name}: QEMU refused {execute}: {answer['error']['desc']}")
        return answer["return"]

    def monitor(self, line: str) -> None:
        """Run a command of QEMU's human monitor that prints nothing when it succeeds."""
        complaint = self.qmp("human-monitor-command", **{"command-line": line})
        if complaint.strip():
            raise LabError(f"{self.node.name}: QEMU refused `{line}`: {complaint.strip()}")

    def boot(self) -> Boot:
        """The machine's boot, with the console as evidence."""

        def evidence() -> str:
            unit = access.run(self.place, self.node, ["journalctl", "-u", "docker", "-n", "15", "--no-pager"])
            hint = KVM_HINT if self.accelerator == "kvm" else ""
            return f"{self.console_tail()}\n{unit.stdout}{hint}"

        return Boot(self.place, self.node, self.check_alive, evidence, host.TIME_FACTOR[self.accelerator])

    def check_alive(self) -> None:
        """Raise LabError if the machine went off or its kernel panicked, since waiting is then pointless."""
        if self.pid() is None:
            raise LabError(f"{self.node.name}: the machine went off\n{self.console_tail()}")
        if "Kernel panic" in self.console_tail(60):
            raise LabError(
                f"{self.node.name}: its kernel panicked: lab/lab power-cut {self.node.name}, then lab/lab up\n"
                f"{self.console_tail(40)}"
            )

    def console_tail(self, lines: int = 15) -> str:
        """The console's last lines, indented under a heading."""
        try:
            text = self.console.read_text(errors="replace")
        except OSError:
            return f"  {self.node.name} wrote nothing to its console"
        kept = [f"  | {line}" for line in text.splitlines()[-lines:]]
        return "\n".join([f"  last lines of {self.console}:", *kept])


def _answer(readline: Any) -> dict[str, Any]:
    """The next message that is an answer. Events may come before it."""
    while line := readline():
        message: dict[str, Any] = json.loads(line)
        if "event" not in message:
            return message
    raise ConnectionResetError("QEMU closed its monitor")


def _alive(pid: int) -> bool:
    """Whether the process exists. A child of ours that ended is reaped first."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return Path(f"/proc/{pid}").exists()


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise LabError(f"{shutil.which(command[0]) or command[0]} failed: {done.stderr.strip()}")
    return done.stdout
