"""From a started machine to one that answers: ssh, then Docker, each with its own limit."""

from __future__ import annotations

import socket
import time

from lab import access
from lab.host import TIME_FACTOR
from lab.machine import Machine
from lab.report import elapsed_s, say, wait_for

SSH_LIMIT_S = 90
DOCKER_LIMIT_S = 60
"""On KVM; host.TIME_FACTOR times as long on TCG."""

KVM_HINT = "\n  where KVM itself is at fault: LAB_ACCEL=tcg lab/lab up emulates, slowly"

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"

# not `docker info`: on an emulated machine that program alone takes seconds to start
DOCKER_PING = "curl --silent --fail --max-time 20 --output /dev/null --unix-socket /run/docker.sock http://docker/_ping"


def greets(port: int) -> bool:
    """True when an SSH server speaks on 127.0.0.1:`port`; QEMU itself accepts before the guest listens."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
            connection.settimeout(3)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def wait_ssh(machine: Machine, *, restored: bool = False, unlike_boot: str | None = None) -> str:
    """Wait until root can log in; the boot id then.

    `unlike_boot`: only a boot with another id counts. `restored`: the machine lives in the past, and is given the
    control host's time as soon as it can be reached.
    """
    factor = TIME_FACTOR[machine.accelerator]

    def answers() -> str | None:
        machine.check_alive()
        if not greets(machine.node.ssh_port):
            return None
        script = f"date --set @{time.time():.3f} >&2; {BOOT_ID}" if restored else BOOT_ID
        done = access.run(machine.place, machine.node, ["sh", "-c", script], limit_s=20 * factor)
        boot_id = done.stdout.strip() if done.returncode == 0 else None
        return None if boot_id == unlike_boot else boot_id

    return wait_for(
        f"{machine.node.name}: ssh on port {machine.node.ssh_port}",
        answers,
        limit_s=SSH_LIMIT_S * factor,
        evidence=lambda: machine.console_tail() + (KVM_HINT if machine.accelerator == "kvm" else ""),
    )


def docker_answers(machine: Machine, limit_s: float) -> bool:
    """True when Docker's API answers user spark within `limit_s`."""
    command = [
        "timeout",
        f"{limit_s:.0f}",
        "sh",
        "-c",
        f"until {DOCKER_PING}; do sleep 0.2; done",
    ]
    return access.run(machine.place, machine.node, command, user="spark", limit_s=limit_s + 20).returncode == 0


def wait_docker(machine: Machine) -> None:
    """Wait until Docker answers user spark."""
    limit_s = DOCKER_LIMIT_S * TIME_FACTOR[machine.accelerator]

    def answers() -> bool:
        machine.check_alive()
        return docker_answers(machine, limit_s=20)

    def evidence() -> str:
        unit = access.run(machine.place, machine.node, ["journalctl", "-u", "docker", "-n", "15", "--no-pager"])
        return f"{machine.console_tail()}\n{unit.stdout}"

    # the guest does the polling, one connection for 20 s of it
    wait_for(
        f"{machine.node.name}: docker",
        answers,
        limit_s=limit_s,
        evidence=evidence,
    )


def wait_ready(machine: Machine, *, restored: bool = False, unlike_boot: str | None = None) -> None:
    """Wait for ssh and Docker; `restored` and `unlike_boot` as in wait_ssh."""
    began = elapsed_s()
    wait_ssh(machine, restored=restored, unlike_boot=unlike_boot)
    say(f"{machine.node.name}: ssh after {elapsed_s() - began:.1f} s")
    wait_docker(machine)
    say(f"{machine.node.name}: docker after {elapsed_s() - began:.1f} s")
