"""The files of a patch lock on every node: fetched once by the head, given to the others, verified on each."""

import json
from collections.abc import Mapping, Sequence

import pulumi

from components.node import Node
from components.settings.cluster import ClusterSettings
from components.settings.patches import PatchSettings
from patches.files import pack
from patches.place import Placed, PlaceInputs


def files_of(printed: str) -> str:
    placed: Placed | None = json.loads(printed or "null")
    return (placed and placed["files"]) or ""


class Patches(pulumi.ComponentResource):
    """One node's files, in the stack's folder there; a rank mounts them read-only."""

    placed: pulumi.Resource
    files: pulumi.Output[str]
    """All of them as one text, for the other nodes; empty where there are none."""

    def __init__(
        self,
        settings: PatchSettings,
        node: Node,
        given: pulumi.Input[str] | None,
        *,
        share: bool,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`given`: the files as one text; None: this node fetches them."""
        super().__init__("spark:patches:Patches", f"{node.role}-patches", None, opts)
        inputs: PlaceInputs = {
            "stack": pulumi.get_stack(),
            "lock": settings.digest,
            "source": settings.source,
            "share": share,
        }
        variables: Mapping[str, pulumi.Input[str]] = {"SPARK_PATCHES": given} if given is not None else {}
        step = node.script(
            "patches",
            "patches.place",
            inputs,
            timeout_s=300,
            repair=node.plan.patches_gap,
            variables=variables,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[node.ready]),
        )
        self.placed = step
        self.files = step.stdout.apply(files_of)
        self.register_outputs({"lock": settings.lock})


def declare(cluster: ClusterSettings, nodes: Sequence[Node]) -> list[Patches]:
    """Every node's files in rank order; none where the stack starts without patches."""
    if cluster.patches is None:
        return []
    here = cluster.patches.contents_here()
    given: pulumi.Input[str] | None = pack(here) if here else None
    head = Patches(cluster.patches, nodes[0], given, share=given is None and len(nodes) > 1)
    others = [
        Patches(cluster.patches, node, given if given is not None else head.files, share=False) for node in nodes[1:]
    ]
    return [head, *others]
