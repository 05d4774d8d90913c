"""What each node's checkpoint lacks, and what an update will do about it. Pure.

A preview shows it, since 155 GiB must not surprise anyone, and a change of it runs the checkpoint's steps again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from components.facts.node_facts import NodeFacts
from components.settings.cluster import ClusterSettings

GIB = 2**30


@dataclass(frozen=True)
class Need:
    """What one node needs before its checkpoint is verified."""

    role: str
    does: str
    """What the update will do there, with GiB."""
    why: str
    after: str
    """The last job's id: a further attempt is a further reason to run a step."""

    def __str__(self) -> str:
        return f"{self.role} {self.does}: {self.why}"

    @property
    def trigger(self) -> str:
        """When it changes, the steps run again."""
        return f"{self} (after {self.after})"


def missing_gib(cluster: ClusterSettings, facts: NodeFacts) -> float:
    """GiB of the configured revision that this node lacks; 0 when all of it is there, verified or not."""
    if facts.checkpoint is None:
        return cluster.checkpoint.size_gib
    if not facts.checkpoint.gaps:
        return 0.0
    if facts.checkpoint.missing_bytes is not None:
        return facts.checkpoint.missing_bytes / GIB
    return max(0.0, cluster.checkpoint.size_gib - facts.checkpoint.bytes_present / GIB)


def need(cluster: ClusterSettings, rank: int, facts: NodeFacts) -> Need | None:
    role, size = cluster.role(rank), cluster.checkpoint.size_gib
    after = f"job {facts.job.id}" if facts.job else "no job yet"
    if cluster.reads_over_nfs(rank):
        if facts.nfs is None or not facts.nfs.refused:
            return None
        silent = f"the head's NFS server does not answer it ({facts.nfs.refused})"
        # a server can stop any number of times in one generation
        return Need(role, "verifies that it can read the head's copy", silent, f"the facts of {facts.read_at}")
    why = facts.checkpoint_gap()
    if why is None:
        return None
    revisions = facts.checkpoint.revisions if facts.checkpoint else []
    others = [revision for revision in revisions if revision != cluster.checkpoint.revision]
    if facts.checkpoint and cluster.checkpoint.revision not in revisions:
        has = " and ".join(revision[:8] for revision in others)
        why = f"it has revision {has} so far" if others else "it has nothing of this model yet"
    lacks = missing_gib(cluster, facts)
    counted = facts.checkpoint is not None and facts.checkpoint.missing_bytes is not None
    if lacks <= (0 if counted else size / 1000):
        # sizes alone do not show what is damaged or unverified
        does = f"verifies its {amount(size)} again, and fetches what is damaged"
    else:
        # blobs shared with another revision are not fetched again; how many those are, only the list of files tells
        most = "up to " if others and not counted else ""
        does = f"downloads {most}{amount(lacks)}" if rank == 0 else f"mirrors {most}{amount(lacks)} from head"
    return Need(role, does, why, after)


def size(count: int) -> str:
    """Bytes for a person."""
    return amount(count / GIB)


def amount(gib: float) -> str:
    if gib >= 1:
        return f"{gib:.1f} GiB"
    return f"{gib * 1024:.1f} MiB" if gib >= 0.1 / 1024 else f"{gib * GIB:,.0f} bytes"


def lines(cluster: ClusterSettings, facts: Sequence[NodeFacts]) -> list[str]:
    """What a preview says about the checkpoint: a line for each node with something to do, and what stays behind."""
    repo, revision = cluster.checkpoint.repo, cluster.checkpoint.revision
    shown = []
    for rank, node in enumerate(facts):
        lacking = need(cluster, rank, node)
        if lacking is None:
            continue
        shown.append(f"checkpoint {repo} at {revision[:8]}: {lacking}")
        if node.checkpoint is None:
            continue
        kept = [f"revision {other[:8]}" for other in node.checkpoint.revisions if other != revision]
        if cluster.reads_over_nfs(rank) and node.checkpoint.bytes_present:
            kept = [f"a copy of its own, {amount(node.checkpoint.bytes_present / GIB)},"]
        if kept:
            shown.append(f"checkpoint: {lacking.role} keeps {' and '.join(kept)} until scripts/spark prune removes it")
    return shown
