"""What a person reads of failed starts of a real vLLM 0.25.1: who failed first, of what, and the row that fits."""

import re

import pytest

from components.start.failure import failure
from components.start.rank_state import RankState
from components.start.troubleshooting import rows
from components.start.watched import Watched
from tests.unit.start.ranks import lines_of, rank

TIME = re.compile(r"(\d\d-\d\d) (\d\d:\d\d:\d\d) \[")
RUNS = RankState(running=True)
KILLED = 'A rank was killed, or "Worker proc ... died unexpectedly"'
FLAG = "The engine refuses a flag"
NEVER_MET = "A rank never meets the other"
PORT = '"Address already in use"'
CHECKPOINT = "A shard, the index or the prompt encoder is missing, short, or a dangling link"
MEMORY = 'Out of memory while loading, or "Free memory on device ... is less than desired GPU memory utilization"'
CONTEXT = '"To serve at least one request with the model\'s max seq len ..."'


def ended(code: int, at: str) -> RankState:
    return RankState(exit_code=code, finished_at=f"2026-12-01T{at}.5Z")


def gone(rank: int) -> RankState:
    return RankState(lost=f"No such object: spark-dev-rank{rank}")


REAL = [
    (
        "a-unknown-flag",
        (ended(2, "01:06:17"), ended(2, "01:06:13")),
        ("worker's rank ended with exit code 2", "ended with exit code 2"),
        "vllm: error: unrecognized arguments: --no-such-flag 3",
        FLAG,
    ),
    (
        "b-worker-absent",
        (ended(1, "01:30:11"), gone(1)),
        ("worker's rank cannot be seen any more: No such object: spark-dev-rank1", "ended with exit code 1"),
        None,
        NEVER_MET,
    ),
    (
        "b2-head-absent",
        (gone(0), ended(1, "01:32:12")),
        ("head's rank cannot be seen any more: No such object: spark-dev-rank0", "ended with exit code 1"),
        None,
        NEVER_MET,
    ),
    (
        "c-worker-killed",
        (ended(0, "01:13:16"), ended(137, "01:12:34")),
        ("worker's rank ended with exit code 137", "ended with exit code 0"),
        None,
        KILLED,
    ),
    (
        "c2-gpu-process-killed",
        (ended(0, "01:21:34"), RUNS),
        ("worker's rank has failed, but its container still runs", "ended with exit code 0"),
        "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
        KILLED,
    ),
    (
        "d-head-killed",
        (ended(137, "01:16:09"), RUNS),
        ("head's rank ended with exit code 137", "still runs"),
        None,
        KILLED,
    ),
    (
        "e1-port-in-use",
        (ended(1, "01:27:24"), RUNS),
        ("head's rank ended with exit code 1", "still waits at the rendezvous for head"),
        "OSError: [Errno 98] Address already in use",
        PORT,
    ),
    (
        "e2-master-port-in-use",
        (ended(1, "01:28:22"), RUNS),
        ("head's rank ended with exit code 1", "still waits at the rendezvous for head"),
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address.",
        PORT,
    ),
    (
        "f1-truncated-shard-rank-py",
        (RUNS, ended(1, "01:25:30")),
        ("worker's rank ended with exit code 1", "still starts its processes"),
        "spark: error: the checkpoint is incomplete: model-00007-of-00048.safetensors has 297 bytes instead of 397",
        CHECKPOINT,
    ),
    (
        # the head's container ends first, the worker's exception came first
        "f2-truncated-shard-engine",
        (ended(1, "01:26:51"), ended(1, "01:26:52")),
        ("worker's rank ended with exit code 1", "ended with exit code 1"),
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata",
        CHECKPOINT,
    ),
    (
        "g-kv-too-small",
        (ended(1, "01:25:22"), RUNS),
        ("head's rank ended with exit code 1", "still sizes the KV pool"),
        "ValueError: To serve at least one request with the model's max seq len (8192)",
        CONTEXT,
    ),
    (
        # its own worker process, which dies afterwards, and its peer are not to blame
        "good-norank",
        (ended(1, "01:01:33"), RUNS),
        ("head's rank ended with exit code 1", "still sizes the KV pool"),
        "ValueError: VLLM_PREFIX_CACHE_RETENTION_INTERVAL is set but this model has no sliding-window",
        None,
    ),
    (
        "keep--speculative-config",
        (ended(1, "01:39:13"), RUNS),
        ("head's rank ended with exit code 1", "still is created"),
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig - "
        "Value error, Model Runner V2 requires Triton.",
        None,
    ),
    (
        "m-memory",
        (ended(1, "01:32:39"), ended(1, "01:32:33")),
        ("worker's rank ended with exit code 1", "ended with exit code 1"),
        "ValueError: Available memory on node 0 (20.94/23.54 GiB) on startup is less than desired",
        MEMORY,
    ),
]


def replay(rank: Watched, log: str, state: RankState) -> None:
    """Feed a log as `docker logs --timestamps` shows it; a line that has no time gets that of the line before."""
    rank.state, at = state, "2026-12-01T00:00:00"
    for line in lines_of(log, rank.role):
        if time := TIME.search(line):
            at = f"2026-{time[1]}T{time[2]}"
        rank.log.feed(f"{at}.250000000Z {line}\n")


@pytest.mark.parametrize(("log", "states", "words", "error", "symptom"), REAL, ids=[case[0] for case in REAL])
def test_a_failed_start_names_the_rank_that_failed_first_its_error_and_the_row_that_fits(
    log: str,
    states: tuple[RankState, RankState],
    words: tuple[str, str],
    error: str | None,
    symptom: str | None,
):
    ranks = [rank("head", 0), rank("worker", 1)]
    for one, state in zip(ranks, states, strict=True):
        replay(one, log, state)
    text = str(failure(ranks, ranks[0], 60))
    lines = text.splitlines()
    headline, other = words
    first, second = ("head", "worker") if headline.startswith("head") else ("worker", "head")
    assert lines[0] == f"{headline}, 60 s after the start"
    assert f"--- {second}: {other}; its last lines:" in lines
    if error:
        assert lines[1].startswith(f"first error, on {first}: {error}")
    else:
        assert lines[1].startswith("--- head: ")
    causes = {row.cause: row.symptom for row in rows()}
    meant = [causes[line.removeprefix("what this means: ")] for line in lines if line.startswith("what this means: ")]
    assert meant == ([symptom] if symptom else [])
    assert 'File "' not in text, "a traceback's frames leave no room for what happened"
