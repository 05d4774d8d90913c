"""One rank's own work while the engine starts: device, communicators, weights, KV memory, graphs."""

import os
import socket
import time
from typing import NoReturn

from . import fabric, memory, rendezvous
from .config import Config
from .errors import OutOfMemoryError
from .group import Group
from .log import Log
from .weights import Checkpoint, load_shard

SHARD_S = 0.04
SLOW_SHARD_S = 0.5
FAULTY_SHARD = 20
GRAPH_S = 0.1
PROFILE_S = 0.3
HELD_FREE_GIB = 9.41
"""Free memory beside somebody's engine that was not stopped, for the fault memory-held."""
RESERVED_BYTES = 16 << 20
"""What a rank really holds, so that its memory shows in the node's figures."""


def pause(seconds: float) -> None:
    time.sleep(seconds * float(os.environ.get("LAB_SPEED") or 1))


class Worker:
    """The GPU process of one rank."""

    def __init__(self, config: Config, checkpoint: Checkpoint, log: Log, fault: str) -> None:
        self.config, self.checkpoint, self.log, self.fault = config, checkpoint, log, fault
        self.group: Group | None = None
        self.reserved = b""

    def init_device(self) -> Group:
        """Device, the meeting with the other ranks, their communicator. Raises what a GPU, NCCL or Gloo would."""
        fabric.refuse_empty_variables(os.environ)
        if not os.environ.get("LAB_SYSFS") and not os.environ.get("NVIDIA_VISIBLE_DEVICES"):
            raise RuntimeError(
                "Failed to infer device type: no GPU is visible here (a container started without --gpus)"
            )
        rank, config = self.config.node_rank, self.config
        host_ip = os.environ.get("VLLM_HOST_IP") or own_address(config)
        meeting = f"tcp://{config.master_addr}:{config.master_port}"
        self.log.info(
            "parallel_state.py:1500",
            f"world_size={config.nnodes} rank={rank} local_rank=0 distributed_init_method={meeting} backend=nccl",
        )
        fabric.check_interfaces(os.environ, host_ip)
        self.group = group = rendezvous.meet(config, host_ip, self.log)
        if rank == 0:
            self.log.info("pynccl.py:113", "vLLM is using nccl==2.28.9")
        rows = fabric.check_rdma(os.environ)
        if os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
            devices = " ".join(f"[{number}]{row.port}/RoCE" for number, row in enumerate(rows)) or "Socket"
            process = f"{socket.gethostname()}:{os.getpid()}:{os.getpid()}"
            self.log.raw(f"{process} [0] NCCL INFO NET/IB : Using {devices}")
        words = group.barrier("communicator", [str(row.address) for row in rows])
        fabric.check_paths(rows, {other: addresses for other, addresses in words.items() if other != str(rank)})
        group.barrier("connected")
        self.log.info(
            "parallel_state.py:1780",
            f"rank {rank} in world size {config.nnodes} is assigned as DP rank 0, PP rank 0, PCP rank 0, "
            f"TP rank {rank}, EP rank N/A",
        )
        free_gib = HELD_FREE_GIB if self.fault == "memory-held" else memory.FREE_GIB
        memory.admission(config.gpu_memory_utilization, free_gib)
        return group

    @property
    def started_group(self) -> Group:
        """The ranks' group of a worker that is up."""
        assert self.group is not None
        return self.group

    def leave(self, code: int) -> NoReturn:
        """Out at once, with the connections closed: threads of open requests do not hold the process."""
        if self.group:
            self.group.close()
        os._exit(code)

    def load_model(self) -> None:
        """Read every shard's header, with rank 0's progress bar. Raises what the loader would, naming the file."""
        self.log.info("gpu_model_runner.py:4761", f"Starting to load model {self.config.model}...")
        began = time.monotonic()
        total = len(self.checkpoint.shards)
        self._progress(0, total, began)
        for number, shard in enumerate(self.checkpoint.shards, 1):
            load_shard(self.checkpoint, shard)
            pause(SLOW_SHARD_S if self.fault == "slow" else SHARD_S)
            self._progress(number, total, began)
            if number == FAULTY_SHARD and self.fault == "die-at-load":
                raise RuntimeError(f"CUDA error: an illegal memory access was encountered while loading {shard}")
            while number == FAULTY_SHARD and self.fault == "hang-at-load":
                time.sleep(3600)
        if self.config.node_rank == 0:
            self.log.raw("")
        self.reserved = b"\x01" * RESERVED_BYTES
        took = time.monotonic() - began
        weights = memory.footprint(self.checkpoint.has_vision).weights_gib
        self.log.info("default_loader.py:384", f"Loading weights took {took:.2f} seconds")
        self.log.info(
            "gpu_model_runner.py:4879", f"Model loading took {weights} GiB memory and {took + 0.35:.6f} seconds"
        )

    def _progress(self, done: int, total: int, began: float) -> None:
        # tqdm's line, which only the process of rank 0 prints
        if self.config.node_rank:
            return
        elapsed = time.monotonic() - began
        rate = done / elapsed if done and elapsed else 0.0
        rest = clock((total - done) / rate) if rate else "?"
        speed = f"{rate:5.2f}it/s" if rate else "?it/s"
        share = f"{100 * done // max(total, 1):3d}% Completed | {done}/{total}"
        self.log.raw(f"\rLoading safetensors checkpoint shards: {share} [{clock(elapsed)}<{rest}, {speed}]")

    def kv_bytes(self) -> int:
        """Profile, and say what is left for the KV pool. OutOfMemoryError with that fault."""
        config = self.config
        if config.autotune:
            self.log.info("flashinfer_autotune.py:91", "[Autotuner]: Autotuning process starts ...")
        pause(PROFILE_S)
        if self.fault == "out-of-memory":
            raise OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 121.69 GiB of which "
                "1.37 GiB is free. Including non-PyTorch memory, this process has 103.18 GiB memory in use. Of the "
                "allocated memory 96.42 GiB is allocated by PyTorch, and 1.12 GiB is reserved but unallocated."
            )
        vision = self.checkpoint.has_vision
        available = memory.available_bytes(config.gpu_memory_utilization, config.max_num_batched_tokens, vision)
        pool = available if config.kv_cache_memory_bytes is None else config.kv_cache_memory_bytes
        self.log.info("gpu_worker.py:462", f"Available KV cache memory: {pool / memory.GIB:.2f} GiB")
        return pool

    def capture(self) -> None:
        """CUDA graphs, the largest first, with rank 0's progress bar."""
        began = time.monotonic()
        total = len(self.config.capture_sizes)
        for done in range(total + 1):
            if self.config.node_rank == 0:
                tenths = 10 * done // max(total, 1)
                share = f"{10 * tenths:3d}%|{'█' * tenths:<10}| {done}/{total}"
                self.log.raw(f"\rCapturing CUDA graphs (mixed prefill-decode, FULL_AND_PIECEWISE): {share}")
            if done < total:
                pause(GRAPH_S)
        took = time.monotonic() - began
        self.log.info("gpu_model_runner.py:5962", f"Graph capturing finished in {took:.0f} secs, took 0.54 GiB")


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def own_address(config: Config) -> str:
    """The address that packets to rank 0 leave from, which is what vLLM takes without VLLM_HOST_IP, more or less."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((config.master_addr, config.master_port))
        return str(probe.getsockname()[0])
