"""How large a profile's KV pool is elsewhere, and whether that figure holds for a stack. Pure."""

from components.settings.cluster import ClusterSettings
from components.settings.engine_settings import EngineSettings
from components.settings.profile import read_profile
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
    values, rules = read_profile(cluster.profile)
    profile = EngineSettings.model_validate(values["engine"])
    same = all(getattr(cluster.engine, name) == getattr(profile, name) for name in DECIDING)
    a_spark = cluster.hardware.memory_gib >= HardwareSettings().memory_gib
    return rules.kv_tokens if same and a_spark else None
