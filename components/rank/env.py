"""The environment of a rank: the recipe's variables by purpose, what the stack file adds, what differs by node."""

from collections.abc import Mapping

from components.rank.mounts import ABLATION, CACHE
from components.settings.cluster import ClusterSettings
from components.settings.sections import NodeSettings
from patches import direction

HUB_ENV = {
    "HF_HOME": CACHE,
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_XET": "1",
}
CACHE_ENV = {
    "VLLM_CACHE_ROOT": f"{CACHE}/vllm-cache",
    "FLASHINFER_WORKSPACE_BASE": f"{CACHE}/flashinfer",
    "TILELANG_CACHE_DIR": f"{CACHE}/tilelang-cache",
    "TRITON_CACHE_DIR": f"{CACHE}/triton-cache",
    "B12X_CUTE_COMPILE_CACHE_DIR": f"{CACHE}/b12x-cute-cache",
    "TORCH_FR_DUMP_TEMP_FILE": f"{CACHE}/nccl-fr/comm_lib_trace_rank_",
}
VLLM_ENV = {
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "256",
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "1",
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "0",
    # compiling the kernels of an unusual shape takes longer than the default of 300 s and would look like an NCCL hang
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800",
    "VLLM_USE_B12X_MOE": "1",
    "VLLM_B12X_W4A16_FORCE_BLOCKS_PER_SM": "0",
    "VLLM_B12X_W4A16_FORCE_BLOCKS_MAX_M": "16",
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "4096",
}
COMPILE_ENV = {
    "CUDA_HOME": "/usr/local/cuda",
    "CUDA_PATH": "/usr/local/cuda",
    "TORCH_CUDA_ARCH_LIST": "12.1a",
    "FLASHINFER_CUDA_ARCH_LIST": "12.1a",
    "CUTE_DSL_ARCH": "sm_121a",
    "FLASHINFER_DISABLE_VERSION_CHECK": "1",
    "TILELANG_CLEANUP_TEMP_FILES": "1",
    "DG_JIT_USE_NVRTC": "0",
    "DG_JIT_NVCC_COMPILER": "/usr/local/cuda/bin/nvcc",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
NCCL_ENV = {
    # without these two, NCCL silently uses TCP, ten times slower, when it finds no device
    "NCCL_NET": "IB",
    "NCCL_IB_DISABLE": "0",
    "NCCL_IB_ADDR_FAMILY": "AF_INET",
    "NCCL_IB_ROCE_VERSION_NUM": "2",
    "NCCL_CROSS_NIC": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_IGNORE_CPU_AFFINITY": "1",
    "NCCL_DEBUG": "WARN",
    "NCCL_NVLS_ENABLE": "0",
}
RING_ENV = {
    # NCCL pairs the addresses of one subnet, and does not take two links for one
    "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
    "NCCL_IB_SUBNET_PREFIX_LEN": "24",
    "NCCL_IB_MERGE_NICS": "0",
}
"""Where each two nodes have a subnet of their own."""
FLIGHT_RECORDER_ENV = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/fr_dump_pipe_",
}
ABLATION_ENV = {
    "ABLATE": "1",
    "DSV4_ABLATE_FILE": f"{ABLATION}/{direction.NAME}",
    "DSV4_ABLATE_LAMBDA": "3.5",
    "DSV4_ABLATE_LAYERS": "10-42",
}
"""The recipe's values; without the first, its patch edits nothing."""
AT_START = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_GID_INDEX")
"""Variables that rank.py resolves on its node at every start, unless the stack file sets them."""


def shared_env(settings: ClusterSettings) -> dict[str, str]:
    """Variables with the same value on every rank."""
    extra = {**settings.fabric.nccl, **settings.engine.extra_env}
    groups = [HUB_ENV, CACHE_ENV, VLLM_ENV, COMPILE_ENV, NCCL_ENV, FLIGHT_RECORDER_ENV]
    if settings.is_ring:
        groups.append(RING_ENV)
    if settings.patches and settings.patches.abliterated:
        groups.append(ABLATION_ENV)
    merged = {name: value for group in groups for name, value in group.items()}
    kept = {name: value for name, value in merged.items() if name not in extra}
    return kept | {name: str(value) for name, value in extra.items() if value is not None}


def ifnames(node: NodeSettings) -> dict[str, str]:
    """The netdevs that the stack file names. A start gives the others the netdev of fabric_ip.

    All three name one: the image has its builder's names baked in, and Gloo would follow the default route.
    """
    own = {
        "NCCL_SOCKET_IFNAME": node.socket_ifnames.nccl or node.ifname,
        "TP_SOCKET_IFNAME": node.socket_ifnames.tp or node.ifname,
        "GLOO_SOCKET_IFNAME": node.socket_ifnames.gloo or node.ifname,
    }
    return {name: value for name, value in own.items() if value}


def node_env(settings: ClusterSettings, rank: int) -> dict[str, str]:
    """Variables of one rank, as far as the stack file sets them; a variable without a value is left out."""
    node = settings.nodes[rank]
    gid_index = settings.fabric.gid_index
    values = {
        "VLLM_HOST_IP": str(node.fabric_ip),
        "NCCL_IB_HCA": node.hca,
        **ifnames(node),
        "NCCL_IB_GID_INDEX": str(gid_index) if isinstance(gid_index, int) else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def rank_env(settings: ClusterSettings, rank: int) -> dict[str, str]:
    """The environment of a rank's container."""
    return {**shared_env(settings), **node_env(settings, rank)}


def at_start(env: Mapping[str, str], gid_index: str | int) -> list[str]:
    """The variables that rank.py adds at every start, from its node's own tables."""
    unset = {"NCCL_IB_GID_INDEX"} if gid_index == "unset" else set()
    return [name for name in AT_START if name not in env and name not in unset]
