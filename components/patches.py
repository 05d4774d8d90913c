"""The files of a patch lock on every node: fetched once by the head, given to the others, verified on each."""

import json
from collections.abc import Mapping, Sequence
from typing import TypedDict

import pulumi

from components.node import Node
from components.settings.cluster import ClusterSettings
from components.settings.patches import DIRECTION, PatchSettings
from patches.direction import DirectionInputs
from patches.files import pack
from patches.place import Placed, PlaceInputs


class Gated(TypedDict):
    hub: str
    token: pulumi.Output[str] | None


def files_of(printed: str) -> str:
    placed: Placed | None = json.loads(printed or "null")
    return (placed and placed["files"]) or ""


class Patches(pulumi.ComponentResource):
    """One node's files, in the stack's folder there; a rank mounts them read-only."""

    placed: list[pulumi.Resource]
    """What a rank of this node waits for."""
    files: pulumi.Output[str]
    """All of them as one text, for the other nodes; empty where there are none."""

    def __init__(
        self,
        settings: PatchSettings,
        node: Node,
        given: pulumi.Input[str] | None,
        *,
        share: bool,
        hub: str,
        token: pulumi.Output[str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`given`: the files as one text; None: this node fetches them. `hub` and `token`: for an abliterated model."""
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
        self.placed = [step]
        if settings.abliterated and token is not None:
            wanted: DirectionInputs = {**DIRECTION, "stack": pulumi.get_stack(), "endpoint": hub}
            self.placed.append(
                node.script(
                    "direction",
                    "patches.direction",
                    wanted,
                    timeout_s=120,
                    repair=node.plan.folder_gap,
                    secrets={"HF_TOKEN": token},
                    opts=pulumi.ResourceOptions(parent=self, depends_on=[node.ready]),
                )
            )
        self.files = step.stdout.apply(files_of)
        self.register_outputs({"lock": settings.lock})


def declare(cluster: ClusterSettings, nodes: Sequence[Node], token: pulumi.Output[str] | None) -> list[Patches]:
    """Every node's files in rank order; none where the stack starts without patches."""
    if cluster.patches is None:
        return []
    gated: Gated = {"hub": cluster.checkpoint.endpoint, "token": token}
    here = cluster.patches.contents_here()
    given: pulumi.Input[str] | None = pack(here) if here else None
    head = Patches(cluster.patches, nodes[0], given, share=given is None and len(nodes) > 1, **gated)
    others = [
        Patches(cluster.patches, node, given if given is not None else head.files, share=False, **gated)
        for node in nodes[1:]
    ]
    return [head, *others]
