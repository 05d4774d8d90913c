"""The fabric between the nodes: its ports, its addresses, and their order, which decides the GID index."""

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
    """Ports of a node's fabric file, in its order."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Port(netdev, hca, mac, tuple(map(IPv4Interface, rest))) for netdev, hca, mac, *rest in lines]


def shipped_ports(node: Node, root: Path = NODE_ROOT) -> list[Port]:
    """Ports of `node` as a new node has them."""
    return parse_ports((root / "etc" / "lab" / f"{node.name}.fabric").read_text())


def parse_addresses(words: Sequence[str]) -> list[IPv4Interface]:
    """IPv4 addresses in the order given, /24 where no length is; LabError names each that is none, and repeats."""
    addresses: list[IPv4Interface] = []
    complaints: list[str] = []
    for word in words:
        try:
            address = IPv4Interface(word if "/" in word else f"{word}/{PREFIX}")
        except ValueError as problem:
            complaints.append(f"  {word}: {problem}")
            continue
        if any(address.ip == known.ip for known in addresses):
            complaints.append(f"  {word}: given twice, and one address has one row in the GID table")
        addresses.append(address)
    if complaints:
        raise LabError("addresses were refused:\n" + "\n".join(complaints))
    return addresses


def on_twin(address: IPv4Interface) -> IPv4Interface:
    """The address that goes with `address` on the second port: the next /24, as 192.168.101.x goes with 192.168.100.x.

    Never a shorter prefix than that: both ports would claim the same network.
    """
    return IPv4Interface(f"{address.ip + 256}/{max(PREFIX, address.network.prefixlen)}")
