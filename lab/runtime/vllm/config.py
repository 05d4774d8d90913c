"""The engine's configuration: what vLLM derives from the flags, and what it refuses with a traceback after parsing."""

import argparse
from dataclasses import dataclass
from typing import Any

from .errors import ValidationError

SPECULATIVE_METHODS = (
    "dflash", "draft_model", "dspark", "eagle", "eagle3", "extract_hidden_states", "medusa", "mlp_speculator", "mtp",
    "ngram", "ngram_gpu", "suffix",
)  # fmt: skip
SPECULATIVE_KEYS = (
    "disable_padded_drafter_batch", "draft_sample_method", "draft_tensor_parallel_size", "enforce_eager", "method",
    "model", "num_speculative_tokens", "quantization", "rejection_sample_method",
)  # fmt: skip
DRAFT_SAMPLE_METHODS = ("greedy", "probabilistic")
PARSERS = ("deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "glm45", "hermes", "qwen3_coder")
REASONING_PARSERS = ("deepseek_r1", "deepseek_v3", "deepseek_v4", "glm45", "qwen3")


@dataclass(frozen=True)
class Config:
    """What the ranks run with. Sizes are in tokens unless a field says otherwise."""

    model: str
    revision: str | None
    served_model_name: list[str]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_scheduled_tokens: int
    num_speculative_tokens: int
    capture_sizes: list[int]
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    kv_cache_dtype: str
    block_size: int
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    timeout_s: int
    """Of the rendezvous."""
    headless: bool
    images: int
    autotune: bool
    chat_template_kwargs: dict[str, Any]


def literal_error(model: str, field: str, value: object, choices: tuple[str, ...]) -> ValidationError:
    quoted = [repr(choice) for choice in choices]
    expected = ", ".join(quoted[:-1]) + " or " + quoted[-1]
    kind = f"[type=literal_error, input_value={value!r}, input_type={type(value).__name__}]"
    return ValidationError(f"1 validation error for {model}\n{field}\n  Input should be {expected} {kind}")


def speculative_tokens(config: dict[str, Any] | None) -> int:
    """k of a --speculative-config, 0 without one. ValidationError for a key or value that the engine does not know."""
    if config is None:
        return 0
    for key in config:
        if key not in SPECULATIVE_KEYS:
            kind = f"[type=unexpected_keyword_argument, input_value={config[key]!r}]"
            raise ValidationError(
                f"1 validation error for SpeculativeConfig\n{key}\n  Unexpected keyword argument {kind}"
            )
    for key, choices in (("method", SPECULATIVE_METHODS), ("draft_sample_method", DRAFT_SAMPLE_METHODS)):
        if key in config and config[key] not in choices:
            raise literal_error("SpeculativeConfig", key, config[key], choices)
    tokens = config.get("num_speculative_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        raise ValueError(
            "num_speculative_tokens must be provided with speculative model unless the draft model config contains an "
            "n_predict parameter."
        )
    return tokens


def capture_sizes(largest: int) -> list[int]:
    """CUDA graph sizes of vLLM up to 256: 1, 2, 4, then multiples of 8."""
    return [size for size in (1, 2, 4, *range(8, 257, 8)) if size <= largest]


def registered(what: str, name: str | None, names: tuple[str, ...]) -> None:
    if name and name not in names:
        raise KeyError(f"invalid {what}: {name} (chose from {{ {','.join(names)} }})")


def engine_config(options: argparse.Namespace) -> Config:
    """Check the options and derive the configuration. Raises what vLLM raises; touches no device and no model file."""
    if options.enable_auto_tool_choice and not options.tool_call_parser:
        raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
    registered("tool call parser", options.tool_call_parser, PARSERS)
    registered("reasoning parser", options.reasoning_parser, REASONING_PARSERS)
    if options.max_num_partial_prefills != 1:
        raise NotImplementedError(
            "Concurrent Partial Prefill is not supported. "
            "We recommend to remove --max-num-partial-prefills from your config."
        )
    utilization = options.gpu_memory_utilization
    if not 0 < utilization <= 1:
        raise ValidationError(
            "1 validation error for CacheConfig\ngpu_memory_utilization\n"
            "  Input should be greater than 0 and less than or equal to 1 "
            f"[input_value={utilization}]"
        )
    k = speculative_tokens(options.speculative_config)
    world = options.tensor_parallel_size * options.pipeline_parallel_size
    assert world % options.nnodes == 0, f"world_size ({world}) must be divisible by nnodes ({options.nnodes})"
    assert 0 <= options.node_rank < options.nnodes, (
        f"node_rank ({options.node_rank}) must be in [0, nnodes ({options.nnodes}))"
    )
    seqs = options.max_num_seqs or 256
    largest = options.max_cudagraph_capture_size or min(seqs * 2, 256)
    batched = options.max_num_batched_tokens or 8192
    # the drafts of running sequences may need tokens in addition to the scheduled ones
    scheduled = batched - seqs * (k - 1) if k else batched
    return Config(
        model=options.model_tag or "Qwen/Qwen3-0.6B",
        revision=options.revision,
        served_model_name=options.served_model_name or [options.model_tag],
        max_model_len=options.max_model_len or 1048576,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        max_num_scheduled_tokens=scheduled,
        num_speculative_tokens=k,
        capture_sizes=capture_sizes(largest),
        gpu_memory_utilization=utilization,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes,
        kv_cache_dtype=options.kv_cache_dtype,
        block_size=options.block_size or 256,
        nnodes=options.nnodes,
        node_rank=options.node_rank,
        master_addr=options.master_addr,
        master_port=options.master_port,
        timeout_s=options.distributed_timeout_seconds,
        headless=options.headless,
        autotune=options.enable_flashinfer_autotune is not False,
        images=int((options.limit_mm_per_prompt or {}).get("image", 0)),
        chat_template_kwargs=options.default_chat_template_kwargs or {},
    )
