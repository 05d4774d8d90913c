"""Three nodes in a ring without a switch: each two share a link with a subnet of its own. Pure.

The ranks meet on a network that all of them have, such as the LAN, since no link reaches everybody.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import NamedTuple

from components.settings.patches import PatchSettings
from components.settings.sections import NodeSettings

PADDED_NODES = 3
PADDING = "tp3/apply_tp3_patch.py"
NEEDS_PADDING = (
    "3 nodes: the model has 64 heads in 8 groups, which 3 does not divide. The recipe pads them to 72 in 9 with "
    f"{PADDING} (pull request 196), which the patches of this stack do not run: set patches.lock to a lock that has it "
    "(docs/three_nodes.md shows the row to add), or list 2 nodes"
)


class BrokenLink(NamedTuple):
    rank: int
    text: str


def same_subnet(one: IPv4Address, other: IPv4Address) -> bool:
    """Whether two addresses are on one link, whose subnet is a /24 as the recipe has it."""
    return int(one) >> 8 == int(other) >> 8


def runs_padding(count: int, patches: PatchSettings | None) -> bool:
    """Whether the patches make the model fit this number of nodes."""
    return count == PADDED_NODES and patches is not None and any(each.file == PADDING for each in patches.patches)


def broken_link(nodes: Sequence[NodeSettings]) -> BrokenLink | None:
    """The first link that shares its subnet with no other node alone, or node that another has no link to: a hang."""

    def linked(link: IPv4Address, far: NodeSettings) -> bool:
        return any(same_subnet(link, other) for other in far.links)

    for rank, node in enumerate(nodes):
        for position, link in enumerate(node.links):
            if any(link in far.links for far in nodes if far is not node):
                return BrokenLink(rank, f"{link} is a link of another node too: give each end its own address")
            if any(same_subnet(link, other) for other in node.links[:position]):
                text = f"{link} is in the /24 of another link of this node: each link needs a /24 of its own"
                return BrokenLink(rank, text)
    for rank, node in enumerate(nodes):
        others = [other for other in nodes if other is not node]
        if alone := [link for link in node.links if not any(linked(link, far) for far in others)]:
            return BrokenLink(rank, f"no other node has a link in the /24 of {alone[0]}: correct the address")
        for far in others:
            if not any(linked(link, far) for link in node.links):
                text = f"no link is in the /24 of a link of {far.ssh}: in a ring each two nodes share a subnet"
                return BrokenLink(rank, text)
    return None
