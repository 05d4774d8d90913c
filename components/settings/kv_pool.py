"""How large a profile's KV pool is elsewhere, and whether that figure holds for a stack. Pure."""

from components.settings.cluster import ClusterSettings
from components.settings.profile import read_profile, tested_engine
from components.settings.sections import HardwareSettings

DECIDING = (
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_cudagraph_capture_size",
    "num_speculative_tokens",
)
"""The engine's settings that change what memory is left for the pool."""


def expected_kv_tokens(cluster: ClusterSettings) -> int | None:
    """Tokens of the pool on a real pair; None where this stack's settings or nodes are others."""
    tested = tested_engine(cluster.profile)
    same = all(getattr(cluster.engine, name) == getattr(tested, name) for name in DECIDING)
    a_spark = cluster.hardware.memory_gib >= HardwareSettings().memory_gib
    return read_profile(cluster.profile)[1].kv_tokens if same and a_spark else None
