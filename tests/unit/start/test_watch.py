"""Following a start: what a person sees while it makes progress, and when it fails.

No time passes and no node is reached: clock, log streams and Docker's answers are the test's.
"""

import queue
from typing import Any

import pytest

from components.start import watch
from components.start.failure import StartFailed
from components.start.rank_state import RankState
from components.start.watch import Event, Watch, follow
from components.start.watched import Watched
from tests.unit.executables import Recorder
from tests.unit.start.ranks import lines_of, rank

RUNNING = RankState(running=True)


class Clock:
    """Time that passes only while somebody waits for an event."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Events:
    """The streams' events as a test gives them; waiting for one that never comes advances the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.told: list[Event | float] = []

    def get(self, timeout: float) -> Event:
        while self.told:
            item = self.told.pop(0)
            if not isinstance(item, float):
                return item
            self.clock.now += item
        self.clock.now += timeout
        raise queue.Empty

    def put(self, item: Event) -> None:
        self.told.append(item)


class Pair:
    """A watch over head and worker, with streams, states and a clock that the test controls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.head, self.worker = rank("head", 0), rank("worker", 1)
        self.states = {"head": RUNNING, "worker": RUNNING}
        self.followed: list[str] = []
        self.clock = Clock()

        def followed(rank: Watched, events: object) -> Any:
            self.followed.append(rank.role)
            return Ended()

        monkeypatch.setattr(watch, "follow", followed)
        monkeypatch.setattr(Watched, "inspect", lambda rank: self.states[rank.role])
        monkeypatch.setattr(watch.time, "monotonic", self.clock)  # type: ignore[attr-defined]
        self.watch = Watch([self.head, self.worker])
        self.events = Events(self.clock)
        self.watch.events = self.events  # type: ignore[assignment]

    def tell(self, *items: Event | float) -> None:
        self.events.told += items

    def until_serving(self, limit_s: float = 600) -> None:
        self.watch.until(lambda: self.head.log.serves, "the start", limit_s)

    def failure(self, limit_s: float = 600) -> list[str]:
        with pytest.raises(StartFailed) as caught:
            self.until_serving(limit_s)
        return str(caught.value).splitlines()


class Ended:
    """A stream's process that is over."""

    def poll(self) -> int:
        return 0


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(monkeypatch)


def test_the_wait_ends_when_the_head_serves_and_not_before(pair: Pair):
    pair.tell(
        (pair.worker, "Application startup complete\n"),
        (pair.head, "Model loading took 78 GiB\n"),
        (pair.head, "INFO:     Application startup complete.\n"),
        (pair.head, "never taken\n"),
    )
    pair.until_serving()
    assert pair.events.told == [(pair.head, "never taken\n")]


def test_a_change_of_phase_is_shown_and_so_is_every_quarter_minute_without_one(
    pair: Pair, capsys: pytest.CaptureFixture[str]
):
    pair.tell(
        2.0,
        (pair.head, "Loading safetensors checkpoint shards:   2% Completed | 1/48\n"),
        (pair.worker, "MemAvailable:   104857600 kB\n"),
        40.0,
        (pair.head, "Loading safetensors checkpoint shards:   4% Completed | 2/48\n"),
        (pair.head, "Loading safetensors checkpoint shards:   6% Completed | 3/48\n"),
    )
    pair.failure(limit_s=60)
    assert capsys.readouterr().err.splitlines() == [
        "    2 s   head loads shards 1/48   worker is created",
        "   42 s   head loads shards 2/48   worker is created, 100.0 GiB free",
        "   57 s   head loads shards 3/48   worker is created, 100.0 GiB free",
    ]


def test_a_worker_of_a_head_that_serves_runs_although_it_prints_no_more(pair: Pair, capsys: pytest.CaptureFixture[str]):
    pair.worker.log.feed("Available KV cache memory: 17.21 GiB")
    pair.head.log.serves = True
    with pytest.raises(StartFailed):
        pair.watch.until(lambda: False, "the completion", 1)
    assert capsys.readouterr().err.splitlines() == ["    0 s   head is created   worker runs"]


def test_a_rank_that_ends_fails_the_start_with_both_ranks_last_lines_and_the_way_out(pair: Pair):
    """Seen when it happens, not at a time-out."""
    pair.states = {
        "head": RankState(exit_code=1, finished_at="2026-11-30T07:00:09Z"),
        "worker": RankState(exit_code=1, finished_at="2026-11-30T07:00:03Z"),
    }
    pair.tell(
        12.0,
        (pair.worker, "torch.OutOfMemoryError: CUDA out of memory.\n"),
        (pair.head, "RuntimeError: Engine core initialization failed.\n"),
        (pair.head, None),
        (pair.worker, "nearly the last line\n"),
        (pair.worker, "the very last line\n"),
        (pair.worker, None),
        (pair.worker, "never waited for\n"),
    )
    lines = pair.failure()
    assert pair.events.told == [(pair.worker, "never waited for\n")]
    assert lines[:8] == [
        "worker's rank ended with exit code 1, 12 s after the start",
        "first error, on worker: torch.OutOfMemoryError: CUDA out of memory.",
        "--- head: ended with exit code 1; its last lines:",
        "    RuntimeError: Engine core initialization failed.",
        "--- worker: ended with exit code 1; its last lines:",
        "    torch.OutOfMemoryError: CUDA out of memory.",
        "    nearly the last line",
        "    the very last line",
    ]
    assert lines[8].startswith("what this means: Something else holds unified memory")
    assert lines[9].startswith("way out: Free the node")
    assert len(lines) == 10


def test_a_peer_that_still_runs_delays_the_report_by_seconds_only(pair: Pair):
    pair.states["worker"] = RankState(exit_code=0, finished_at="2026-11-30T07:00:03Z")
    pair.tell((pair.head, "Loading safetensors checkpoint shards:   2% Completed | 1/48"), (pair.worker, None))
    lines = pair.failure()
    assert lines[0] == "worker's rank ended with exit code 0, 3 s after the start"
    assert lines[1:3] == [
        "--- head: still loads shards 1/48; its last lines:",
        "    Loading safetensors checkpoint shards:   2% Completed | 1/48",
    ]
    assert lines[3:] == [
        "--- worker: ended with exit code 0; its last lines:",
        "    (no line)",
        "no row of docs/troubleshooting.md fits: on worker's node, `docker logs spark-dev-rank1` also shows the "
        "tracebacks; pulumi up restarts both ranks",
    ]


def test_a_rank_that_the_kernel_killed_is_explained_without_a_word_of_its_own(pair: Pair):
    pair.states["worker"] = RankState(exit_code=137, oom_killed=True)
    pair.tell((pair.worker, None))
    lines = pair.failure()
    assert lines[0].startswith("worker's rank was killed for lack of memory, ")
    assert any(line.startswith("what this means: Something else holds unified memory") for line in lines)


def test_a_rank_whose_engine_failed_and_never_ends_is_not_waited_for_until_the_limit(
    pair: Pair, capsys: pytest.CaptureFixture[str]
):
    pair.tell((pair.worker, "INFO 12-01 01:21:22 [cpu_worker.py:235] Available KV cache memory: 17.21 GiB\n"), 2.0)
    pair.tell((pair.worker, "ERROR 12-01 01:21:33 [x.py:284] Worker proc VllmWorker-1 died unexpectedly\n"), 20.0)
    lines = pair.failure()
    assert "worker has failed" in capsys.readouterr().err
    assert lines[0] == "worker's rank has failed, but its container still runs, 62 s after the start"
    assert lines[1] == "first error, on worker: Worker proc VllmWorker-1 died unexpectedly"


def test_a_rank_that_docker_could_not_start_says_why(pair: Pair):
    pair.states["head"] = RankState(exit_code=128, error="network is unreachable")
    pair.tell((pair.head, None))
    assert pair.failure()[0].startswith("head's rank could not start: network is unreachable, ")


def test_a_node_that_is_gone_is_named_as_gone(pair: Pair):
    pair.states["worker"] = RankState(lost="the node does not answer any more")
    pair.tell((pair.worker, None))
    lines = pair.failure()
    assert lines[0].startswith("worker's rank cannot be seen any more: the node does not answer any more, ")
    assert any(line.startswith("way out: End the job on the other node") for line in lines)


def test_only_the_last_lines_are_shown_but_all_that_are_kept_are_read(pair: Pair):
    pair.states["head"] = RankState(exit_code=1)
    said = [(pair.head, f"request {number}\n") for number in range(100)]
    pair.tell((pair.head, "vllm: error: unrecognized arguments: --x\n"), *said, (pair.head, None))
    lines = pair.failure()
    assert [line for line in lines if "request" in line] == [f"    request {number}" for number in range(88, 100)]
    assert any(line.startswith("what this means: The image's vLLM does not know the flag") for line in lines)


def test_a_head_that_lost_its_worker_is_a_failure_although_it_ended_with_0(pair: Pair):
    """That is the real engine's exit code. The worker's node says of its container that it runs."""
    pair.states["head"] = RankState(exit_code=0)
    said = [line for line in lines_of("c-worker-killed", "head") if "startup complete" not in line]
    pair.tell(*[(pair.head, line) for line in said], (pair.head, None))
    lines = pair.failure()
    assert lines[0].startswith("head's rank ended with exit code 0, ")
    assert lines[1].endswith("Connection closed by peer [192.168.100.2]:49283")
    assert any(line.startswith("what this means: A rank lost its peer") for line in lines)


def test_a_first_exception_that_is_no_longer_among_the_kept_lines_is_explained_all_the_same(pair: Pair):
    pair.states["head"] = RankState(exit_code=1)
    pair.tell((pair.head, "torch.OutOfMemoryError: CUDA out of memory.\n"))
    pair.tell(*[(pair.head, f"  frame {number}\n") for number in range(1000)], (pair.head, None))
    assert any(line.startswith("what this means: Something else holds unified memory") for line in pair.failure())


def test_the_limit_names_the_phase_and_calls_nothing_ended(pair: Pair):
    """A hang is reported with the phase it hangs in."""
    pair.tell((pair.head, "Capturing CUDA graphs (decode, FULL):   0%|  | 0/36\n"))
    lines = pair.failure(limit_s=30)
    assert lines[:2] == [
        "the start took more than 30 s; the ranks still run",
        "head's rank still captures graphs 0/36, 30 s after the start",
    ]
    assert not any("ended" in line for line in lines)


def test_a_log_stream_that_breaks_off_is_reopened_while_the_rank_runs(pair: Pair, capsys: pytest.CaptureFixture[str]):
    pair.tell((pair.head, None), (pair.head, "INFO:     Application startup complete.\n"))
    pair.until_serving()
    assert pair.followed == ["head", "worker", "head"]
    assert "the log stream of head broke off, reconnecting (1 of 5)" in capsys.readouterr().err


def test_a_log_stream_that_never_holds_is_given_up_with_a_reason(pair: Pair):
    pair.tell(*[(pair.head, None)] * 6)
    lines = pair.failure()
    assert lines[0] == "the log stream of head broke off 6 times"
    assert lines[1].startswith("head's rank still is created, ")


def test_streams_that_still_run_are_ended_with_the_watch(recorder: Recorder):
    recorder.answer("ssh", "exec sleep 60")
    watching = Watch([rank("head", 0), rank("worker", 1)])
    watching.close()
    assert [stream.poll() for stream in watching._streams] == [-15, -15]
    assert [watching.events.get(timeout=10)[1] for _ in range(2)] == [None, None]


# --- over the ssh program ---


def test_a_stream_hands_on_every_line_and_its_end(recorder: Recorder):
    recorder.answer("ssh", r"printf 'one\ntwo\r\nhalf \377\n'; exit 255")
    events: queue.Queue[Event] = queue.Queue()
    head = rank("head", 0)
    stream = follow(head, events)
    told = [events.get(timeout=10)[1] for _ in range(4)]
    assert told == ["one\n", "two\n", "half \ufffd\n", None]
    stream.wait(10)
    [call] = recorder.calls("ssh")
    assert call[-2] == "spark-head" and "docker logs --follow --timestamps spark-dev-rank0 2>&1" in call[-1]
