"""Which ports of which HCAs a rank's NCCL opens on a node: as a selector says, or derived from the fabric address.

NCCL_IB_HCA's grammar, and the refusals that name a missing or closed HCA. Pure, over a gid.table.Table.
Runs on a node and inside the runtime image too: standard library only, Python 3.10.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gid.table import Address, Port, Table, addresses_on, closed, interface_with, label, usable_rows

MAX_NAMES = 32
NAME = re.compile(r"([\w.-]{1,63})(?::([1-9][0-9]{0,3}))?", re.ASCII)


class Refusal(Exception):
    """Why this node cannot be used as asked: what was found and the way out."""


class Name(NamedTuple):
    """One `name[:port]` of a selector; port None is any."""

    text: str
    port: int | None

    def matches(self, port: Port, exact: bool) -> bool:
        named = port["name"] == self.text if exact else port["name"].startswith(self.text)
        return named and self.port in (None, port["port"])


class Selector(NamedTuple):
    """A parsed NCCL_IB_HCA."""

    exclude: bool
    exact: bool
    names: tuple[Name, ...]

    def picks(self, port: Port) -> bool:
        """Whether NCCL opens this port."""
        return any(name.matches(port, self.exact) for name in self.names) != self.exclude


def parse_selector(text: str) -> Selector:
    """`[^][=]name[:port],...`, as NCCL reads it. Raises Refusal for any other text.

    NCCL takes every text: it cuts names to 63 bytes, drops names past the 32nd, reads :08 and :8abc as 8 and :abc as 0.
    Nobody means that, so it is refused.
    """
    bare = text.removeprefix("^")
    names = [NAME.fullmatch(entry) for entry in bare.removeprefix("=").split(",")]
    parsed = tuple(Name(match[1], int(match[2]) if match[2] else None) for match in names if match)
    if len(parsed) < len(names) or len(names) > MAX_NAMES:
        raise Refusal(
            f"hca {text!r} is not a selector: write [^][=]name[:port],... with at most {MAX_NAMES} names of letters, "
            "digits, _ . and -, ports as plain decimals, and no spaces (* is not a wildcard: a name without = is a "
            "prefix); or leave hca out, and the HCA of fabric_ip is used, with its twin"
        )
    return Selector(text.startswith("^"), bare.startswith("="), parsed)


def overlap(one: Address, other: Address) -> bool:
    """Whether two addresses share a subnet by the wider of their prefixes."""
    first, second = (int.from_bytes(socket.inet_pton(socket.AF_INET, a["ip"]), "big") for a in (one, other))
    return (first ^ second) >> (32 - min(one["prefix"], other["prefix"])) == 0


def function_of(port: Port) -> str | None:
    """A PCIe function without its domain, which the two HCAs of a QSFP port share: `01:00.1`, or by name `p1s0f1`."""
    if port["pci"]:
        return port["pci"].partition(":")[2]
    match = re.fullmatch(r"roce(?:P\d+)?(p\d+s\d+f\d+)", port["name"])
    return match[1] if match else None


def _present(table: Table) -> str:
    shown = [f"{label(port)} ({port['state'] or 'state unreadable'})" for port in table["hcas"]]
    return "present: " + (", ".join(shown) or "none, /sys/class/infiniband is empty")


def _opened(ports: Sequence[Port], what: str) -> list[Port]:
    """Those of the ports that NCCL opens. Raises Refusal when it opens none."""
    if opened := [port for port in ports if closed(port) is None]:
        return opened
    reasons = "\n".join(f"  {label(port)}: {closed(port)}" for port in ports)
    raise Refusal(f"{what}, but none can be opened:\n{reasons}\nCheck the QSFP cable at both ends.")


def _twins(own: Sequence[Port], table: Table) -> list[Port]:
    """The other HCAs of the same QSFP port."""
    names = {port["name"] for port in own}
    functions = {function_of(port) for port in own} - {None}
    return [port for port in table["hcas"] if port["name"] not in names and function_of(port) in functions]


def _no_rail(twin: Port, table: Table, fabric_ip: str, ifname: str) -> str | None:
    """Why a twin cannot carry traffic besides the fabric address's HCA; None when it can."""
    if why := closed(twin):
        return why
    netdev = twin["netdev"]
    fixed = [a for a in addresses_on(netdev, table["interfaces"]) if not a["ip"].startswith("169.254.")]
    if not fixed:
        return f"its netdev {netdev} has no fixed IPv4 address"
    fabric = next(a for a in addresses_on(ifname, table["interfaces"]) if a["ip"] == fabric_ip)
    if all(overlap(address, fabric) for address in fixed):
        return f"its netdev {netdev} is in the subnet of {fabric_ip}"
    return None


def _carries(port: Port, ifname: str, table: Table) -> bool:
    """Whether a netdev belongs to this port, or is a VLAN on it: a VLAN's rows are in the table of the port below."""
    return ifname in (port["netdev"], *(row["ndev"] for row in usable_rows(port, table["interfaces"])))


def derived(table: Table, fabric_ip: str, ifname: str, note: Callable[[str], None]) -> list[Port]:
    """The HCA of the fabric address, and its twin if that has its own subnet: both functions of one QSFP port.

    Other HCAs stay out: their addresses do not prove that the peers are behind them.
    """
    own = [port for port in table["hcas"] if _carries(port, ifname, table)]
    if not own:
        raise Refusal(
            f"{ifname} holds {fabric_ip} but belongs to no HCA; {_present(table)}\n"
            "Give fabric_ip an address of the QSFP netdev; if it is one, its RDMA driver is not loaded.",
        )
    members = _opened(own, f"{ifname} holds {fabric_ip} and has an HCA")
    for twin in _twins(own, table):
        why = _no_rail(twin, table, fabric_ip, ifname)
        if why is None:
            members.append(twin)
        else:
            note(f"{label(twin)}, the other half of the QSFP port, is not used: {why}")
    return members


def linked(table: Table, links: Sequence[str]) -> list[Port]:
    """The HCAs of a node's links, each of which must be there and open: a ring without one of them is cut."""
    members: list[Port] = []
    for link in links:
        ifname = interface_with(link, table["interfaces"])
        own = [port for port in table["hcas"] if ifname and _carries(port, ifname, table)]
        if not own:
            where = f"{ifname} holds it but belongs to no HCA" if ifname else "no interface of this node has it"
            raise Refusal(
                f"link {link}: {where}; {_present(table)}\nGive the address back to its QSFP netdev, or correct links."
            )
        members += [port for port in _opened(own, f"{ifname} holds the link {link}") if port not in members]
    return members


def selected(table: Table, fabric_ip: str, ifname: str, text: str, note: Callable[[str], None]) -> list[Port]:
    """The open ports that an NCCL_IB_HCA picks. A port may be down as long as another one is open."""
    selector = parse_selector(text)
    picked = [port for port in table["hcas"] if selector.picks(port)]
    if not picked:
        raise Refusal(
            f"hca {text!r} picks no HCA of this node; {_present(table)}\n"
            "A selector is [^][=]name[:port],...: names are prefixes unless = comes first.",
        )
    members = _opened(picked, f"hca {text!r} picks HCAs of this node")
    for name in selector.names:
        matching = [port for port in table["hcas"] if name.matches(port, selector.exact)]
        if not matching:
            note(f"{name.text!r} of hca {text!r} matches no HCA; {_present(table)}")
        elif not selector.exclude and not any(port in members for port in matching):
            note(f"{label(matching[0])} is not used: {closed(matching[0])}")
    own = [port for port in members if _carries(port, ifname, table)]
    for twin in _twins(own, table):
        if twin not in members and _no_rail(twin, table, fabric_ip, ifname) is None:
            note(f"{label(twin)}, the other half of the QSFP port, could be used too: add it to hca")
    return members
