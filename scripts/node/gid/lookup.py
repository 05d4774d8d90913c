"""Finds the HCAs and the GID index that a rank's NCCL must use on this node.

Used in three ways: as a command over SSH (`python3 - '<inputs>'`), by rank.start at every container start, and on the
control host, where `resolve` decides over a facts document. It changes nothing, never falls back to a usual value, and
refuses with the table of every HCA concerned. Standard library only, Python 3.10.

Inputs (JSON argument): LookupInputs.
stdout: one JSON line, a Resolution. stderr: notes, or the refusal.
Exit codes: 0 resolved; 1 refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TypedDict

from gid.members import Refusal as Refusal
from gid.members import derived, linked, selected
from gid.table import (
    ROCE_V2,
    Port,
    Row,
    Table,
    addresses_on,
    addresses_text,
    format_table,
    interface_with,
    ipv4_of,
    label,
    objection,
    table_digest,
    usable_rows,
)


class LookupInputs(TypedDict):
    fabric_ip: str
    """This node's address on the fabric."""
    hca: str | None
    """NCCL_IB_HCA selector; None: the HCA of fabric_ip and its twin."""
    links: list[str]
    """This node's addresses on its links, if fabric_ip is on none of them: then their HCAs are used."""
    gid_index: str | int
    """resolve, pin: one index that every member can use; unset: every member must have a usable one, and NCCL chooses;
    a number: that index, which every member must be able to use."""


class Member(TypedDict):
    """An HCA port that NCCL will open, and the GID indexes that it can use there."""

    hca: str
    port: int
    ifname: str | None
    usable: list[int]


class Resolution(TypedDict):
    """What a rank uses (`gid_index` None: without NCCL_IB_GID_INDEX), and the evidence.

    `table_digest` covers the members' rows: while it stays the same, so does the choice. `notes` are sentences.
    """

    ifname: str
    hca: str
    members: list[Member]
    gid_index: int | None
    table_digest: str
    notes: list[str]


def exact_selector(members: Sequence[Port], table: Table) -> str:
    """NCCL_IB_HCA for exactly these: `=a,b`, with the port only if an HCA has several."""
    several = {port["name"] for port in table["hcas"] if port["port"] != 1}
    return "=" + ",".join(f"{p['name']}:{p['port']}" if p["name"] in several else p["name"] for p in members)


def resolve(
    table: Table,
    fabric_ip: str,
    selector: str | None = None,
    gid_index: str | int = "resolve",
    links: Sequence[str] = (),
) -> Resolution:
    """Choose HCAs and index from a table; the order of its ports and rows does not matter.

    Raises Refusal. gid.table.objection says which row is usable. Among indexes that every member can use, one whose row
    is the fabric address wins, then the lowest.
    """
    if None in (table["hcas"], table["interfaces"]):  # a facts document whose probe failed
        raise Refusal("the HCAs and interfaces of this node could not be read: see the facts' problems")
    interfaces = table["interfaces"]
    table = {"hcas": sorted(table["hcas"], key=lambda port: (port["name"], port["port"])), "interfaces": interfaces}
    ifname = interface_with(fabric_ip, interfaces)
    if ifname is None:
        held = "\n".join(f"  {name}: {addresses_text(name, interfaces)}" for name in sorted(interfaces) if name != "lo")
        raise Refusal(
            f"fabric address {fabric_ip} is on no interface of this node; the interfaces are\n{held or '  (none)'}\n"
            "Give the address back to its interface (netplan, or nmcli with a saved profile), or correct fabric_ip.",
        )
    notes: list[str] = []
    if fabric_ip.startswith("169.254."):
        notes.append(f"{fabric_ip} is link-local and changes at a boot: give the fabric fixed addresses")
    if selector is None and links:
        members = linked(table, links)
    elif selector is None:
        members = derived(table, fabric_ip, ifname, notes.append)
    else:
        members = selected(table, fabric_ip, ifname, selector, notes.append)
    members.sort(key=lambda port: port["netdev"] != ifname)
    usable = [usable_rows(port, interfaces) for port in members]
    if not all(usable):
        bare = [port for port, rows in zip(members, usable, strict=True) if not rows]
        reasons = "\n".join(f"  {label(port)}: {_why_none(port, table)}" for port in bare)
        raise Refusal(
            f"no GID row that NCCL can use (RoCE v2, an IPv4 address of the row's own netdev):\n{reasons}\n"
            f"{format_table(members, interfaces)}\n"
            "Give that netdev an IPv4 address in a subnet of its own, or leave the HCA out with `hca`.",
        )
    if links and gid_index == "resolve":
        # each link has a subnet and a table of its own: NCCL chooses for each HCA
        gid_index = "unset"
    chosen = _choose(members, usable, fabric_ip, gid_index, format_table(members, interfaces))
    at_chosen = [ipv4_of(row["gid"]) or "" for rows in usable for row in rows if row["index"] == chosen]
    if chosen is not None and not links and fabric_ip not in at_chosen:
        notes.append(f"index {chosen} is {', '.join(at_chosen)}, not {fabric_ip}: the peers may not reach that")
    return {
        "ifname": ifname,
        "hca": selector or exact_selector(members, table),
        "members": [
            {
                "hca": port["name"],
                "port": port["port"],
                "ifname": port["netdev"],
                "usable": [row["index"] for row in rows],
            }
            for port, rows in zip(members, usable, strict=True)
        ],
        "gid_index": chosen,
        "table_digest": table_digest(members),
        "notes": notes,
    }


def _why_none(port: Port, table: Table) -> str:
    """Why a port has no usable row, as a hint to the way out."""
    interfaces, netdev = table["interfaces"], port["netdev"]
    if not port["rows"]:
        return "its GID table is empty"
    held = sorted(address["ip"] for address in addresses_on(netdev, interfaces))
    if not held:
        return f"netdev {netdev} has no IPv4 address" if netdev else "it has no netdev"
    mapped = sorted((row for row in port["rows"] if ipv4_of(row["gid"])), key=lambda row: row["index"])
    stale = [row for row in mapped if row["type"] == ROCE_V2]
    if stale:
        return f"row {stale[0]['index']}: {objection(stale[0], interfaces)}"
    if mapped:
        return f"its IPv4 rows are all {mapped[0]['type']}, none is {ROCE_V2}"
    return f"no row holds {', '.join(held)} of netdev {netdev}"


def _choose(
    members: Sequence[Port], usable: Sequence[Sequence[Row]], fabric_ip: str, gid_index: str | int, shown: str
) -> int | None:
    """The index for all members; None for `unset`. Raises Refusal if there is none, or the given one is not usable."""
    sets = [{row["index"] for row in rows} for rows in usable]
    common = set.intersection(*sets)
    if gid_index == "unset":
        return None
    each = "; ".join(f"{label(p)}: {', '.join(map(str, sorted(s)))}" for p, s in zip(members, sets, strict=True))
    if isinstance(gid_index, int):
        if gid_index not in common:
            what = f"gid_index {gid_index} is not usable on every HCA (usable: {each})"
            raise Refusal(f"{what}\n{shown}\nUse gid_index: resolve.")
        return gid_index
    if not common:
        raise Refusal(
            f"no GID index is usable on every HCA (usable: {each})\n{shown}\n"
            "Use gid_index: unset, so that NCCL chooses for each HCA, or name HCAs that agree with `hca`.",
        )
    fabric = {row["index"] for rows in usable for row in rows if ipv4_of(row["gid"]) == fabric_ip}
    return min(common, key=lambda index: (index not in fabric, index))


def main() -> None:
    from gid import sysfs  # reads this machine, which the control host does not need

    inputs: LookupInputs = json.loads(sys.argv[1])
    try:
        # a person gives the address alone (docs/troubleshooting.md)
        asked = (inputs.get("hca"), inputs.get("gid_index", "resolve"), inputs.get("links", []))
        resolution = resolve(sysfs.read_table(), inputs["fabric_ip"], *asked)
    except OSError as error:
        raise SystemExit(f"the interfaces of this node cannot be read: {error}") from None
    except Refusal as refusal:
        raise SystemExit(str(refusal)) from None
    for sentence in resolution["notes"]:
        print(f"note: {sentence}", file=sys.stderr)
    print(json.dumps(resolution))


if __name__ == "__main__":
    main()
