"""Waiting for a node to boot: for ssh, then for Docker, each with its own limit."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from lab import access
from lab.place import Node, Place
from lab.report import elapsed_s, say, wait_for

SSH_LIMIT_S = 90
DOCKER_LIMIT_S = 60
"""On a node that is not emulated. An emulated one gets `Boot.factor` times as long."""

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"

# not `docker info`: on an emulated machine the program alone takes seconds to start
DOCKER_PING = "curl --silent --fail --max-time 20 --output /dev/null --unix-socket /run/docker.sock http://docker/_ping"


def greets(place: Place, node: Node) -> bool:
    """True when the node's SSH server sends its greeting. QEMU accepts connections before the guest listens."""
    try:
        with socket.create_connection(place.ssh_address(node), timeout=3) as connection:
            connection.settimeout(3)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def docker_answers(place: Place, node: Node, limit_s: float) -> bool:
    """True when Docker's API answers user spark within `limit_s`."""
    command = ["timeout", f"{limit_s:.0f}", "sh", "-c", f"until {DOCKER_PING}; do sleep 0.1; done"]
    return access.run(place, node, command, user="spark", limit_s=limit_s + 20).returncode == 0


@dataclass(frozen=True)
class Boot:
    """One node while it boots. `check_alive` raises LabError if waiting is pointless; `evidence` explains a timeout."""

    place: Place
    node: Node
    check_alive: Callable[[], None]
    evidence: Callable[[], str]
    factor: float = 1.0
    """How much longer a wait may take than on real hardware."""

    def wait_ssh(self, *, restored: bool = False, unlike_boot: str | None = None) -> str:
        """Wait until root can log in, and return the boot id.

        `unlike_boot`: only a boot with another id counts. `restored`: the node's clock is in the past, so it is set to
        the control host's as soon as the node can be reached.
        """
        host, port = self.place.ssh_address(self.node)

        def answers() -> str | None:
            self.check_alive()
            if not greets(self.place, self.node):
                return None
            script = f"date --set @{time.time():.3f} >&2; {BOOT_ID}" if restored else BOOT_ID
            done = access.run(self.place, self.node, ["sh", "-c", script], limit_s=20 * self.factor)
            boot_id = done.stdout.strip() if done.returncode == 0 else None
            return None if boot_id == unlike_boot else boot_id

        what = f"{self.node.name}: ssh on {host} port {port}"
        limit_s = SSH_LIMIT_S * self.factor
        return wait_for(what, answers, limit_s=limit_s, every_s=0.1, evidence=self.evidence)

    def wait_docker(self) -> None:
        """Wait until Docker answers user spark."""

        def answers() -> bool:
            self.check_alive()
            # the node itself polls, for 20 s a connection
            return docker_answers(self.place, self.node, limit_s=20)

        limit_s = DOCKER_LIMIT_S * self.factor
        wait_for(f"{self.node.name}: docker", answers, limit_s=limit_s, evidence=self.evidence)

    def wait_ready(self, *, restored: bool = False, unlike_boot: str | None = None) -> None:
        """Wait for ssh and Docker; `restored` and `unlike_boot` as in wait_ssh."""
        began = elapsed_s()
        self.wait_ssh(restored=restored, unlike_boot=unlike_boot)
        reached = elapsed_s() - began
        self.wait_docker()
        say(f"{self.node.name}: ssh after {reached:.1f} s, docker after {elapsed_s() - began:.1f} s")
