"""The preflight's rules for settings alone: what is allowed, and has cost others speed, memory or a node. Pure."""

from collections.abc import Iterator

from components.facts.finding import Finding
from components.settings.cluster import ClusterSettings
from components.settings.profile import tested_engine

MOST_UTILIZATION = 0.86
"""Above this share the host starves: 0.87 needs about 105.9 GiB free and has ended in resets."""
OPEN_ROUTES = "/metrics, /tokenize, /invocations (which answers prompts), /docs and others"
"""Routes of vLLM 0.25.1 that ask for no key; only those below /v1, /v2 and /inference do (tried)."""


def settings_findings(cluster: ClusterSettings) -> Iterator[Finding]:
    engine = cluster.engine
    if engine.gpu_memory_utilization > MOST_UTILIZATION:
        yield Finding(
            "error",
            "engine/gpu_memory_utilization",
            f"{engine.gpu_memory_utilization:g} leaves the host too little; above {MOST_UTILIZATION:g} it has starved: "
            f"use at most {MOST_UTILIZATION:g}, or list high_utilization under allow",
            "high_utilization",
        )
    yield from paid_for(cluster)
    yield from experiments(cluster)
    if engine.capture_size < engine.graph_tokens:
        yield Finding(
            "warning",
            "engine/max_cudagraph_capture_size",
            f"{engine.capture_size} is below max_num_seqs x (num_speculative_tokens + 1) = {engine.graph_tokens}: "
            "full batches fall off the captured graphs (about 12 % at six streams); leave it out",
        )
    for name in cluster.fabric.nccl:
        if name in ("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE"):
            text = "a GB10 has no GPUDirect RDMA, so this does nothing or fails: remove it"
            yield Finding("warning", f"fabric/nccl/{name}", text)


def experiments(cluster: ClusterSettings) -> Iterator[Finding]:
    if cluster.patches and cluster.patches.abliterated:
        yield Finding(
            "warning",
            "patches/abliterated",
            "the direction was captured on another checkpoint (0731, FP8), and the recipe calls this experimental; "
            "false brings the model back as it was",
        )


def paid_for(cluster: ClusterSettings) -> Iterator[Finding]:
    """Changes of the profile that look like tuning, with what they cost where somebody measured it."""
    engine = cluster.engine
    tested = tested_engine(cluster.profile)

    def warning(setting: str, text: str) -> Finding:
        return Finding("warning", f"engine/{setting}", text)

    if engine.max_num_seqs < tested.max_num_seqs:
        yield warning(
            "max_num_seqs",
            f"{engine.max_num_seqs} captures smaller graphs ({engine.capture_size} tokens), also for a single stream: "
            "with 2 instead of 6, code fell from 62.5 to 46.8 tok/s and prose from 44.2 to 26.0 (howtospark)",
        )
    if engine.max_num_batched_tokens > tested.max_num_batched_tokens:
        yield warning(
            "max_num_batched_tokens",
            f"{engine.max_num_batched_tokens} takes from the KV pool: 16384 instead of 8192 brought a 275K prompt's "
            "first token from 199 to 168 s, and the pool from 2,555,830 to 1,570,685 tokens (howtospark, reverted)",
        )
    if engine.num_speculative_tokens > tested.num_speculative_tokens:
        yield warning(
            "num_speculative_tokens",
            f"{engine.num_speculative_tokens} drafts more than the profile's {tested.num_speculative_tokens}: of 7 "
            "drafts about 4 % were accepted (field reports), and each costs a step's time",
        )
    if not engine.binds_loopback:
        yield warning(
            "host",
            f"{engine.host} also opens routes that ask for no key: {OPEN_ROUTES}; bind 127.0.0.1 and use an SSH "
            "tunnel, or put a proxy in front that passes /v1 alone",
        )
