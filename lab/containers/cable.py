"""The fabric's cables between node-containers: veth pairs that meet in a network namespace of the cable's own.

Each port of a node is one end of a veth pair. The other end is in the cable's container, where a bridge for each
subnet joins two nodes. A node that loses its power takes its own ends with it, and the lab takes down the carrier of
the peer's ends: the peer keeps its ports and their addresses, as on a real pair. The fabric uses no Docker network, so
pairs side by side can have the same fabric addresses.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from lab.fabric import Port, shipped_ports
from lab.place import Node
from lab.report import LabError

MTU = 9000


def ip(pid: int, *lines: str) -> None:
    """Run commands of the ip program in the network namespace of a process."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"]
    batch = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=batch, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        raise LabError(f"the fabric's cable: `{'; '.join(lines)}` failed: {done.stderr.strip()}")


def has(pid: int, device: str) -> bool:
    """Whether the network namespace of a process has the device."""
    table = Path(f"/proc/{pid}/net/dev").read_text()
    return any(line.strip().startswith(f"{device}:") for line in table.splitlines())


def is_process_of(pid: int, hostname: str) -> bool:
    """Whether this is a process of this host, on a root file system with that host name."""
    try:
        return Path(f"/proc/{pid}/root/etc/hostname").read_text().strip() == hostname
    except OSError:
        return False


def remove_leftover_bridge(name: str) -> None:
    """Remove this pair's bridge if a daemon that was killed left it behind."""
    if (Path("/sys/class/net") / name).exists():
        subprocess.run(["ip", "link", "delete", name, "type", "bridge"], check=True, timeout=20)


def refuse_taken(subnet: str) -> None:
    """Raise LabError if this host has an address or a gateway in the subnet that a pair is about to get."""
    network = IPv4Network(subnet)
    taken = [
        f"{entry['local']} of {link['ifname']}"
        for link in _ip_json("address")
        for entry in link["addr_info"]
        if IPv4Address(entry["local"]) in network
    ]
    taken += [
        f"the gateway {route['gateway']}"
        for route in _ip_json("route")
        if "gateway" in route and IPv4Address(route["gateway"]) in network
    ]
    if taken:
        raise LabError(
            f"the lab's management network {subnet} would hide what this host has there: {', '.join(taken)}\n"
            "  way out: lab/lab down in another checkout, where it is that one's (sparklab...); else other addresses:"
            " lab/lab up --pair N"
        )


def _ip_json(what: str) -> list[dict[str, Any]]:
    done = subprocess.run(["ip", "-json", "-4", what], capture_output=True, text=True, check=True, timeout=20)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def network_of(port: Port) -> IPv4Network:
    """The subnet that a port is for: that of its last address, since a link-local one may come first."""
    return port.addresses[-1].network


def bridge_of(port: Port) -> str:
    """The bridge in the cable's namespace that joins the ports of one subnet: net100 for 192.168.100.0/24."""
    return f"net{network_of(port).network_address.packed[2]}"


def lay(cable: int, nodes: Sequence[Node]) -> None:
    """Make the cable's bridges if they are missing. `cable`: the process that holds its namespace."""
    for bridge in sorted({bridge_of(port) for node in nodes for port in shipped_ports(node)}):
        if not has(cable, bridge):
            ip(cable, f"link add {bridge} mtu {MTU} up type bridge forward_delay 0 mcast_snooping 0")


def plug(cable: int, node: Node, process: int) -> None:
    """Give a node that just started its ports. They are down until the node's own boot raises them."""
    for number, port in enumerate(shipped_ports(node), start=1):
        end = f"{node.name}-{number}"
        if has(cable, end):
            # left over from the node's last run; the kernel may remove it before we do
            with suppress(LabError):
                ip(cable, f"link del {end}")
        ip(
            cable,
            f"link add {end} mtu {MTU} type veth peer name {port.netdev} netns {process} address {port.mac} mtu {MTU}",
            f"link set {end} master {bridge_of(port)}",
        )


def set_carrier(cable: int, node: Node, running: Sequence[Node]) -> None:
    """Set the carrier that a node with power sees on each port: up if the other end has power and the cable is in."""
    reached = {network_of(port) for other in running if other != node for port in shipped_ports(other)}
    for number, port in enumerate(shipped_ports(node), start=1):
        ip(cable, f"link set {node.name}-{number} {'up' if network_of(port) in reached else 'down'}")
