"""The GID table of a Spark as data: its shape, which rows are usable and why not, how a person sees it.

``Table`` is made of plain JSON types: gid.sysfs reads it, facts.gather prints it, gid.lookup decides on it. Pure, so
the control host judges a facts document with the same functions that a node uses.

Runs on a node and inside the runtime image too: standard library only, Python 3.10.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import TypedDict

ACTIVE = "4: ACTIVE"
"""The only state of a port that NCCL opens; 5: ACTIVE_DEFER is another one."""
LINK_LAYERS = ("Ethernet", "InfiniBand")
ROCE_V2 = "RoCE v2"
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


class Address(TypedDict):
    """An IPv4 address of an interface; `prefix` is its subnet's length in bits."""

    ip: str
    prefix: int


Interfaces = Mapping[str, Sequence[Address]]
"""IPv4 addresses by netdev."""


class Row(TypedDict):
    """One filled slot of a GID table; `type` and `ndev` are None if the kernel does not tell."""

    index: int
    gid: str
    type: str | None
    ndev: str | None


class Port(TypedDict):
    """One port of one HCA. `rows` holds filled slots only, and none unless the port is ACTIVE."""

    name: str
    port: int
    state: str | None
    link_layer: str | None
    netdev: str | None
    pci: str | None
    """PCIe address of its function; None for a soft HCA."""
    rows: list[Row]


class Table(TypedDict):
    """Everything the choice of an index depends on. A facts document has both keys, so it is a Table too."""

    hcas: list[Port]
    interfaces: Interfaces


def ipv4_of(gid: str) -> str | None:
    """The address in an IPv4-mapped GID, or None for any other text."""
    try:
        packed = socket.inet_pton(socket.AF_INET6, gid)
    except (OSError, ValueError):
        return None
    return socket.inet_ntop(socket.AF_INET, packed[12:]) if packed[:12] == bytes(10) + b"\xff\xff" else None


def interface_with(ip: str, interfaces: Interfaces) -> str | None:
    """The first netdev, by name, that holds the address."""
    return next((n for n in sorted(interfaces) if any(a["ip"] == ip for a in interfaces[n])), None)


def objection(row: Row, interfaces: Interfaces) -> str | None:
    """Why NCCL cannot use a row for RoCE v2 over IPv4; None when it can.

    A row is usable if it is RoCE v2 and its IPv4-mapped GID is now an address of its own netdev.
    """
    if row["type"] != ROCE_V2:
        return f"type is {row['type'] or 'unreadable'}, not {ROCE_V2}"
    ip = ipv4_of(row["gid"])
    if ip is None:
        return "link-local IPv6" if row["gid"].lower().startswith("fe80") else "IPv6, not an IPv4 address"
    ndev = row["ndev"]
    if not ndev:
        return "names no netdev"
    if ndev not in interfaces:
        return f"netdev {ndev} is gone"
    if any(address["ip"] == ip for address in addresses_on(ndev, interfaces)):
        return None
    holder = interface_with(ip, interfaces)
    return f"stale: {ip} is not on {ndev}" + (f" but on {holder}" if holder else "")


def label(port: Port) -> str:
    """The port as sentences name it."""
    return f"{port['name']} port {port['port']}"


def closed(port: Port) -> str | None:
    """Why NCCL does not open a port; None when it does. It opens ACTIVE ports of these link layers only."""
    if port["state"] is None:
        return "its state cannot be read"
    if port["state"] != ACTIVE:
        return f"its state is {port['state']}"
    return None if port["link_layer"] in LINK_LAYERS else f"its link layer is {port['link_layer'] or 'unreadable'}"


def usable_rows(port: Port, interfaces: Interfaces) -> list[Row]:
    """The rows of a port that NCCL can use, lowest index first."""
    return sorted((r for r in port["rows"] if objection(r, interfaces) is None), key=lambda row: row["index"])


def addresses_on(netdev: str | None, interfaces: Interfaces) -> Sequence[Address]:
    """The netdev's IPv4 addresses; none for a netdev that does not exist."""
    return interfaces.get(netdev or "", [])


def addresses_text(netdev: str | None, interfaces: Interfaces) -> str:
    """The netdev's addresses as `ip/prefix, …`, or `no IPv4 address`."""
    held = addresses_on(netdev, interfaces)
    return ", ".join(f"{address['ip']}/{address['prefix']}" for address in held) or "no IPv4 address"


def format_table(ports: Sequence[Port], interfaces: Interfaces) -> str:
    """Each port's rows for a person: index, GID (as IPv4 where it is one), type, netdev, and usable or why not."""
    lines: list[str] = []
    for port in ports:
        netdev = port["netdev"]
        lines.append(
            f"{label(port)}, {port['state'] or 'state unreadable'}, "
            f"{netdev or 'no netdev'} ({addresses_text(netdev, interfaces)})"
        )
        cells = [("index", "gid", "type", "netdev", "verdict")]
        for row in sorted(port["rows"], key=lambda row: row["index"]):
            shown = ipv4_of(row["gid"]) or row["gid"]
            verdict = objection(row, interfaces) or "usable"
            cells.append((str(row["index"]), shown, row["type"] or "?", row["ndev"] or "?", verdict))
        if len(cells) == 1:
            lines.append("  the GID table is empty")
            continue
        widths = [max(len(line[column]) for line in cells) for column in range(4)]
        for line in cells:
            left = "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=False))
            lines.append(f"  {left}  {line[4]}")
    return "\n".join(lines)


def table_digest(ports: Sequence[Port]) -> str:
    """sha256 (hex) of the ports' rows in any order: equal digests mean that no row moved, came or went."""
    import hashlib  # loads OpenSSL, which only this needs

    rows = sorted(
        [port["name"], port["port"], row["index"], row["gid"], row["type"] or "", row["ndev"] or ""]
        for port in ports
        for row in port["rows"]
    )
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
