"""The preflight's rules for the cables between the nodes: MTU at both ends, PCIe width, as many ports on each. Pure."""

from collections.abc import Iterator, Sequence

from components.facts.finding import Finding
from components.facts.node_facts import NodeFacts
from components.settings.cluster import ClusterSettings
from gid.members import Refusal

FABRIC_MTU = 9000
"""What the recipe asks of every port; less costs prefill speed, and two that differ cost more."""


def cables(cluster: ClusterSettings, facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """What the ports that the ranks will use have that is not right, or not alike."""
    ports = [members(cluster, rank, node) for rank, node in enumerate(facts)]
    roles = [cluster.role(rank) for rank in range(len(facts))]
    mtus: dict[str, int] = {}
    for role, node, names in zip(roles, facts, ports, strict=True):
        for name in names:
            link = (node.links or {}).get(name)
            if link is None:
                continue
            if link.mtu:
                mtus[f"{role} {name}"] = link.mtu
            if link.width and link.most_width and link.width < link.most_width:
                yield Finding(
                    "warning",
                    role,
                    f"the PCIe link of {name} has {link.width} lanes of {link.most_width}: the card came up badly, and "
                    "only taking the power off (the plug, not a reboot) brings them back",
                )
    if any(mtu < FABRIC_MTU for mtu in mtus.values()) or len(set(mtus.values())) > 1:
        shown = ", ".join(f"{port} {mtu}" for port, mtu in mtus.items())
        low = next((port.split()[1] for port, mtu in mtus.items() if mtu < FABRIC_MTU), "NETDEV")
        yield Finding(
            "warning",
            "nodes",
            f"the fabric's ports have an MTU of {shown}: give every one {FABRIC_MTU} (sudo ip link set {low} mtu "
            f"{FABRIC_MTU}, and in netplan, or the next boot brings the old one back)",
        )
    if len({len(names) for names in ports if names}) > 1:
        shown = ", ".join(f"{role} {' and '.join(names)}" for role, names in zip(roles, ports, strict=True))
        yield Finding(
            "warning",
            "nodes",
            f"the ranks would use {shown}: a port without one at the other end carries nothing; give both functions of "
            "the port an address on each node, or name the HCAs with nodes[].hca",
        )


def members(cluster: ClusterSettings, rank: int, facts: NodeFacts) -> list[str]:
    """Netdevs of the HCAs that a rank will use; none where another rule says why."""
    try:
        resolution = facts.resolution(cluster.nodes[rank], cluster.fabric.gid_index)
    except Refusal:
        return []
    return [member["ifname"] for member in resolution["members"] if member["ifname"]]
