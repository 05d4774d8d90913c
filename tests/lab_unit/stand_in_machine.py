"""Shared by the stand-in engine's tests: a machine in a folder, a small checkpoint, the recipe's arguments, ranks."""

import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from lab.hub.checkpoint import safetensors
from lab.place import CHECKOUT

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
    """Make an HCA with port 1 below root/class/infiniband. rows: index -> (gid, type); an empty slot has no type."""
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
    """Make a snapshot with one tensor in each shard."""
    folder.mkdir(parents=True)
    weight_map = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        weight_map[f"layers.{number}.weight"] = name
        (folder / name).write_bytes(safetensors({f"layers.{number}.weight": ("BF16", (4, 4))}, name.encode()))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"architectures": ["DeepseekV4ForCausalLM"]}))
    return folder


LAUNCH = "from lab.runtime.vllm.main import main; raise SystemExit(main())"
LIMIT_S = 60
"""The most seconds that a test waits for a line or for the end of a process."""


class Pair:
    """Both ranks' processes and logs."""

    faults_url = ""

    def __init__(self, folder: Path, api: int, master: int) -> None:
        self.folder, self.api, self.master = folder, api, master
        self.model = checkpoint(folder / "snapshot")
        hca(folder / "sys", "rocep1s0f1", {0: (LINK_LOCAL, "RoCE v2"), 3: (V4, "RoCE v2")})
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.more: list[str] = []

    def start(self, rank: int, **variables: str) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "VLLM_", "HF_"))},
            **{"LAB_SYSFS": str(self.folder / "sys"), "LAB_FAULTS_URL": self.faults_url, "LAB_SPEED": "0"},
            **{"VLLM_HOST_IP": "127.0.0.1", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"},
            **{"NCCL_IB_HCA": "=rocep1s0f1", "NCCL_IB_GID_INDEX": "3", "NCCL_NET": "IB"},
            **variables,
        }
        place = ["--node-rank", str(rank), "--master-port", str(self.master), "--port", str(self.api)]
        arguments = ["serve", str(self.model), *RECIPE, *place, *self.more, *(["--headless"] if rank else [])]
        with (self.folder / f"{rank}.log").open("wb") as out:
            self.ranks[rank] = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, *arguments], cwd=CHECKOUT, env=environment, stdout=out, stderr=out
            )

    def shards(self, count: int) -> None:
        shutil.rmtree(self.model)
        checkpoint(self.model, count)

    def log(self, rank: int) -> str:
        return (self.folder / f"{rank}.log").read_bytes().decode()

    def wait_for(self, rank: int, text: str) -> None:
        for _ in range(LIMIT_S * 50):
            if text in self.log(rank):
                return
            if self.ranks[rank].poll() is not None:
                break
            with suppress(subprocess.TimeoutExpired):
                self.ranks[rank].wait(0.02)
        raise AssertionError(f"rank {rank} never logged {text!r}:\n{self.log(rank)}")

    def code(self, rank: int) -> int:
        return self.ranks[rank].wait(LIMIT_S)

    def serves(self) -> None:
        """Start both ranks, and return when they are ready."""
        self.start(1)
        self.start(0)
        self.wait_for(0, "Application startup complete.")

    def ask(self, path: str, timeout_s: float = 20, **body: object) -> tuple[int, str]:
        """Status and text of a request to the head's API."""
        connection = http.client.HTTPConnection("127.0.0.1", self.api, timeout=timeout_s)
        try:
            connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()


def two_ranks(folder: Path, free_port: Callable[[], int]) -> Iterator[Pair]:
    """The body of a fixture: two ranks, ended after the test."""
    made = Pair(folder, free_port(), free_port())
    yield made
    for process in made.ranks.values():
        if process.poll() is None:
            process.kill()
        process.wait()
