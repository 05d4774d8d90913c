"""The fabric between the nodes: its ports and addresses, whose order decides the GID index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from lab.place import HEAD, NODE_ROOT, WORKER, Node
from lab.report import LabError

ADDRESS = {HEAD: "192.168.100.1", WORKER: "192.168.100.2"}
"""Each node's address on the first port of the fabric."""

PREFIX = 24


@dataclass(frozen=True)
class Port:
    """One of the two PCIe functions behind the QSFP socket, as a line of the node's /etc/lab/fabric."""

    netdev: str
    hca: str
    mac: str
    addresses: tuple[IPv4Interface, ...]


def parse_ports(text: str) -> list[Port]:
    """The ports of a node's fabric file, in its order."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Port(netdev, hca, mac, tuple(map(IPv4Interface, rest))) for netdev, hca, mac, *rest in lines]


def shipped_ports(node: Node, root: Path = NODE_ROOT) -> list[Port]:
    """The ports of a new `node`."""
    folder = root / "etc" / "lab" / ("ring" if node.in_ring else ".")
    return parse_ports((folder / f"{node.name}.fabric").read_text())


def parse_addresses(texts: Sequence[str]) -> list[IPv4Interface]:
    """IPv4 addresses in the given order, /24 unless given a length. LabError names every wrong or repeated one."""
    addresses: list[IPv4Interface] = []
    complaints: list[str] = []
    for text in texts:
        try:
            address = IPv4Interface(text if "/" in text else f"{text}/{PREFIX}")
        except ValueError as problem:
            complaints.append(f"  {text}: {problem}")
            continue
        if any(address.ip == earlier.ip for earlier in addresses):
            complaints.append(f"  {text}: given twice, but an address has only one row in the GID table")
        addresses.append(address)
    if complaints:
        raise LabError("these addresses are refused:\n" + "\n".join(complaints))
    return addresses


def on_twin(address: IPv4Interface) -> IPv4Interface:
    """The address beside `address` on the second port, in the next /24: 192.168.101.x beside 192.168.100.x.

    Its prefix is never shorter than /24, or both ports would claim the same network.
    """
    return IPv4Interface(f"{address.ip + 256}/{max(PREFIX, address.network.prefixlen)}")
