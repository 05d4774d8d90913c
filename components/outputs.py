"""The stack's outputs: what a person and a script ask of a running pair."""

from typing import TypedDict

import pulumi

from components.ssh.reach import api_reach, api_url
from components.stack import SparkPair
from components.start.wait import KvPool, Report, Start
from components.verified import Verification


class Model(TypedDict):
    repo: str
    revision: str


class Outputs(TypedDict):
    """After an `up`; mappings are by role."""

    api_url: str
    api_reach: str
    """Who reaches it there, in words."""
    models: list[str]
    kv_pool: KvPool
    gid_index: dict[str, int | None]
    hca: dict[str, str]
    image: str
    """repository@sha256:digest."""
    model: Model
    checkpoint: dict[str, Verification | None]
    generation: str
    start: Start


def export(pair: SparkPair) -> None:
    """Export what Outputs lists."""
    cluster, report = pair.cluster, pair.readiness.report
    by_role = list(zip(pair.nodes, pair.fabrics, strict=True))
    checkpoints = zip(pair.nodes, pair.checkpoints, strict=True)
    url = api_url(cluster, pair.head_host)
    pulumi.export("api_url", url)
    pulumi.export("api_reach", api_reach(cluster, url))
    pulumi.export("models", list(cluster.engine.served_model_name))
    pulumi.export("kv_pool", report.apply(lambda of: part(of, KvPool)))
    pulumi.export("gid_index", {node.role: fabric.gid_index for node, fabric in by_role})
    pulumi.export("hca", {node.role: fabric.hca for node, fabric in by_role})
    pulumi.export("image", cluster.image.pinned)
    pulumi.export("model", {"repo": cluster.checkpoint.repo, "revision": cluster.checkpoint.revision})
    pulumi.export("checkpoint", {node.role: checkpoint.verified for node, checkpoint in checkpoints})
    pulumi.export("generation", pair.generation.name)
    pulumi.export("start", report.apply(lambda of: part(of, Start)))


def part(report: Report | None, output: type[KvPool] | type[Start]) -> dict[str, object]:
    """What an output takes from the report; the state may still hold an earlier release's, with less in it."""
    return {name: report.get(name) if report else None for name in output.__annotations__}
