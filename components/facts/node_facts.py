"""What was read from each node, and what the program asks about it. Judging it is preflight.py's work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from components.facts.generation import PATCHES, LiveRank
from components.settings.sections import NodeSettings
from facts.document import Facts, parsed
from gid.lookup import Resolution, resolve
from gid.members import Refusal
from gid.table import Table
from host.console import first_of


@dataclass(frozen=True)
class NodeFacts(Facts):
    """One node's document."""

    def resolution(self, node: NodeSettings, gid_index: str | int) -> Resolution:
        """The node's HCAs and index from these facts. Raises gid.members.Refusal with the table."""
        if self.hcas is None or self.interfaces is None:
            raise Refusal("the interfaces of this node could not be read")
        table: Table = {"hcas": self.hcas, "interfaces": self.interfaces}
        return resolve(table, str(node.fabric_ip), node.hca, gid_index, [str(link) for link in node.links])

    def live_rank(self, stack: str, rank: int, role: str) -> LiveRank | None:
        """The container of one rank of a stack, identified by its labels."""
        labels = {"spark.stack": stack, "spark.rank": str(rank)}
        for container in self.containers or []:
            if labels.items() <= container.labels.items():
                return LiveRank(
                    role=role,
                    running=container.running,
                    generation=container.labels.get("spark.generation"),
                    spec=container.labels.get("spark.spec"),
                    exit_code=container.exit_code,
                    oom_killed=container.oom_killed,
                    error=container.error or "",
                    patches=container.labels.get(PATCHES, ""),
                )
        return None

    def image_gap(self) -> str | None:
        """Why the image must be pulled and its folder of kernels made; None when both are there."""
        return self.folder_gap() or (None if self.image and self.image.present else "the image is missing")

    def folder_gap(self) -> str | None:
        # a repair first removes what is there, so a folder that could not be read is not repaired
        return "our folder is missing" if self.folder is False else None

    def patches_gap(self) -> str | None:
        """Why the patches' files must be put in their place, in words; None when they are there, or nobody knows."""
        return first_of(self.patches.missing) if self.patches else None

    def job_runs(self, stack: str) -> bool:
        """Whether a job of this stack works on the checkpoint now; one that has ended and only serves peers doesn't."""
        labels = {"spark.stack": stack, "spark.job": "checkpoint"}
        alive = any(labels.items() <= each.labels.items() and each.running for each in self.containers or [])
        # without a status it is just starting
        return alive and (self.job is None or self.job.state == "running")

    def checkpoint_gap(self) -> str | None:
        """Why the checkpoint must be fetched; None when it is verified."""
        if self.checkpoint is None:
            return "the cache could not be read"
        return first_of(self.checkpoint.gaps)


def parse(text: str) -> NodeFacts:
    """The document between the marker lines. Raises ValueError for anything else."""
    return parsed(text, NodeFacts)


def with_missing(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """The same facts, with each node's missing bytes counted by the head's listing."""
    head = nodes[0].checkpoint
    if head is None or head.listing is None:
        return list(nodes)
    listed = {blob: (path, size) for path, blob, size in head.listing}
    counted = []
    for node in nodes:
        if node.checkpoint and node.checkpoint.gaps:
            sizes = node.checkpoint.sizes
            lacks = {blob for blob, (path, size) in listed.items() if size not in (sizes.get(blob), sizes.get(path))}
            # an interrupted download restarts in the disk space that it already takes
            partial = sum(
                size for name, size in sizes.items() if name not in listed and name.partition(".")[0] in lacks
            )
            missing = max(0, sum(listed[blob][1] for blob in lacks) - partial)
            node = replace(node, checkpoint=replace(node.checkpoint, missing_bytes=missing))
        counted.append(node)
    return counted
