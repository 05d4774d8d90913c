"""Whole ranks on loopback that become ready, lose each other and end, with vLLM's lines and exit codes."""

import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from lab.runtime.vllm import startup
from tests.lab_unit.stand_in_machine import Pair, two_ranks


@pytest.fixture
def pair(tmp_path, free_port) -> Iterator[Pair]:
    yield from two_ranks(tmp_path, free_port)


def test_a_pair_serves_with_the_lines_of_a_real_start_in_their_order(pair):
    pair.serves()
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
    assert pair.ask("/v1/completions", prompt="What is 2 x 3?", max_tokens=8)[0] == 200


def test_a_pool_of_a_given_size_has_a_line_of_its_own(pair):
    pair.more = ["--kv-cache-memory-bytes", "17g"]
    pair.serves()
    assert "reserved 15.83 GiB memory for KV Cache as specified by kv_cache_memory_bytes config" in pair.log(0)
    assert "Available KV cache memory" not in pair.log(0)


def test_a_head_that_is_told_to_end_leaves_at_once_and_its_worker_stays_in_silence(pair):
    pair.serves()
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
    pair.serves()
    pair.ranks[1].kill()
    pair.ranks[1].wait()
    assert pair.ask("/health")[0] == 200
    assert "ERROR" not in pair.log(0)
    assert pair.ask("/v1/completions", prompt="x", max_tokens=2)[0] == 500
    assert pair.code(0) == 0
    causes = [line for line in pair.log(0).splitlines() if "Error: " in line]
    assert "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by" in causes[0]


def test_a_stopped_worker_makes_requests_wait_until_it_goes_on(pair):
    pair.serves()
    pair.ranks[1].send_signal(signal.SIGSTOP)
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(pair.ask("/v1/completions", prompt="x", max_tokens=64)[0]))
    asking.start()
    asking.join(1.0)
    metrics = pair.ask("/metrics")[1]
    assert 'vllm:num_requests_running{engine="0",model_name="deepseek-v4-flash-dspark"} 1.0' in metrics
    assert 'vllm:generation_tokens_total{engine="0",model_name="deepseek-v4-flash-dspark"} 0.0' in metrics
    assert (pair.ask("/health")[0], answers) == (200, [])
    pair.ranks[1].send_signal(signal.SIGCONT)
    asking.join(20)
    assert answers == [200]


def test_a_context_that_the_pool_cannot_hold_ends_the_head_alone(pair):
    pair.more = ["--kv-cache-memory-bytes", "1g"]
    pair.start(1)
    pair.start(0)
    assert pair.code(0) == 1
    cause = pair.log(0).index("ValueError: To serve at least one request with the model's max seq len (1048576)")
    assert cause < pair.log(0).index("Worker proc VllmWorker-0 died unexpectedly"), "its own worker, as a consequence"
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
