"""What a rank's own lines say about its start: vLLM 0.25's, 0.33's, and rank.py's."""

import pytest

from components.start.rank_log import RankLog

CORE = "(EngineCore pid=13) INFO 12-01 01:04:22 "
WORKER = "(Worker_TP0 pid=22) INFO 12-01 01:03:26 "
MEETING = (
    "(Worker pid=22) INFO 12-01 01:03:19 [parallel_state.py:1607] world_size=2 rank=0 local_rank=0 "
    "distributed_init_method=tcp://192.168.100.1:25000 backend=nccl"
)
PINNED = (
    f"{WORKER}[gpu_worker.py:459] Initial free memory 117.3 GiB, reserved 17.0 GiB memory for KV Cache as specified by "
    "kv_cache_memory_bytes config and skipped memory profiling."
)
START: list[tuple[str, str]] = [
    ("spark: rank 0 starts", "checks fabric and checkpoint"),
    ("spark: fabric rocep1s0f1 on enp1s0f1np1, GID index 3", "checks fabric and checkpoint"),
    ("spark: starting the engine: vllm serve deepseek-ai/DeepSeek-V4-Flash-DSpark", "loads vLLM's modules"),
    (f"{CORE}[core.py:114] Initializing a V1 LLM engine (v0.25.1) with config: model='/x'", "starts its processes"),
    (MEETING, "waits at the rendezvous"),
    (
        "(Worker pid=22) INFO 12-01 01:03:26 [parallel_state.py:1942] rank 0 in world size 2 is assigned as DP rank 0, "
        "PP rank 0, PCP rank 0, TP rank 0, EP rank N/A, EPLB rank N/A",
        "has met the other ranks",
    ),
    (f"{WORKER}[model_runner.py:281] Loading model from scratch...", "loads shards"),
    (
        "(Worker_TP0 pid=22) Loading safetensors checkpoint shards:   0% Completed | 0/48 [00:00<?, ?it/s]",
        "loads shards 0/48",
    ),
    (
        "\x1b[1;36mLoading safetensors checkpoint shards:  50% Completed | 24/48 [01:30<01:30,  3.75s/it]\x1b[0m",
        "loads shards 24/48",
    ),
    (f"{WORKER}[default_loader.py:430] Loading weights took 181.20 seconds", "has loaded its shards"),
    (f"{WORKER}[model_runner.py:302] Model loading took 78.41 GiB and 183.400000 seconds", "profiles memory"),
    (f"{WORKER}[gpu_worker.py:538] Available KV cache memory: 17.21 GiB", "sizes the KV pool"),
    (f"{CORE}[kv_cache_utils.py:2146] GPU KV cache size: 2,555,830 tokens", "sizes the KV pool"),
    (
        f"{CORE}[kv_cache_utils.py:2147] Maximum concurrency for 1,048,576 tokens per request: 2.44x",
        "sizes the KV pool",
    ),
    ("2026-11-30 07:31:02 - INFO - [Autotuner]: Autotuning process starts ...", "tunes kernels"),
    (
        "(Worker_TP0 pid=22) Capturing CUDA graphs (PIECEWISE):  50%|#####     | 3/6 [00:02<00:02,  1.2it/s]",
        "captures graphs 3/6",
    ),
    ("(Worker_TP0 pid=22) Capturing dspark CUDA graphs (FULL):  17%|#6        | 1/6", "captures graphs 1/6"),
    (
        f"{WORKER}[model_runner.py:722] Graph capturing finished in 9 secs, took 0.61 GiB",
        "has captured its graphs",
    ),
    (
        f"{CORE}[core.py:344] init engine (profile, create kv cache, warmup model) took 56.63 s",
        "starts the API",
    ),
    ("(APIServer pid=1) INFO:     Application startup complete.", "serves"),
]
BEFORE_SHARDS, HALF_LOADED = START[7][0], START[8][0]


def test_a_start_is_shown_phase_by_phase_with_its_progress():
    log = RankLog()
    assert str(log) == "is created"
    told = []
    for line, _ in START:
        log.feed(f"{line}\n")
        told.append(str(log))
    assert told == [phase for _, phase in START]
    assert log.serves


def test_the_numbers_are_the_engines_own():
    log = RankLog()
    for line, _ in START:
        log.feed(line)
    assert (log.kv_memory_gib, log.kv_tokens, log.context_tokens, log.max_concurrency) == (
        17.21,
        2_555_830,
        1_048_576,
        2.44,
    )


def test_newer_engines_say_pool_and_concurrency_in_one_line():
    """vLLM 0.33."""
    log = RankLog()
    log.feed(
        "INFO 11-30 07:31:02 [kv_cache_utils.py:1812] GPU KV cache size: 2,331,430 tokens, "
        "Maximum concurrency for 1,048,576 tokens per request: 2.22x"
    )
    assert (log.kv_tokens, log.context_tokens, log.max_concurrency) == (2_331_430, 1_048_576, 2.22)


def test_numbers_without_thousands_separators_are_numbers_too():
    log = RankLog()
    log.feed("GPU KV cache size: 2555830 tokens")
    assert log.kv_tokens == 2_555_830


def test_a_workers_phases_are_shown_although_it_counts_neither_shards_nor_graphs():
    log = RankLog()
    told = []
    for line in (
        "INFO 12-01 01:02:53 [serve.py:212] Launching vLLM (v0.25.1) headless multiproc executor, with head node "
        "address 192.168.100.1:25000 for torch.distributed process group.",
        MEETING.replace("rank=0", "rank=1", 1),
        "(Worker pid=9) INFO 12-01 01:03:26 [parallel_state.py:1942] rank 1 in world size 2 is assigned as DP rank 0",
        "(Worker_TP1 pid=9) INFO 12-01 01:03:26 [cpu_model_runner.py:128] Starting to load model /x...",
        "(Worker_TP1 pid=9) INFO 12-01 01:03:26 [default_loader.py:430] Loading weights took 0.03 seconds",
    ):
        log.feed(line)
        told.append(log.phase)
    assert told == [
        "starts its processes",
        "waits at the rendezvous",
        "has met the other ranks",
        "loads shards",
        "has loaded its shards",
    ]


@pytest.mark.parametrize(
    ("line", "gib"),
    [
        (PINNED, 17.0),
        ("(Worker_TP0 pid=22) INFO [cpu_worker.py:235] Explicitly set (0.06/22.21) GiB for KV cache on node 0.", 0.06),
    ],
)
def test_a_pool_of_a_given_size_is_a_pool_too(line: str, gib: float):
    log = RankLog()
    log.feed(line)
    assert (log.phase, log.kv_memory_gib) == ("sizes the KV pool", gib)


def test_a_restarted_container_is_known_by_its_latest_start():
    """Docker shows what it said in every start."""
    log = RankLog()
    for line in (*(line for line, _ in START), "OSError: [Errno 98] Address already in use", START[0][0]):
        log.feed(line)
    assert log == RankLog(phase="checks fabric and checkpoint", error=log.error, tail=log.tail)
    assert (log.error.text, list(log.tail)) == (None, [START[0][0]])


@pytest.mark.parametrize(
    "line",
    [
        "INFO:     127.0.0.1:50412 - 'GET /health HTTP/1.1' 200 OK",
        "SpecDecoding metrics: Mean acceptance length: 2.58",
        "",
        "   ",
        "\x1b[0m",
    ],
)
def test_a_line_that_tells_nothing_new_changes_nothing(line: str):
    log = RankLog()
    log.feed(HALF_LOADED)
    assert log.feed(line) is False
    assert str(log) == "loads shards 24/48"


def test_only_news_counts_as_a_change():
    log = RankLog()
    assert [log.feed(BEFORE_SHARDS), log.feed(BEFORE_SHARDS), log.feed(HALF_LOADED)] == [True, False, True]


def test_a_rank_that_serves_still_serves_when_a_request_tunes_a_kernel():
    log = RankLog()
    log.feed("INFO:     Application startup complete.")
    log.feed("flashinfer: Autotuning fused_moe for 32 tokens")
    assert log.serves


def test_dockers_time_in_front_of_a_line_is_no_part_of_it():
    log = RankLog()
    log.feed("2026-12-01T01:28:19.862378879Z torch.OutOfMemoryError: CUDA out of memory.")
    assert (log.error.text, log.error.at) == (
        "torch.OutOfMemoryError: CUDA out of memory.",
        "2026-12-01T01:28:19.862378879Z",
    )
    assert list(log.tail) == [log.error.text]


def test_a_rank_that_talks_for_days_does_not_fill_the_memory():
    log = RankLog()
    for number in range(5000):
        log.feed(f"line {number}")
    assert len(log.tail) + len(log.error.evidence) < 1000 and log.tail[-1] == "line 4999"
