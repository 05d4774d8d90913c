"""Ranks on loopback: whole processes that become ready, lose each other and leave, with vLLM's lines and codes."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lab.place import CHECKOUT
from lab.runtime.vllm import config, flags, rendezvous, startup
from lab.runtime.vllm.errors import DistNetworkError, DistStoreError
from lab.runtime.vllm.group import Group
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
        self.more: list[str] = []

    def start(self, rank: int, **variables: str) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "VLLM_", "HF_"))},
            **{"LAB_SYSFS": str(self.folder / "sys"), "LAB_FAULTS_URL": "", "LAB_SPEED": "0"},
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


def ask(port: int, path: str, **body: object) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def serving(pair: Pair) -> Pair:
    pair.start(1)
    pair.start(0)
    pair.wait_for(0, "Application startup complete.")
    return pair


def test_a_pair_serves_with_the_lines_of_a_real_start_in_their_order(pair):
    serving(pair)
    lines = [
        "Inferred data_parallel_rank 0 from node_rank 0",
        "max_num_scheduled_tokens is set to 8180",
        f"(Worker pid={pair.ranks[0].pid + 21}) INFO",
        "world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:",
        "rank 0 in world size 2 is assigned as",
        "\rLoading safetensors checkpoint shards:   0% Completed | 0/3",
        "\rLoading safetensors checkpoint shards: 100% Completed | 3/3",
        "Loading weights took",
        "Model loading took 78.41 GiB and",
        "Available KV cache memory: 17.21 GiB",
        "GPU KV cache size: 2,555,830 tokens",
        "Maximum concurrency for 1,048,576 tokens per request: 2.44x",
        "[Autotuner]: Autotuning process starts",
        "Capturing CUDA graphs (PIECEWISE)",
        "Capturing CUDA graphs (FULL)",
        "Capturing dspark CUDA graphs (FULL)",
        "Graph capturing finished in",
        "init engine (profile, create kv cache, warmup model) took",
        "Starting vLLM server on http://127.0.0.1:",
        "Route: /inference/v1/generate, Methods: POST",
    ]
    places = [pair.log(0).index(line) for line in lines]
    assert places == sorted(places)
    worker = pair.log(1)
    assert f"headless multiproc executor, with head node address 127.0.0.1:{pair.master} for torch.dist" in worker
    assert "checkpoint shards" not in worker, "vLLM prints the bar on rank 0 only"
    assert ask(pair.api, "/v1/completions", prompt="What is 2 x 3?", max_tokens=8)[0] == 200


def test_a_pool_of_a_given_size_has_a_line_of_its_own(pair):
    pair.more = ["--kv-cache-memory-bytes", "17g"]
    serving(pair)
    assert "reserved 15.83 GiB memory for KV Cache as specified by kv_cache_memory_bytes config" in pair.log(0)
    assert "Available KV cache memory" not in pair.log(0)


def test_a_head_that_is_told_to_end_leaves_at_once_and_its_worker_stays_in_silence(pair):
    serving(pair)
    said = pair.log(1)
    pair.ranks[0].send_signal(signal.SIGTERM)
    assert pair.code(0) == 0
    with pytest.raises(subprocess.TimeoutExpired):
        pair.ranks[1].wait(1.5)
    assert pair.log(1) == said
    pair.ranks[1].send_signal(signal.SIGTERM)
    assert pair.code(1) == 0
    assert "[shutdown] Executor: workers still running after SIGTERM; sending SIGKILL count=1" in pair.log(1)


def test_a_worker_that_serves_needs_twelve_seconds_to_end():
    assert startup.GRACE_S + startup.TERM_S + startup.KILL_S == 12


def test_a_head_that_loses_its_idle_worker_says_nothing_until_a_request_and_then_ends_with_0(pair):
    serving(pair)
    pair.ranks[1].kill()
    pair.ranks[1].wait()
    assert ask(pair.api, "/health")[0] == 200
    assert "ERROR" not in pair.log(0)
    assert ask(pair.api, "/v1/completions", prompt="x", max_tokens=2)[0] == 500
    assert pair.code(0) == 0
    causes = [line for line in pair.log(0).splitlines() if "Error: " in line]
    assert "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by" in causes[0]


def test_a_stopped_worker_makes_requests_wait_until_it_goes_on(pair):
    serving(pair)
    pair.ranks[1].send_signal(signal.SIGSTOP)
    answers: list[int] = []
    asking = threading.Thread(
        target=lambda: answers.append(ask(pair.api, "/v1/completions", prompt="x", max_tokens=64)[0])
    )
    asking.start()
    asking.join(1.0)
    metrics = ask(pair.api, "/metrics")[1]
    assert 'vllm:num_requests_running{engine="0",model_name="deepseek-v4-flash-dspark"} 1.0' in metrics
    assert 'vllm:generation_tokens_total{engine="0",model_name="deepseek-v4-flash-dspark"} 0.0' in metrics
    assert (ask(pair.api, "/health")[0], answers) == (200, [])
    pair.ranks[1].send_signal(signal.SIGCONT)
    asking.join(20)
    assert answers == [200]


def test_a_context_that_the_pool_cannot_hold_ends_the_head_alone(pair):
    pair.more = ["--kv-cache-memory-bytes", "1g"]
    pair.start(1)
    pair.start(0)
    assert pair.code(0) == 1
    assert "ValueError: To serve at least one request with the model's max seq len (1048576)" in pair.log(0)
    assert pair.ranks[1].poll() is None


def test_a_wrong_gid_on_one_rank_ends_both_ranks(pair):
    pair.start(1, NCCL_IB_GID_INDEX="0")
    pair.start(0)
    assert (pair.code(0), pair.code(1)) == (1, 1)
    assert "NCCL WARN Call to ibv_modify_qp failed with 61 No data available" in pair.log(1)
    assert "RuntimeError: NCCL error: unhandled system error" in pair.log(1)
    assert "Engine core initialization failed" in pair.log(0)


def test_a_rank_that_waits_for_its_head_ends_when_it_is_told_to(pair):
    pair.start(1)
    pair.wait_for(1, "world_size=2 rank=1")
    pair.ranks[1].send_signal(signal.SIGTERM)
    assert pair.code(1) == 0
    assert "workers still running after grace period; sending SIGTERM" in pair.log(1)


def test_a_missing_shard_is_named(pair):
    pair.start(1)
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
            groups[mine.node_rank] = rendezvous.meet(mine, "127.0.0.1")
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
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        groups[0].barrier("next")
    groups[0].close()
    groups[1].close()


def test_a_rank_that_nobody_joins_gives_up_at_the_limit(free_port):
    head, worker = ranks(free_port(), "--distributed-timeout-seconds", "1")
    _, failures = meet_all([worker])
    assert isinstance(failures[1], DistNetworkError)
    _, failures = meet_all([head])
    assert isinstance(failures[0], DistStoreError)
    assert "1/2 clients joined" in str(failures[0])


def test_a_taken_rendezvous_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        _, failures = meet_all(ranks(taken.getsockname()[1])[:1])
    assert "name: EADDRINUSE, message: address already in use" in str(failures[0])
