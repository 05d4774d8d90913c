"""The stack's outputs: what a person and a script ask of a running pair."""

import pulumi

from components.stack import SparkPair


def export(pair: SparkPair) -> None:
    cluster, report = pair.cluster, pair.readiness.report
    by_role = list(zip(pair.nodes, pair.fabrics, strict=True))
    checkpoints = zip(pair.nodes, pair.checkpoints, strict=True)
    pulumi.export("api_url", cluster.api_url)
    pulumi.export("models", list(cluster.engine.served_model_name))
    pulumi.export("kv_pool", report.apply(kv_pool))
    pulumi.export("gid_index", {node.role: fabric.gid_index for node, fabric in by_role})
    pulumi.export("hca", {node.role: fabric.hca for node, fabric in by_role})
    pulumi.export("image", cluster.image.pinned)
    pulumi.export("model", {"repo": cluster.checkpoint.repo, "revision": cluster.checkpoint.revision})
    pulumi.export("checkpoint", {node.role: copy.whole for node, copy in checkpoints})
    pulumi.export("generation", pair.generation.name)
    pulumi.export("start", report.apply(start))


def kv_pool(report: dict[str, object]) -> dict[str, object]:
    """The engine's own numbers: GiB a rank, tokens, requests of the longest context at once."""
    return {name: report.get(name) for name in ("kv_memory_gib", "kv_tokens", "context_tokens", "max_concurrency")}


def start(report: dict[str, object]) -> dict[str, object]:
    """How the last start went: seconds until the API was up, when that was (Unix time), the completions' seconds."""
    return {name: report.get(name) for name in ("served_s", "served_at", "first_s", "warmup_s", "settled", "answer")}
