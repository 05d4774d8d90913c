"""The checkpoint on every node before a rank may start: the head downloads, and the others mirror or read its copy."""

from collections.abc import Sequence

import pulumi
import pulumi_command as command

from components.image import Image
from components.nfs import NfsCheckpoint, NfsExport
from components.node import Node
from components.settings.cluster import ClusterSettings
from components.verified import NodeCheckpoint, verification
from download.step import StepInputs


def inputs_of(cluster: ClusterSettings, node: Node) -> StepInputs:
    checkpoint, ranks = cluster.checkpoint, range(1, len(cluster.nodes))
    mirrors = [cluster.link_to_head(rank) for rank in ranks if not cluster.reads_over_nfs(rank)]
    head, own = cluster.link_to_head(node.rank)
    return {
        "action": "begin",
        "role": "mirror" if node.rank else "fetch",
        "repo": checkpoint.repo,
        "revision": checkpoint.revision,
        "shards": checkpoint.shards,
        "encoding_file": checkpoint.encoding_file,
        "endpoint": checkpoint.endpoint,
        "patience_s": checkpoint.hub_patience_s,
        "image": cluster.image.pinned,
        "python": cluster.image.python,
        "hf_cache": node.settings.hf_cache,
        "stack": pulumi.get_stack(),
        # who copies from here and to which of its addresses; else where to copy from, and from which of its own
        "fabric_ips": [own] if node.rank else sorted({head for head, _ in mirrors}),
        "peer_fabric_ips": [] if node.rank else [peer for _, peer in mirrors],
        "head_fabric_ip": head if node.rank else None,
    }


class Checkpoint(NodeCheckpoint):
    """One node's own copy, every file verified by its hash. It is never removed.

    - a step that starts the node's job and returns: the head's job downloads, and serves the others with a token made
      for this one run; theirs copy what has arrived there
    - a step that follows the job until the copy is verified; head and workers are followed at the same time
    """

    begun: command.remote.Command
    """Its stdout is a Begun: what the other nodes copy with, so a secret."""

    def __init__(
        self,
        cluster: ClusterSettings,
        node: Node,
        image: Image,
        secrets: dict[str, pulumi.Input[str]],
        *,
        begin_again: str | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("spark:checkpoint:Checkpoint", f"{node.role}-checkpoint", None, opts)
        inputs = inputs_of(cluster, node)
        self.begun = node.script(
            "checkpoint-job",
            "download.step",
            inputs,
            timeout_s=600,
            # a job that runs is followed, not begun again
            repair=None if node.plan.job_runs else begin_again,
            secrets=secrets,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[node.ready, image.pulled]),
        )
        follow: StepInputs = {**inputs, "action": "follow"}
        done = node.script(
            "checkpoint",
            "download.step",
            follow,
            timeout_s=cluster.checkpoint.download_timeout_s,
            repair=reasons([node]),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self.begun]),
        )
        self.ready = done
        self.verified = done.stdout.apply(lambda stdout: verification("local", stdout))
        self.hub = node.hub
        self.register_outputs({"revision": cluster.checkpoint.revision})


def declare(
    cluster: ClusterSettings, nodes: Sequence[Node], images: Sequence[Image], hf_token: pulumi.Output[str] | None
) -> list[NodeCheckpoint]:
    """Every node's checkpoint, in rank order."""
    token: dict[str, pulumi.Input[str]] = {"HF_TOKEN": hf_token if hf_token is not None else ""}
    if cluster.checkpoint.mode == "nfs":
        return declare_nfs(cluster, nodes, images, token)
    return declare_local(cluster, nodes, images, token)


def declare_local(
    cluster: ClusterSettings, nodes: Sequence[Node], images: Sequence[Image], token: dict[str, pulumi.Input[str]]
) -> list[NodeCheckpoint]:
    """A copy on every node: the head downloads, and the others mirror from it."""
    # what a worker lacks, the head's job must serve
    head = Checkpoint(cluster, nodes[0], images[0], token, begin_again=reasons(nodes))
    source: dict[str, pulumi.Input[str]] = {"SPARK_SOURCE": head.begun.stdout}
    return [
        head,
        *(
            Checkpoint(cluster, node, image, source, begin_again=reasons([node]))
            for node, image in zip(nodes[1:], images[1:], strict=True)
        ),
    ]


def declare_nfs(
    cluster: ClusterSettings, nodes: Sequence[Node], images: Sequence[Image], token: dict[str, pulumi.Input[str]]
) -> list[NodeCheckpoint]:
    """One copy, on the head, which the others read."""
    head = Checkpoint(cluster, nodes[0], images[0], token, begin_again=reasons(nodes[:1]))
    export = NfsExport(cluster, nodes[0], head.ready, reasons(nodes[1:]))
    return [
        head,
        *(
            NfsCheckpoint(cluster, node, image, export, reasons([node]))
            for node, image in zip(nodes[1:], images[1:], strict=True)
        ),
    ]


def reasons(nodes: Sequence[Node]) -> str | None:
    """Why steps of these nodes run again; None when none of them needs anything."""
    return "; ".join(node.plan.checkpoint.trigger for node in nodes if node.plan.checkpoint) or None
