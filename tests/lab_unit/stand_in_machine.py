"""What the stand-in's tests share: a machine in a folder, a small checkpoint, the recipe's arguments."""

import json
from pathlib import Path

from lab.hub.checkpoint import safetensors

V4 = "0000:0000:0000:0000:0000:ffff:7f00:0001"
LINK_LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0001"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
SPECULATIVE = '{"method":"dspark","num_speculative_tokens":3,"draft_sample_method":"probabilistic"}'
RECIPE = [
    *("--served-model-name", "deepseek-v4-flash-dspark", "--host", "127.0.0.1", "--trust-remote-code"),
    *("--tensor-parallel-size", "2", "--pipeline-parallel-size", "1", "--kv-cache-dtype", "nvfp4_ds_mla"),
    *("--block-size", "256", "--max-model-len", "1048576", "--max-num-seqs", "6", "--max-num-batched-tokens", "8192"),
    *("--long-prefill-token-threshold", "1024", "--max-cudagraph-capture-size", "24"),
    *("--gpu-memory-utilization", "0.85", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
    *("--async-scheduling", "--enable-chunked-prefill", "--speculative-config", SPECULATIVE),
    *("--tokenizer-mode", "deepseek_v4", "--distributed-executor-backend", "mp", "--moe-backend", "flashinfer_b12x"),
    *("--tool-call-parser", "deepseek_v4", "--enable-auto-tool-choice", "--reasoning-parser", "deepseek_v4"),
    *("--reasoning-config", '{"reasoning_start_str":"<think>","reasoning_end_str":"</think>"}'),
    *("--default-chat-template-kwargs", '{"thinking":false}', "--generation-config", "vllm"),
    *("--enable-flashinfer-autotune", "--nnodes", "2", "--master-addr", "127.0.0.1"),
]


def hca(root: Path, name: str, rows: dict[int, tuple[str, str]], state: str = "4: ACTIVE") -> None:
    """An HCA with port 1 below root/class/infiniband; rows: index -> (gid, type), an empty slot without a type."""
    port = root / "class/infiniband" / name / "ports/1"
    (port / "gids").mkdir(parents=True)
    (port / "gid_attrs/types").mkdir(parents=True)
    (port / "state").write_text(state + "\n")
    (port / "link_layer").write_text("Ethernet\n")
    for index, (gid, kind) in rows.items():
        (port / "gids" / str(index)).write_text(gid + "\n")
        if kind:
            (port / "gid_attrs/types" / str(index)).write_text(kind + "\n")


def checkpoint(folder: Path, shards: int = 3) -> Path:
    """A snapshot with a tensor a shard."""
    folder.mkdir(parents=True)
    weight_map = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        weight_map[f"layers.{number}.weight"] = name
        (folder / name).write_bytes(safetensors({f"layers.{number}.weight": ("BF16", (4, 4))}, name.encode()))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"architectures": ["DeepseekV4ForCausalLM"]}))
    return folder
