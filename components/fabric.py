"""One node's end of the QSFP link: the looked-up netdev, HCAs and GID index."""

import json

import pulumi

from components.node import Node
from components.settings.cluster import ClusterSettings
from gid.lookup import LookupInputs, Resolution


class Fabric(pulumi.ComponentResource):
    """The GID lookup of one node, as the output of a command on it. Without a usable row it fails and shows the table.

    It runs again after a boot and when the table has changed. Ranks use its value only with `gid_index: pin`; otherwise
    each resolves its own at every start, so a drift never replaces a healthy pair.
    """

    gid_index: pulumi.Output[int | None]
    hca: pulumi.Output[str]
    """NCCL_IB_HCA as the ranks of this node use it."""
    ifname: pulumi.Output[str]

    def __init__(self, cluster: ClusterSettings, node: Node, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("spark:fabric:Fabric", f"{node.role}-fabric", None, opts)
        inputs: LookupInputs = {
            "fabric_ip": str(node.settings.fabric_ip),
            "hca": node.settings.hca,
            "links": [str(link) for link in node.settings.links],
            "gid_index": cluster.fabric.gid_index,
        }
        self.lookup = node.script(
            "gid",
            "gid.lookup",
            inputs,
            timeout_s=60,
            note=node.plan.fabric_note,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[node.ready]),
        )
        resolution: pulumi.Output[Resolution] = self.lookup.stdout.apply(json.loads)
        self.gid_index = resolution.apply(lambda looked_up: looked_up["gid_index"])
        self.hca = resolution.apply(lambda looked_up: looked_up["hca"])
        self.ifname = resolution.apply(lambda looked_up: looked_up["ifname"])
        self.register_outputs({"gid_index": self.gid_index, "hca": self.hca, "ifname": self.ifname})
