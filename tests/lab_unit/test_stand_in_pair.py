"""Ranks on loopback: whole processes that become ready, lose each other and leave, with vLLM's lines and codes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lab.place import CHECKOUT
from lab.runtime.vllm import config, flags, rendezvous
from lab.runtime.vllm.errors import DistNetworkError, DistStoreError, PeerLostError
from lab.runtime.vllm.group import Group
from lab.runtime.vllm.log import Log
from tests.lab_unit.stand_in_machine import LINK_LOCAL, RECIPE, V4, checkpoint, hca

LAUNCH = "from lab.runtime.vllm.main import main; raise SystemExit(main())"
LIMIT_S = 60


class Pair:
    """Both ranks' processes and logs."""

    def __init__(self, folder: Path, api: int, master: int) -> None:
        self.folder, self.api, self.master = folder, api, master
        self.model = checkpoint(folder / "snapshot")
        hca(folder / "sys", "rocep1s0f1", {0: (LINK_LOCAL, "RoCE v2"), 3: (V4, "RoCE v2")})
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, rank: int, **variables: str) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "VLLM_", "HF_"))},
            **{"LAB_SYSFS": str(self.folder / "sys"), "LAB_FAULTS_URL": "", "LAB_SPEED": "0", "LAB_DEATH_S": "0.2"},
            **{"VLLM_HOST_IP": "127.0.0.1", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"},
            **{"NCCL_IB_HCA": "=rocep1s0f1", "NCCL_IB_GID_INDEX": "3", "NCCL_NET": "IB"},
            **variables,
        }
        place = ["--node-rank", str(rank), "--master-port", str(self.master), "--port", str(self.api)]
        arguments = ["serve", str(self.model), *RECIPE, *place, *(["--headless"] if rank else [])]
        with (self.folder / f"{rank}.log").open("wb") as out:
            self.ranks[rank] = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, *arguments], cwd=CHECKOUT, env=environment, stdout=out, stderr=out
            )

    def log(self, rank: int) -> str:
        return (self.folder / f"{rank}.log").read_bytes().decode()

    def wait_for(self, rank: int, words: str) -> None:
        for _ in range(LIMIT_S * 50):
            if words in self.log(rank):
                return
            if self.ranks[rank].poll() is not None:
                break
            with suppress(subprocess.TimeoutExpired):
                self.ranks[rank].wait(0.02)
        raise AssertionError(f"rank {rank} never said {words!r}:\n{self.log(rank)}")

    def code(self, rank: int) -> int:
        return self.ranks[rank].wait(LIMIT_S)


@pytest.fixture
def pair(tmp_path, free_port) -> Iterator[Pair]:
    made = Pair(tmp_path, free_port(), free_port())
    yield made
    for process in made.ranks.values():
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_pair_serves_and_both_leave_with_0_when_the_head_is_told_to(pair):
    pair.start(1)
    pair.start(0)
    pair.wait_for(0, "Application startup complete.")
    head, worker = pair.log(0), pair.log(1)
    for line in (
        "Available KV cache memory: 17.21 GiB",
        "GPU KV cache size: 2,555,830 tokens",
        "Maximum concurrency for 1,048,576 tokens per request: 2.44x",
        "\rLoading safetensors checkpoint shards: 100% Completed | 3/3",
        "max_num_scheduled_tokens is set to 8180",
    ):
        assert line in head
    assert f"headless multiproc executor, with head node address 127.0.0.1:{pair.master} for torch.dist" in worker
    assert "checkpoint shards" not in worker, "vLLM prints the bar on rank 0 only"
    with urllib.request.urlopen(f"http://127.0.0.1:{pair.api}/health", timeout=10) as reply:
        assert reply.status == 200
    pair.ranks[0].send_signal(signal.SIGTERM)
    assert (pair.code(0), pair.code(1)) == (0, 0)
    assert "Worker proc VllmWorker-1 died unexpectedly, shutting down executor." in pair.log(1)


def test_a_head_that_loses_its_worker_says_so_and_ends_with_1(pair):
    pair.start(1)
    pair.start(0)
    pair.wait_for(0, "Application startup complete.")
    pair.ranks[1].kill()
    assert pair.code(0) == 1
    log = pair.log(0)
    assert "Worker proc VllmWorker-1 died unexpectedly, shutting down executor." in log
    assert "RuntimeError: cancelled" in log
    assert "shm_broadcast.py" in log


def test_a_wrong_gid_on_one_rank_ends_both_ranks(pair):
    pair.start(1, NCCL_IB_GID_INDEX="0")
    pair.start(0)
    assert (pair.code(0), pair.code(1)) == (1, 1)
    assert "NCCL WARN Call to ibv_modify_qp failed with 61 No data available" in pair.log(1)
    assert "RuntimeError: NCCL error: unhandled system error" in pair.log(1)
    assert "Engine core initialization failed" in pair.log(0)


def test_a_missing_shard_is_named_and_sigterm_does_not_end_a_rank_that_waits(pair):
    pair.start(1)
    pair.wait_for(1, "failed to connect to [127.0.0.1]")
    pair.ranks[1].send_signal(signal.SIGTERM)
    next(pair.model.glob("model-00002*")).unlink()
    pair.start(0)
    assert (pair.code(0), pair.code(1)) == (1, 1)
    assert "FileNotFoundError: No such file or directory: " in pair.log(0) + pair.log(1)
    assert "model-00002-of-00003.safetensors" in pair.log(0) + pair.log(1)


def ranks(port: int, *more: str) -> list[config.Config]:
    base = config.engine_config(flags.parse(["serve", "m", *RECIPE, "--master-port", str(port), *more]))
    return [replace(base, node_rank=rank, headless=rank > 0) for rank in range(base.nnodes)]


def meet_all(configs: list[config.Config]) -> tuple[dict[int, Group], dict[int, Exception]]:
    groups: dict[int, Group] = {}
    failures: dict[int, Exception] = {}

    def one(mine: config.Config) -> None:
        try:
            with open(os.devnull, "w") as nowhere:
                groups[mine.node_rank] = rendezvous.meet(mine, "127.0.0.1", Log(out=nowhere))
        except Exception as error:
            failures[mine.node_rank] = error

    threads = [threading.Thread(target=one, args=(mine,)) for mine in configs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return groups, failures


def test_three_ranks_meet_wait_for_each_other_and_notice_a_loss(free_port):
    groups, failures = meet_all(ranks(free_port(), "--nnodes", "3", "--tensor-parallel-size", "3"))
    assert not failures
    words: dict[int, dict[str, int]] = {}
    threads = [
        threading.Thread(target=lambda rank, group: words.update({rank: group.barrier("kv", rank * 10)}), args=item)
        for item in groups.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert words == {rank: {"0": 0, "1": 10, "2": 20} for rank in range(3)}
    groups[2].close()
    with pytest.raises(PeerLostError, match="rank 2"):
        groups[0].barrier("next")
    groups[0].close()
    groups[1].close()


def test_ranks_with_other_settings_are_refused_by_flag(free_port):
    head, worker = ranks(free_port())
    other = {**worker.fingerprint, "async_scheduling": "False"}
    _, failures = meet_all([head, replace(worker, fingerprint=other)])
    assert [type(failure) for failure in failures.values()] == [RuntimeError, RuntimeError]
    assert "--async-scheduling is True and False" in str(failures[0])


def test_a_rank_that_nobody_joins_gives_up_at_the_limit(free_port, monkeypatch):
    monkeypatch.setenv("LAB_RENDEZVOUS_S", "0.2")
    head, worker = ranks(free_port())
    _, failures = meet_all([worker])
    assert isinstance(failures[1], DistNetworkError)
    _, failures = meet_all([head])
    assert isinstance(failures[0], DistStoreError)
    assert "1/2 clients joined" in str(failures[0])


def test_a_taken_rendezvous_port_is_named(monkeypatch):
    monkeypatch.setenv("LAB_RENDEZVOUS_S", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        _, failures = meet_all(ranks(taken.getsockname()[1])[:1])
    assert "message: address already in use" in str(failures[0])
