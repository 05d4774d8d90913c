"""nfs mode: the head's hub cache over the fabric, read-only, for workers without a copy of their own."""

import json
from collections.abc import Sequence

import pulumi

from components.image import Image
from components.node import Node
from components.rank.mounts import NFS_OPTIONS
from components.settings.cluster import ClusterSettings
from components.verified import NodeCheckpoint, verification
from nfs.export import ExportInputs
from nfs.proof import Proof, ProofInputs


class NfsExport(pulumi.ComponentResource):
    """hub/ alone, read-only and with root squashed, to the workers' fabric addresses alone.

    An export of that tree that exists already is used and left alone, also by destroy. A server that serves anything
    else is refused.
    """

    printed: pulumi.Output[str]
    """What the step printed: an Export, as JSON."""

    def __init__(
        self,
        cluster: ClusterSettings,
        node: Node,
        checkpoint: pulumi.Resource,
        repair: str | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("spark:nfs:Export", "nfs-export", None, opts)
        self._node = node
        self._inputs: ExportInputs = {
            "action": "make",
            "stack": pulumi.get_stack(),
            "hf_cache": node.settings.hf_cache,
            "worker_fabric_ips": [cluster.link_to_head(rank)[1] for rank in range(1, len(cluster.nodes))],
            "image": cluster.image.pinned,
            "python": cluster.image.python,
        }
        remove: ExportInputs = {**self._inputs, "action": "remove"}
        self.exported = node.script(
            "nfs-export",
            "nfs.export",
            self._inputs,
            timeout_s=180,
            repair=repair,
            delete_inputs=remove,
            # a repair replaces the resource: removing the old one last would undo it
            opts=pulumi.ResourceOptions(parent=self, depends_on=[checkpoint], delete_before_replace=True),
        )
        self.printed = self.exported.stdout
        self.register_outputs({})

    def outlive(self, readers: Sequence[pulumi.Resource]) -> None:
        """Before these ranks are removed, restart a server that has stopped: a removal with a dead mount would hang.

        The step does this when it is itself removed, which a destroy does first; a destroy reads no facts.
        """
        inputs: ExportInputs = {**self._inputs, "action": "serve"}
        opts = pulumi.ResourceOptions(parent=self, depends_on=[self.exported, *readers])
        self._node.script("nfs-serves", "nfs.export", inputs, timeout_s=180, delete_inputs=inputs, opts=opts)


def keep_serving(checkpoints: Sequence[NodeCheckpoint], ranks: Sequence[pulumi.Resource]) -> None:
    """The head's server runs until the last rank that reads from it is gone."""
    over_nfs = [
        (checkpoint.export, rank)
        for checkpoint, rank in zip(checkpoints, ranks, strict=True)
        if isinstance(checkpoint, NfsCheckpoint)
    ]
    if over_nfs:
        export = over_nfs[0][0]
        export.outlive([rank for _, rank in over_nfs])


def device_of(stdout: str) -> str:
    proof: Proof | None = json.loads(stdout or "null")
    return proof["device"] if proof else ""


class NfsCheckpoint(NodeCheckpoint):
    """A worker's view of the head's checkpoint, verified by reading every shard through the same mount as its rank."""

    def __init__(
        self,
        cluster: ClusterSettings,
        node: Node,
        image: Image,
        export: NfsExport,
        repair: str | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("spark:nfs:Checkpoint", f"{node.role}-checkpoint", None, opts)
        self.export = export
        checkpoint = cluster.checkpoint
        address, _ = cluster.link_to_head(node.rank)
        inputs: ProofInputs = {
            "head_fabric_ip": address,
            "options": NFS_OPTIONS,
            "repo": checkpoint.repo,
            "revision": checkpoint.revision,
            "shards": checkpoint.shards,
            "encoding_file": checkpoint.encoding_file,
            "image": cluster.image.pinned,
            "python": cluster.image.python,
            "stack": pulumi.get_stack(),
            "timeout_s": 300,
        }
        proof = node.script(
            "checkpoint",
            "nfs.proof",
            inputs,
            timeout_s=360,
            repair=repair,
            variables={"SPARK_EXPORT": export.printed},
            opts=pulumi.ResourceOptions(parent=self, depends_on=[node.ready, image.pulled, export.exported]),
        )
        self.ready = proof
        self.verified = proof.stdout.apply(lambda stdout: verification("nfs", stdout))
        self.hub = proof.stdout.apply(device_of)
        self.register_outputs({"server": address})
