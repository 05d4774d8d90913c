"""The fabric's cable between two node-containers: two veth pairs that meet in a network namespace of the cable's own.

Each node's port is one end of a veth pair whose other end is in the cable's container; a bridge there joins the two
nodes' ends of each port. A node that loses its power takes its own ends away and leaves the peer's, whose carrier the
lab then takes down: the peer keeps its ports and their addresses, as on a real pair. No Docker network is used for the
fabric, so two pairs side by side may have the same addresses in it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from lab.fabric import shipped_ports
from lab.place import NODES, Node
from lab.report import LabError

MTU = 9000


def ip(pid: int, *lines: str) -> None:
    """Commands of the ip program in the network namespace of a process."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"]
    batch = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=batch, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        raise LabError(f"the fabric's cable: `{'; '.join(lines)}` failed: {done.stderr.strip()}")


def has(pid: int, device: str) -> bool:
    """True when that process's network namespace has the device."""
    table = Path(f"/proc/{pid}/net/dev").read_text()
    return any(line.strip().startswith(f"{device}:") for line in table.splitlines())


def take_away_bridge(name: str) -> None:
    """Remove what a lab whose daemon was killed left of a pair's bridge; LabError when something is connected to it."""
    connected = Path("/sys/class/net") / name / "brif"
    if not connected.exists():
        return
    if any(connected.iterdir()):
        raise LabError(
            f"another lab on this host has the addresses of this pair: the bridge {name} is in use\n"
            "  way out: lab/lab down in that checkout, or other addresses here: lab/lab up --pair N"
        )
    subprocess.run(["ip", "link", "delete", name, "type", "bridge"], check=True, timeout=20)


def lay(cable: int) -> None:
    """The bridges, once in a cable's life. `cable`: the process that holds its namespace."""
    for number, _ in enumerate(shipped_ports(NODES[0]), start=1):
        if not has(cable, f"port{number}"):
            ip(cable, f"link add port{number} mtu {MTU} up type bridge forward_delay 0 mcast_snooping 0")


def plug(cable: int, node: Node, process: int) -> None:
    """Give a node that just started its ports, down: its own boot raises them."""
    for number, port in enumerate(shipped_ports(node), start=1):
        end = f"{node.name}{number}"
        if has(cable, end):
            # of the node's last life: the kernel takes it away a moment after the node
            ip(cable, f"link del {end}")
        ip(
            cable,
            f"link add {end} mtu {MTU} type veth peer name {port.netdev} netns {process} address {port.mac} mtu {MTU}",
            f"link set {end} master port{number}",
        )


def set_carrier(cable: int, node: Node, up: bool) -> None:
    """The carrier that a node with power sees on both ports."""
    for number, _ in enumerate(shipped_ports(node), start=1):
        ip(cable, f"link set {node.name}{number} {'up' if up else 'down'}")
