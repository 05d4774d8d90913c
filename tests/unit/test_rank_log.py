"""What a rank's own lines say about its start: vLLM 0.25's, 0.33's, and rank.py's."""

import pytest

from components.rank_log import RankLog

V025 = "(EngineCore_DP0 pid=214) INFO 11-30 07:31:02 "
START: list[tuple[str, str]] = [
    ("spark: rank 0 starts", "head proves fabric and checkpoint"),
    ("spark: fabric rocep1s0f1 on enp1s0f1np1, GID index 3", "head proves fabric and checkpoint"),
    ("spark: starting the engine: vllm serve deepseek-ai/DeepSeek-V4-Flash-DSpark", "head starts the engine"),
    (
        f"{V025}[parallel_state.py:1780] rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, TP rank 0",
        "head meets the other ranks",
    ),
    ("Loading safetensors checkpoint shards:   0% Completed | 0/48 [00:00<?, ?it/s]", "head loads shards 0/48"),
    (
        "\x1b[1;36mLoading safetensors checkpoint shards:  50% Completed | 24/48 [01:30<01:30,  3.75s/it]\x1b[0m",
        "head loads shards 24/48",
    ),
    (f"{V025}[default_loader.py:308] Loading weights took 181.20 seconds", "head has loaded its shards"),
    (f"{V025}[gpu_model_runner.py:3008] Model loading took 78.4066 GiB and 183.4 seconds", "head profiles memory"),
    (f"{V025}[monitor.py:34] flashinfer: [Autotuner] Autotuning process starts", "head tunes kernels"),
    (f"{V025}[gpu_worker.py:298] Available KV cache memory: 17.21 GiB", "head sizes the KV pool"),
    (f"{V025}[kv_cache_utils.py:1087] GPU KV cache size: 2,555,830 tokens", "head sizes the KV pool"),
    (
        f"{V025}[kv_cache_utils.py:1091] Maximum concurrency for 1,048,576 tokens per request: 2.44x",
        "head sizes the KV pool",
    ),
    (
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|#####     | 3/6 [00:02<00:02,  1.2it/s]",
        "head captures graphs 3/6",
    ),
    (
        f"{V025}[gpu_model_runner.py:3480] Graph capturing finished in 9 secs, took 0.61 GiB",
        "head has captured its graphs",
    ),
    (
        f"{V025}[core.py:282] init engine (profile, create kv cache, warmup model) took 61 seconds",
        "head has captured its graphs",
    ),
    ("(APIServer pid=1) INFO:     Application startup complete.", "head serves"),
]


def test_a_start_is_told_phase_by_phase_with_its_progress():
    log = RankLog("head")
    assert str(log) == "head is created"
    told = []
    for line, _ in START:
        log.feed(f"{line}\n")
        told.append(str(log))
    assert told == [phase for _, phase in START]
    assert log.serves


def test_the_numbers_are_the_engines_own():
    log = RankLog("head")
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
    log = RankLog("head")
    log.feed(
        "INFO 11-30 07:31:02 [kv_cache_utils.py:1812] GPU KV cache size: 2,331,430 tokens, "
        "Maximum concurrency for 1,048,576 tokens per request: 2.22x"
    )
    assert (log.kv_tokens, log.context_tokens, log.max_concurrency) == (2_331_430, 1_048_576, 2.22)


def test_numbers_without_thousands_separators_are_numbers_too():
    log = RankLog("head")
    log.feed("GPU KV cache size: 2555830 tokens")
    assert log.kv_tokens == 2_555_830


def test_a_worker_says_where_it_waits():
    log = RankLog("worker")
    log.feed(
        "Launching vLLM (v0.25.2.dev0+g752a3a504) headless multiproc executor, with head node address "
        "198.51.100.1:25000 for torch.distributed process group."
    )
    assert str(log) == "worker waits at the rendezvous"


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
    log = RankLog("head")
    log.feed(START[5][0])
    assert log.feed(line) is False
    assert str(log) == "head loads shards 24/48"


def test_only_news_counts_as_a_change():
    log = RankLog("head")
    assert [log.feed(START[4][0]), log.feed(START[4][0]), log.feed(START[5][0])] == [True, False, True]


def test_a_rank_that_serves_still_serves_when_a_request_tunes_a_kernel():
    log = RankLog("head")
    log.feed("INFO:     Application startup complete.")
    log.feed("flashinfer: Autotuning fused_moe for 32 tokens")
    assert log.serves


def test_the_cause_above_the_tracebacks_of_every_process_is_kept():
    """vLLM's worker, core and API process each print a traceback after the cause."""
    log = RankLog("head")
    log.feed("torch.OutOfMemoryError: CUDA out of memory.")
    for number in range(300):
        log.feed(f'  File "vllm/v1/engine/core.py", line {number}, in step')
    assert log.tail[0] == "torch.OutOfMemoryError: CUDA out of memory."


def test_a_rank_that_talks_for_days_does_not_fill_the_memory():
    log = RankLog("head")
    for number in range(5000):
        log.feed(f"line {number}")
    assert len(log.tail) <= 1000 and log.tail[-1] == "line 4999"
