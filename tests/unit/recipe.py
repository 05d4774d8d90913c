"""What starts a rank of each profile on the pair of stacks.py, copied from the two systems we replace."""

DSPARK_HEAD = [
    *("vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash-DSpark"),
    *("--revision", "3c5ed1f0a94b27d86ef1a0b9c2d4e87f5a6b0c13"),
    *("--served-model-name", "deepseek-v4-flash-dspark"),
    *("--host", "127.0.0.1"),
    *("--port", "8888"),
    "--trust-remote-code",
    *("--tensor-parallel-size", "2"),
    *("--pipeline-parallel-size", "1"),
    *("--kv-cache-dtype", "nvfp4_ds_mla"),
    *("--block-size", "256"),
    *("--max-model-len", "1048576"),
    *("--max-num-seqs", "6"),
    *("--max-num-batched-tokens", "8192"),
    *("--max-cudagraph-capture-size", "24"),
    *("--gpu-memory-utilization", "0.85"),
    "--enable-prefix-caching",
    "--enable-prompt-tokens-details",
    "--async-scheduling",
    "--enable-chunked-prefill",
    "--speculative-config",
    '{"method":"dspark","num_speculative_tokens":3,"draft_sample_method":"probabilistic"}',
    *("--tokenizer-mode", "deepseek_v4"),
    *("--distributed-executor-backend", "mp"),
    *("--moe-backend", "flashinfer_b12x"),
    *("--tool-call-parser", "deepseek_v4"),
    "--enable-auto-tool-choice",
    *("--reasoning-parser", "deepseek_v4"),
    "--reasoning-config",
    '{"reasoning_parser":"deepseek_v4","reasoning_start_str":"<think>","reasoning_end_str":"</think>"}',
    *("--default-chat-template-kwargs", '{"thinking":false}'),
    *("--generation-config", "vllm"),
    "--enable-flashinfer-autotune",
    *("--nnodes", "2"),
    *("--node-rank", "0"),
    *("--master-addr", "198.51.100.1"),
    *("--master-port", "25000"),
]
VISION_HEAD = [
    *("vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp"),
    *("--revision", "86f746b36186f0e567729a5c06a8c918caba82a9"),
    *("--served-model-name", "deepseek-v4-flash-vision-exp"),
    *("--host", "127.0.0.1"),
    *("--port", "8888"),
    "--trust-remote-code",
    *("--tensor-parallel-size", "2"),
    *("--pipeline-parallel-size", "1"),
    *("--kv-cache-dtype", "nvfp4_ds_mla"),
    *("--block-size", "256"),
    *("--max-model-len", "1048576"),
    *("--max-num-seqs", "6"),
    *("--max-num-batched-tokens", "8192"),
    *("--long-prefill-token-threshold", "1024"),
    *("--max-cudagraph-capture-size", "48"),
    *("--gpu-memory-utilization", "0.835"),
    "--enable-prefix-caching",
    "--enable-prompt-tokens-details",
    "--async-scheduling",
    "--enable-chunked-prefill",
    "--speculative-config",
    '{"method":"dspark","num_speculative_tokens":6,"draft_sample_method":"probabilistic"}',
    *("--tokenizer-mode", "deepseek_v4"),
    *("--limit-mm-per-prompt", '{"image":8}'),
    *("--distributed-executor-backend", "mp"),
    *("--moe-backend", "flashinfer_b12x"),
    *("--tool-call-parser", "deepseek_v4"),
    "--enable-auto-tool-choice",
    *("--reasoning-parser", "deepseek_v4"),
    "--reasoning-config",
    '{"reasoning_parser":"deepseek_v4","reasoning_start_str":"<think>","reasoning_end_str":"</think>"}',
    *("--default-chat-template-kwargs", '{"thinking":true,"reasoning_effort":"low"}'),
    *("--generation-config", "vllm"),
    "--enable-flashinfer-autotune",
    *("--nnodes", "2"),
    *("--node-rank", "0"),
    *("--master-addr", "198.51.100.1"),
    *("--master-port", "25000"),
]


def worker_of(head: list[str]) -> list[str]:
    """The worker's command: the head's with the next rank, without an API."""
    place = head.index("--node-rank") + 1
    return [*head[:place], "1", *head[place + 1 :], "--headless"]


def on_text_model(argv: list[str]) -> list[str]:
    """The command of Vision-Exp on the recipe's text model, 0731: k = 5 with its capture size, and no images."""
    other = {
        "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp": "deepseek-ai/DeepSeek-V4-Flash-0731",
        "86f746b36186f0e567729a5c06a8c918caba82a9": "9e165c30e2704aec5d9d593cce3eebd58bbef1cb",
        "deepseek-v4-flash-vision-exp": "deepseek-v4-flash-0731",
        "48": "40",
    }
    images = argv.index("--limit-mm-per-prompt")
    text_argv = [other.get(word, word) for word in argv[:images] + argv[images + 2 :]]
    return [word.replace('"num_speculative_tokens":6', '"num_speculative_tokens":5') for word in text_argv]


TEXT_HEAD = on_text_model(VISION_HEAD)
DSPARK_WORKER, VISION_WORKER, TEXT_WORKER = map(worker_of, (DSPARK_HEAD, VISION_HEAD, TEXT_HEAD))
ENVIRONMENT = """\
HF_HOME=/cache/huggingface
HF_HUB_OFFLINE=1
TRANSFORMERS_OFFLINE=1
HF_HUB_DISABLE_XET=1
VLLM_CACHE_ROOT=/cache/huggingface/vllm-cache
FLASHINFER_WORKSPACE_BASE=/cache/huggingface/flashinfer
TILELANG_CACHE_DIR=/cache/huggingface/tilelang-cache
TRITON_CACHE_DIR=/cache/huggingface/triton-cache
B12X_CUTE_COMPILE_CACHE_DIR=/cache/huggingface/b12x-cute-cache
TORCH_FR_DUMP_TEMP_FILE=/cache/huggingface/nccl-fr/comm_lib_trace_rank_
VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=256
VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0
VLLM_USE_FLASHINFER_SAMPLER=1
VLLM_USE_BREAKABLE_CUDAGRAPH=0
VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
VLLM_USE_B12X_MOE=1
VLLM_B12X_W4A16_FORCE_BLOCKS_PER_SM=0
VLLM_B12X_W4A16_FORCE_BLOCKS_MAX_M=16
VLLM_PREFIX_CACHE_RETENTION_INTERVAL=4096
CUDA_HOME=/usr/local/cuda
CUDA_PATH=/usr/local/cuda
TORCH_CUDA_ARCH_LIST=12.1a
FLASHINFER_CUDA_ARCH_LIST=12.1a
CUTE_DSL_ARCH=sm_121a
FLASHINFER_DISABLE_VERSION_CHECK=1
TILELANG_CLEANUP_TEMP_FILES=1
DG_JIT_USE_NVRTC=0
DG_JIT_NVCC_COMPILER=/usr/local/cuda/bin/nvcc
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
NCCL_NET=IB
NCCL_IB_DISABLE=0
NCCL_IB_ADDR_FAMILY=AF_INET
NCCL_IB_ROCE_VERSION_NUM=2
NCCL_CROSS_NIC=1
NCCL_CUMEM_ENABLE=0
NCCL_IGNORE_CPU_AFFINITY=1
NCCL_DEBUG=WARN
NCCL_NVLS_ENABLE=0
TORCH_FR_BUFFER_SIZE=2000
TORCH_NCCL_DUMP_ON_TIMEOUT=1
TORCH_NCCL_ENABLE_MONITORING=1
TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_dump_pipe_
"""
BOTH_RANKS = dict(line.split("=", 1) for line in ENVIRONMENT.splitlines())
FOUND_AT_START = [
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_GID_INDEX",
]


def both_ranks(profile: str) -> dict[str, str]:
    """The variables that the ranks of a profile share."""
    # younger than the page that dspark follows
    left_out = {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL"} if profile == "dspark" else set()
    return {name: value for name, value in BOTH_RANKS.items() if name not in left_out}
