"""The lab's state as a table, read over one connection to each node."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import access, boot, faults
from lab.fabric import shipped_ports
from lab.nodes import Nodes
from lab.place import SERVICES, Node
from lab.report import each

PROBE = Path(__file__).with_name("node_status.py")
COLUMNS = ("node", "power", "ssh", "docker", "gid index", "fabric", "sudo", "containers")


@dataclass(frozen=True)
class NodeStatus:
    """One row of the table. `facts` is what node_status.py printed; empty if the node could not be asked."""

    node: Node
    power: str
    ssh: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return self.ssh and bool(self.facts.get("docker"))

    def cells(self) -> tuple[str, ...]:
        """The row's cells, in the order of COLUMNS."""
        if not self.facts:
            return (self.node.name, self.power, "yes" if self.ssh else "no", *["-"] * 5)
        running, stopped = self.facts["containers"], self.facts["stopped"]
        containers = ", ".join(running) or "none"
        return (
            self.node.name,
            self.power,
            "yes",
            self.facts["docker"] or "no answer",
            ", ".join(map(" ".join, gid_indexes(self.node, self.facts["gids"]).items())) or "no HCA",
            "carrier" if all(self.facts["carrier"].values()) else "no carrier",
            "yes" if self.facts["sudo"] else "no",
            containers + (f" (+{stopped} stopped)" if stopped else ""),
        )


def gid_indexes(node: Node, tables: dict[str, list[list[Any]]]) -> dict[str, str]:
    """For each HCA, in the fabric's order, the row with the node's own fabric address; `none` if no row has it."""
    own = {port.hca: str(port.addresses[-1].ip) for port in shipped_ports(node)}
    return {
        hca: next((str(row) for row, address in tables[hca] if address == fabric_ip), "none")
        for hca, fabric_ip in own.items()
        if hca in tables
    }


def read(pair: Nodes, node: Node) -> NodeStatus:
    """The state of one node."""
    power = pair.power(node)
    if not pair.runs(node) or not boot.greets(pair.place, node):
        return NodeStatus(node, power)
    done = access.run(pair.place, node, ["python3", "-"], user="spark", stdin=PROBE.read_text(), limit_s=90)
    if done.returncode != 0:
        return NodeStatus(node, power, ssh=done.returncode not in (124, 255))
    return NodeStatus(node, power, ssh=True, facts=json.loads(done.stdout))


def services(pair: Nodes) -> tuple[bool, str]:
    """Whether the registry and the hub run, and what `lab/services status` prints."""
    environment = os.environ | {"SPARK_LAB": str(pair.place.root)}
    done = subprocess.run(
        [str(SERVICES), "status"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode == 0, (done.stdout or done.stderr).strip()


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows as text in columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def report(pair: Nodes) -> tuple[bool, str]:
    """Whether both nodes and the services are up, and the whole text."""
    statuses = each(lambda node: read(pair, node), pair.place.nodes)
    serving, services_text = services(pair)
    lines = [table([COLUMNS, *(status.cells() for status in statuses)]), ""]
    lines.append(f"nodes     {pair.about}, pair {pair.place.number}")
    lines.append(f"cable     {'out' if pair.place.cable.exists() else 'in'}")
    lines.append(f"states    {', '.join(sorted(pair.states)) or 'none'}")
    active = faults.read(pair.place)
    lines.append(f"faults    {', '.join(f'rank {rank} {name}' for rank, name in active.items()) or 'none'}")
    lines.append("services  " + services_text.replace("\n", "\n          "))
    return all(status.ready for status in statuses) and serving, "\n".join(lines)
