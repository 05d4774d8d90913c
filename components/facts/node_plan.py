"""What one node's facts ask of its resources: which steps run again, and why. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from components.facts.checkpoint_plan import Need, need
from components.facts.node_facts import NodeFacts
from components.settings.cluster import ClusterSettings


@dataclass(frozen=True)
class NodePlan:
    """Reasons to repair something on a node, None where there is none.

    The defaults are also the plan of a node that was not read: with `facts: off` nothing is repaired.
    """

    folder_gap: str | None = None
    """Why our folder must be made again, although the state has it."""
    image_gap: str | None = None
    """Why the image must be pulled again."""
    patches_gap: str | None = None
    """Why the files of the startup patches must be put in their place again."""
    checkpoint: Need | None = None
    job_runs: bool = False
    """Whether a job of this stack is working on the node's checkpoint now."""
    fabric_note: str = ""
    """Boot and GID table in a few characters: when they change, the lookup runs again and the diff shows why."""


def node_plans(cluster: ClusterSettings, facts: Sequence[NodeFacts], stack: str) -> list[NodePlan]:
    """A plan for every node, in rank order; `facts` is empty with `facts: off`."""
    if not facts:
        return [NodePlan()] * len(cluster.nodes)
    return [
        NodePlan(
            folder_gap=node.folder_gap(),
            image_gap=node.image_gap(),
            patches_gap=node.patches_gap(),
            checkpoint=need(cluster, rank, node),
            job_runs=node.job_runs(stack),
            fabric_note=fabric_note(cluster, rank, node),
        )
        for rank, node in enumerate(facts)
    ]


def fabric_note(cluster: ClusterSettings, rank: int, facts: NodeFacts) -> str:
    node = cluster.nodes[rank]
    resolution = facts.resolution(node, cluster.fabric.gid_index)
    boot = sha256((facts.boot_id or "").encode()).hexdigest()[:8]
    return f"boot {boot} table {resolution['table_digest'][:8]}"
