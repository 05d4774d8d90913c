"""Which ports of which HCAs a rank's NCCL opens on a node: as a selector says, or derived from the fabric address.

Owns NCCL_IB_HCA's grammar and the refusals that name a missing or closed HCA. Pure, over a gid.table.Table.
Runs on a node and inside the runtime image too: standard library only, Python 3.10.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gid.table import Address, Port, Table, addresses_on, closed, label, usable_rows

ANY_PORT = -1
MAX_TOKENS = 32
MAX_NAME_BYTES = 63


class Refusal(Exception):
    """Why this node cannot be used as asked: what was found and the way out."""


class Token(NamedTuple):
    """One `name[:port]` of a selector."""

    name: bytes
    port: int

    def matches(self, name: str, port: int, exact: bool) -> bool:
        raw = name.encode("utf-8", "surrogatepass")
        return (raw == self.name if exact else raw.startswith(self.name)) and self.port in (ANY_PORT, port)


class Selector(NamedTuple):
    """A parsed NCCL_IB_HCA. `dropped` counts the tokens past the 32 that NCCL keeps."""

    exclude: bool
    exact: bool
    tokens: tuple[Token, ...]
    dropped: int

    def picks(self, name: str, port: int) -> bool:
        """Whether NCCL opens this port; a selector without tokens matches all, so `^` alone picks none."""
        matched = not self.tokens or any(token.matches(name, port, self.exact) for token in self.tokens)
        return matched != self.exclude


def port_number(text: str) -> int:
    """A selector's port field as C's atoi reads it: base 10, stops at the first other character, 0 without digits.

    What no int holds is a port that does not exist, though C may wrap it to -1, any port: a typo must not widen.
    """
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)([0-9]*)", text)
    assert match
    digits = match[2].lstrip("0")
    if len(digits) > 10 or int(digits or 0) > 0x7FFFFFFF:
        return 0
    return int(match[1] + (digits or "0"))


def parse_selector(text: str) -> Selector:
    """Any text as NCCL reads NCCL_IB_HCA: `[^][=]name[:port[:…]],…`; no glob, no trimming, names cut to 63 bytes."""
    exclude = text.startswith("^")
    text = text[exclude:]
    exact = text.startswith("=")
    tokens: list[Token] = []
    for entry in text[exact:].split(","):
        name, _, rest = entry.partition(":")
        field = rest.split(":", 1)[0]
        if name:
            raw = name.encode("utf-8", "surrogatepass")[:MAX_NAME_BYTES]
            tokens.append(Token(raw, port_number(field) if field else ANY_PORT))
    return Selector(exclude, exact, tuple(tokens[:MAX_TOKENS]), max(0, len(tokens) - MAX_TOKENS))


def overlap(one: Address, other: Address) -> bool:
    """Whether two addresses lie in one subnet, of the wider of the two prefixes."""
    first, second = (int.from_bytes(socket.inet_pton(socket.AF_INET, a["ip"]), "big") for a in (one, other))
    return (first ^ second) >> (32 - min(one["prefix"], other["prefix"])) == 0


def function_of(port: Port) -> str | None:
    """A PCIe function without its domain, as the two HCAs of a QSFP port share it: `01:00.1`, or by name `p1s0f1`."""
    if port["pci"]:
        return port["pci"]["address"].partition(":")[2]
    match = re.fullmatch(r"roce(?:P\d+)?(p\d+s\d+f\d+)", port["name"])
    return match[1] if match else None


def _present(table: Table) -> str:
    shown = [f"{label(port)} ({port['state'] or 'state unreadable'})" for port in table["hcas"]]
    return "present: " + (", ".join(shown) or "none, /sys/class/infiniband is empty")


def _refuse_closed(ports: Sequence[Port], what: str) -> Refusal:
    reasons = "\n".join(f"  {label(port)}: {closed(port)}" for port in ports)
    return Refusal(f"{what}, but none can be opened:\n{reasons}\nCheck the QSFP cable at both ends.")


def _twins(own: Sequence[Port], table: Table) -> list[Port]:
    """The other HCAs of the same QSFP port."""
    names = {port["name"] for port in own}
    functions = {function_of(port) for port in own} - {None}
    return [port for port in table["hcas"] if port["name"] not in names and function_of(port) in functions]


def _no_rail(twin: Port, table: Table, fabric_ip: str, ifname: str) -> str | None:
    """Why a twin cannot carry traffic of its own beside the fabric address, or None when it can."""
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
    """Whether a netdev is this port's, or a VLAN on it: a VLAN's rows are in the table of the port below."""
    return ifname in (port["netdev"], *(row["ndev"] for row in usable_rows(port, table["interfaces"])))


def derived(table: Table, fabric_ip: str, ifname: str, note: Callable[[str], None]) -> list[Port]:
    """The HCA of the fabric address, and its twin where that has a subnet of its own: one QSFP port, both functions.

    Other HCAs stay out: an address on them does not tell that the peers are behind it.
    """
    own = [port for port in table["hcas"] if _carries(port, ifname, table)]
    if not own:
        raise Refusal(
            f"{ifname} holds {fabric_ip} but belongs to no HCA; {_present(table)}\n"
            "Give fabric_ip an address of the QSFP netdev; if it is one, its RDMA driver is not loaded.",
        )
    members = [port for port in own if closed(port) is None]
    if not members:
        raise _refuse_closed(own, f"{ifname} holds {fabric_ip} and has an HCA")
    for twin in _twins(own, table):
        why = _no_rail(twin, table, fabric_ip, ifname)
        if why is None:
            members.append(twin)
        else:
            note(f"{label(twin)}, the other half of the QSFP port, is not used: {why}")
    return members


def selected(table: Table, fabric_ip: str, ifname: str, text: str, note: Callable[[str], None]) -> list[Port]:
    """The open ports that an NCCL_IB_HCA picks. A port that is down does not matter while another is open."""
    selector = parse_selector(text)
    picked = [port for port in table["hcas"] if selector.picks(port["name"], port["port"])]
    if not picked:
        raise Refusal(
            f"hca {text!r} picks no HCA of this node; {_present(table)}\n"
            "A selector is [^][=]name[:port],...: names are prefixes unless = comes first, and * is not a glob.",
        )
    members = [port for port in picked if closed(port) is None]
    if not members:
        raise _refuse_closed(picked, f"hca {text!r} picks HCAs of this node")
    for token in selector.tokens:
        matching = [port for port in table["hcas"] if token.matches(port["name"], port["port"], selector.exact)]
        if not matching:
            note(f"{token.name.decode('utf-8', 'replace')!r} of hca {text!r} matches no HCA; {_present(table)}")
        elif not selector.exclude and not any(port in members for port in matching):
            note(f"{label(matching[0])} is not used: {closed(matching[0])}")
    if selector.dropped:
        note(f"NCCL reads {MAX_TOKENS} names of a selector: the last {selector.dropped} are not used")
    own = [port for port in members if _carries(port, ifname, table)]
    for twin in _twins(own, table):
        if twin not in members and _no_rail(twin, table, fabric_ip, ifname) is None:
            note(f"{label(twin)}, the other half of the QSFP port, could be used too: add it to hca")
    return members
