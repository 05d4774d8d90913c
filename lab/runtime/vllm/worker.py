"""One rank's own work while the engine starts: device, communicators, weights, KV memory, graphs."""

import os
import socket
import time
from typing import NoReturn

from . import fabric, memory, rendezvous
from .config import Config
from .errors import OutOfMemoryError
from .faults import Fault
from .group import Group
from .log import Log
from .weights import Checkpoint, load_shard

SHARD_S = 0.04
FAULTY_SHARD = 20
GRAPH_S = 0.03
PROFILE_S = 0.1
RESERVED_BYTES = 16 << 20
"""Memory that a rank really allocates, so that it shows in the node's figures."""


class Worker:
    """The GPU process of one rank."""

    def __init__(self, config: Config, checkpoint: Checkpoint, log: Log, fault: Fault) -> None:
        self.config, self.checkpoint, self.log, self.fault = config, checkpoint, log, fault
        self.group: Group | None = None
        self.reserved = b""

    def init_device(self) -> Group:
        """Check the device, meet the other ranks, connect to them. Raises what a GPU, NCCL or Gloo would raise."""
        fabric.refuse_empty_variables(os.environ)
        if not os.environ.get("LAB_SYSFS") and not os.environ.get("NVIDIA_VISIBLE_DEVICES"):
            raise RuntimeError(
                "Failed to infer device type: no GPU is visible here (a container started without --gpus)"
            )
        rank, config = self.config.node_rank, self.config
        host_ip = os.environ.get("VLLM_HOST_IP") or own_address(config)
        meeting = f"tcp://{config.master_addr}:{config.master_port}"
        self.log.info(
            "parallel_state.py:1607",
            f"world_size={config.nnodes} rank={rank} local_rank=0 distributed_init_method={meeting} backend=nccl",
        )
        fabric.check_interfaces(os.environ, host_ip)
        self.group = group = rendezvous.meet(config, host_ip)
        group.work = self.fault.work
        rows = fabric.check_rdma(os.environ)
        addresses = group.barrier("communicator", [str(row.address) for row in rows])
        remote = {other: theirs for other, theirs in addresses.items() if other != str(rank)}
        fabric.check_paths(rows, remote, os.environ)
        group.barrier("connected")
        self.log.info(
            "parallel_state.py:1942",
            f"rank {rank} in world size {config.nnodes} is assigned as DP rank 0, PP rank 0, PCP rank 0, "
            f"TP rank {rank}, EP rank N/A, EPLB rank N/A",
        )
        memory.admission(config.gpu_memory_utilization)
        self.log.rename(f"Worker_TP{rank}")
        return group

    @property
    def started_group(self) -> Group:
        """The group of a worker that has met the other ranks."""
        assert self.group is not None
        return self.group

    def leave(self, code: int) -> NoReturn:
        """Close the connections and end the process at once, without waiting for threads of open requests."""
        if self.group:
            self.group.close()
        os._exit(code)

    def load_model(self) -> None:
        """Read every shard's header, with rank 0's progress bar. Raises what the loader would raise."""
        self.log.info("model_runner.py:281", "Loading model from scratch...")
        began = time.monotonic()
        total = len(self.checkpoint.shards)
        self._progress(0, total, began)
        for number, shard in enumerate(self.checkpoint.shards, 1):
            load_shard(self.checkpoint, shard)
            self.fault.pause(SHARD_S)
            self._progress(number, total, began)
            if number == FAULTY_SHARD and self.fault.name == "die-at-load":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            while number == FAULTY_SHARD and self.fault.name == "hang-at-load":
                time.sleep(3600)
        if self.config.node_rank == 0:
            self.log.raw("")
        if self.fault.name == "out-of-memory":
            raise OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 121.69 GiB of which "
                "1.37 GiB is free. Including non-PyTorch memory, this process has 103.18 GiB memory in use. Of the "
                "allocated memory 96.42 GiB is allocated by PyTorch, and 1.12 GiB is reserved but unallocated."
            )
        self.reserved = b"\x01" * RESERVED_BYTES
        took = time.monotonic() - began
        weights = memory.footprint(self.checkpoint.has_vision).weights_gib
        self.log.info("default_loader.py:430", f"Loading weights took {took:.2f} seconds")
        self.log.info("model_runner.py:302", f"Model loading took {weights} GiB and {took + 0.35:.6f} seconds")

    def _progress(self, done: int, total: int, began: float) -> None:
        # tqdm's line, which only rank 0 prints
        if self.config.node_rank == 0:
            elapsed = time.monotonic() - began
            share = f"{100 * done // max(total, 1):3d}% Completed | {done}/{total}"
            pace = f"[{int(elapsed) // 60:02d}:{int(elapsed) % 60:02d}<00:00, {done / max(elapsed, 0.01):5.2f}it/s]"
            self.log.raw(f"\rLoading safetensors checkpoint shards: {share} {pace}")

    def kv_bytes(self) -> int:
        """Profile the memory. Log and return what is left for the KV pool, or the size that was asked for."""
        config = self.config
        self.fault.pause(PROFILE_S)
        if (pinned := config.kv_cache_memory_bytes) is not None:
            self.log.info(
                "gpu_worker.py:459",
                f"Initial free memory {memory.FREE_GIB} GiB, reserved {pinned / memory.GIB:.2f} GiB memory for KV "
                "Cache as specified by kv_cache_memory_bytes config and skipped memory profiling. This does not "
                "respect the gpu_memory_utilization config.",
            )
            return pinned
        vision = self.checkpoint.has_vision
        pool = memory.available_bytes(config.gpu_memory_utilization, config.max_num_batched_tokens, vision)
        self.log.info("gpu_worker.py:538", f"Available KV cache memory: {pool / memory.GIB:.2f} GiB")
        return pool

    def warm_up(self) -> None:
        """Tune kernels, then capture CUDA graphs, the largest first and the drafter's last."""
        if self.config.autotune:
            self.log.info("flashinfer_autotune.py:91", "[Autotuner]: Autotuning process starts ...")
        began = time.monotonic()
        for mode in ("PIECEWISE", "FULL"):
            self._capture(f"Capturing CUDA graphs ({mode})")
        if self.config.num_speculative_tokens:
            self.log.info("speculator.py:101", "Capturing model for DSpark speculator...")
            self._capture("Capturing dspark CUDA graphs (FULL)")
        took = time.monotonic() - began
        self.log.info("model_runner.py:722", f"Graph capturing finished in {took:.0f} secs, took 0.54 GiB")

    def _capture(self, what: str) -> None:
        total = len(self.config.capture_sizes)
        for done in range(total + 1):
            if self.config.node_rank == 0:
                share = 100 * done // max(total, 1)
                self.log.raw(f"\r{what}: {share:3d}%|{'█' * (share // 10):<10}| {done}/{total}")
            if done < total:
                self.fault.pause(GRAPH_S)


def own_address(config: Config) -> str:
    """The address that packets to rank 0 leave from, which is roughly what vLLM uses without VLLM_HOST_IP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((config.master_addr, config.master_port))
        return str(probe.getsockname()[0])
