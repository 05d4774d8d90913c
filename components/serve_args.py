"""What a rank runs with: the argv of `vllm serve` and its environment, as plain data.

The order and the values are the recipe's (facts of both seed systems); one flag a line, so a diff of this file is a
diff of the command. Nothing here touches a node or quotes for a shell.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from components.settings import ClusterSettings

CACHE = "/cache/huggingface"
START_FILE = "/opt/spark/start.json"

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
    # a JIT compile of an unusual shape outlasts the default of 300 s and would look like a hang of NCCL
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
    # without these two a missing device means TCP, ten times slower and without a word
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
FLIGHT_RECORDER_ENV = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/fr_dump_pipe_",
}
AT_START = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_GID_INDEX")
"""Variables that rank.py resolves on its own node at every start, unless the stack file sets them."""


def compact(value: object) -> str:
    """JSON as the recipe writes it into an argument: no spaces."""
    return json.dumps(value, separators=(",", ":"))


def thinking(default: str) -> dict[str, Any]:
    return {"thinking": False} if default == "off" else {"thinking": True, "reasoning_effort": default}


def serve_argv(settings: ClusterSettings, rank: int) -> list[str]:
    """The whole command of one rank: `vllm serve` and its arguments, whole flag names, each once."""
    engine, nnodes = settings.engine, len(settings.nodes)
    speculative = {
        "method": "dspark",
        "num_speculative_tokens": engine.num_speculative_tokens,
        "draft_sample_method": engine.draft_sample_method,
    }
    reasoning = {
        "reasoning_parser": "deepseek_v4",
        "reasoning_start_str": "<think>",
        "reasoning_end_str": "</think>",
    }
    flags: list[tuple[str, ...]] = [
        ("--revision", settings.checkpoint.revision),
        ("--served-model-name", *engine.served_model_name),
        ("--host", engine.host),
        ("--port", str(engine.port)),
        ("--trust-remote-code",),
        ("--tensor-parallel-size", str(nnodes)),
        ("--pipeline-parallel-size", "1"),
        ("--kv-cache-dtype", engine.kv_cache_dtype),
        ("--block-size", str(engine.block_size)),
        ("--max-model-len", str(engine.max_model_len)),
        ("--max-num-seqs", str(engine.max_num_seqs)),
        ("--max-num-batched-tokens", str(engine.max_num_batched_tokens)),
        ("--long-prefill-token-threshold", str(engine.long_prefill_token_threshold)),
        ("--max-cudagraph-capture-size", str(engine.capture_size)),
        ("--gpu-memory-utilization", str(engine.gpu_memory_utilization)),
    ]
    if engine.kv_cache_memory_bytes is not None:
        flags.append(("--kv-cache-memory-bytes", str(engine.kv_cache_memory_bytes)))
    flags += [
        ("--enable-prefix-caching",),
        ("--enable-prompt-tokens-details",),
        ("--async-scheduling",),
        ("--enable-chunked-prefill",),
        ("--speculative-config", compact(speculative)),
        ("--tokenizer-mode", "deepseek_v4"),
    ]
    if engine.limit_mm_per_prompt is not None:
        flags.append(("--limit-mm-per-prompt", compact(engine.limit_mm_per_prompt)))
    flags += [
        ("--distributed-executor-backend", "mp"),
        ("--moe-backend", "flashinfer_b12x"),
        ("--tool-call-parser", "deepseek_v4"),
        ("--enable-auto-tool-choice",),
        ("--reasoning-parser", "deepseek_v4"),
        ("--reasoning-config", compact(reasoning)),
        ("--default-chat-template-kwargs", compact(thinking(engine.default_thinking))),
        ("--generation-config", "vllm"),
        ("--enable-flashinfer-autotune",),
        ("--nnodes", str(nnodes)),
        ("--node-rank", str(rank)),
        ("--master-addr", str(settings.nodes[0].fabric_ip)),
        ("--master-port", str(engine.master_port)),
    ]
    if rank > 0:
        flags.append(("--headless",))
    return ["vllm", "serve", settings.checkpoint.repo, *(part for flag in flags for part in flag), *engine.extra_args]


def shared_env(settings: ClusterSettings) -> dict[str, str]:
    """Variables that every rank gets with the same value."""
    extra = {**settings.fabric.nccl, **settings.engine.extra_env}
    groups = [HUB_ENV, CACHE_ENV, VLLM_ENV, COMPILE_ENV, NCCL_ENV, FLIGHT_RECORDER_ENV]
    merged = {name: value for group in groups for name, value in group.items()}
    return merged | {name: str(value) for name, value in extra.items()}


def node_env(settings: ClusterSettings, rank: int) -> dict[str, str]:
    """Variables of one rank alone, as far as the stack file sets them; a variable without a value is left out."""
    node = settings.nodes[rank]
    gid_index = settings.fabric.gid_index
    values = {
        "VLLM_HOST_IP": str(node.fabric_ip),
        "NCCL_IB_HCA": node.hca,
        # all three always name the fabric: the image bakes its builder's, and Gloo would follow the default route
        "NCCL_SOCKET_IFNAME": node.ifname,
        "TP_SOCKET_IFNAME": node.ifname,
        "GLOO_SOCKET_IFNAME": node.ifname,
        "NCCL_IB_GID_INDEX": str(gid_index) if isinstance(gid_index, int) else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def rank_env(settings: ClusterSettings, rank: int) -> dict[str, str]:
    """The environment that a rank's container is given."""
    return {**shared_env(settings), **node_env(settings, rank)}


def at_start(settings: ClusterSettings, rank: int) -> list[str]:
    """The variables that rank.py adds at every start, from this node's own tables."""
    given = rank_env(settings, rank)
    unset = {"NCCL_IB_GID_INDEX"} if settings.fabric.gid_index == "unset" else set()
    return [name for name in AT_START if name not in given and name not in unset]


def start_inputs(settings: ClusterSettings, rank: int) -> dict[str, Any]:
    """What rank.py needs besides its command: the content of START_FILE."""
    node, checkpoint = settings.nodes[rank], settings.checkpoint
    return {
        "rank": rank,
        "fabric_ip": str(node.fabric_ip),
        "peer_ips": [str(other.fabric_ip) for other in settings.nodes if other is not node],
        "hca": node.hca,
        "ifname": node.ifname,
        "gid_index": settings.fabric.gid_index,
        "repo": checkpoint.repo,
        "revision": checkpoint.revision,
        "shards": checkpoint.shards,
        "encoding_file": checkpoint.encoding_file,
        "encoding_target": settings.image.encoding_target,
    }


@dataclass(frozen=True)
class RankSpec:
    """Everything that one rank's container is started from, as far as settings alone decide it."""

    image: str
    argv: list[str]
    env: dict[str, str]
    start: dict[str, Any]
    scripts: dict[str, str]
    """Name of a file under /opt/spark -> its text."""
    hub: str = ""
    """Where its checkpoint is mounted from, as the stack file writes it."""


def spec_hash(specs: list[RankSpec]) -> str:
    """Twelve hex digits over all ranks: when it changes, the pair is another pair."""
    text = json.dumps([vars(spec) for spec in specs], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:12]
