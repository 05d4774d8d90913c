"""The command of a rank: `vllm serve` and its arguments.

Order and values are those of the two systems that this program replaces. One flag a line, so that a diff of this file
is a diff of the command. Nothing here is quoted for a shell.
"""

import json

from components.settings.cluster import ClusterSettings


def compact(value: object) -> str:
    """JSON as an argument has it: without spaces."""
    return json.dumps(value, separators=(",", ":"))


def thinking(default: str) -> dict[str, bool | str]:
    return {"thinking": False} if default == "off" else {"thinking": True, "reasoning_effort": default}


def long_prefill(threshold: int | None) -> list[tuple[str, ...]]:
    return [] if threshold is None else [("--long-prefill-token-threshold", str(threshold))]


def serve_argv(settings: ClusterSettings, rank: int) -> list[str]:
    """The whole command of one rank: every flag once, by its full name."""
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
        *long_prefill(engine.long_prefill_token_threshold),
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
