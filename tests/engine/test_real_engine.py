"""A real vLLM over two nodes, converged, asked, broken and removed by the program as it ships.

The tests build on each other, since a start takes more than a minute: they run in the order of this file.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hub.files import snapshot_of
from lab.hub.tiny import CONTEXT, TINY
from tests.lab.pair import API, NODES, Done, Stack, api, identities, lab, on, project, ranks, run, words_of

Figure = Callable[[str, float], None]
FROZEN_S = 15
"""How long the cable is out."""
IDLE_S = 10
"""How long an idle head is left alone with a dead worker."""
LIMIT_S = 120
ONE_TOKEN = {"model": "tiny", "prompt": "hi", "max_tokens": 1}
LONG = {"model": "tiny", "prompt": "hi", "max_tokens": 400, "ignore_eos": True}
"""Ten to forty seconds of tokens."""


@dataclass
class Request:
    """One long request, made by a thread of its own."""

    answers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.ask, daemon=True)
        self.thread.start()
        until("a request runs", lambda: counter("num_requests_running") == 1)

    def ask(self) -> None:
        self.answers.append(api("/v1/completions", LONG)[0])

    def status(self) -> int:
        """The status of its answer."""
        self.thread.join(LIMIT_S)
        return self.answers[0]


def until(what: str, reached: Callable[[], bool], limit_s: float = LIMIT_S) -> float:
    """Wait for it, and return the seconds that it took."""
    began = time.monotonic()
    while not reached():
        assert time.monotonic() - began < limit_s, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.5)
    return time.monotonic() - began


def counter(name: str) -> float:
    """One of the engine's own numbers; -1 if it does not answer."""
    line = on("head", f"curl -s -m 10 {API}/metrics | grep '^vllm:{name}{{'", check=False)
    return float(line.split()[-1]) if line.strip() else -1


def health() -> str:
    """The status of /health, 000 without an answer."""
    return on("head", f"curl -s -m 10 -o /dev/null -w '%{{http_code}}' {API}/health", check=False)


def log(rank: int) -> str:
    return on(NODES[rank], f"docker logs spark-dev-rank{rank} 2>&1")


def running() -> list[bool]:
    return [rank["State"]["Running"] for rank in ranks()]


def exit_codes() -> list[int]:
    return [rank["State"]["ExitCode"] for rank in ranks()]


@pytest.fixture(scope="module")
def first_up(engine: Stack) -> Done:
    return engine.up()


def test_one_up_converges_one_engine_over_two_nodes(engine: Stack, first_up: Done, figure: Figure) -> None:
    figure("up from clean nodes", first_up.seconds)
    assert api("/version")[1]["version"].startswith("0.25.1")
    [served] = api("/v1/models")[1]["data"]
    assert (served["id"], served["max_model_len"]) == ("tiny", CONTEXT)
    for rank in (0, 1):
        assert re.search(rf"rank {rank} in world size 2 is assigned as .* TP rank {rank},", log(rank))


def test_our_edits_of_the_image_fit_vllms_own_files_and_leave_valid_python(engine: Stack, first_up: Done) -> None:
    for rank, node in enumerate(NODES):
        edited = re.findall(r"spark: (?:prompt encoder|reasoning effort) .*?(/\S+\.py)", log(rank))
        assert [Path(file).name for file in edited] == ["deepseek_v4_encoding.py", "deepseek_v4.py"]
        assert "deepseek_v4.py: corrected" in log(rank)
        for file in edited:
            compile(on(node, f"docker cp spark-dev-rank{rank}:{file} - | tar --extract --to-stdout"), file, "exec")


def test_the_outputs_are_the_engines_own_numbers(engine: Stack, first_up: Done) -> None:
    pool, head = engine.outputs()["kv_pool"], log(0)
    assert f"GPU KV cache size: {pool['kv_tokens']:,} tokens" in head
    assert f"for {pool['context_tokens']:,} tokens per request: {pool['max_concurrency']:.2f}x" in head
    assert f"Explicitly set ({pool['kv_memory_gib']}/" in head


def test_the_screen_follows_both_ranks_from_the_checkpoint_to_the_first_answer(first_up: Done) -> None:
    shown = words_of(first_up.text)
    for node in NODES:
        for phase in ("loads vLLM's modules", "starts its processes"):
            assert f"{node} {phase}" in shown
    assert "the API is up" in shown and "What is 47 x 89?" in shown


def test_smoke_gets_the_answer_that_the_start_got(engine: Stack, first_up: Done) -> None:
    text = engine.spark("smoke", "--json").text
    # lines of progress come first
    document = json.loads(text[text.index("{") :])
    assert document["answer"]
    assert document["answer"] == document["outputs"]["start"]["answer"], "temperature 0"


def test_a_second_up_changes_nothing_and_restarts_nothing(engine: Stack, first_up: Done, figure: Figure) -> None:
    before = identities()
    figure("second up", engine.up(None, "--expect-no-changes").seconds)
    assert identities() == before


def test_a_killed_gpu_process_ends_the_request_and_both_ranks_and_the_next_up_restarts_them(
    engine: Stack, first_up: Done, figure: Figure
) -> None:
    before, request = identities(), Request()
    on("worker", "pkill -KILL -f VLLM::Worker_TP1", root=True)
    assert request.status() == 500
    figure("both ranks ended after the GPU process", until("both ranks ended", lambda: running() == [False, False]))
    assert "EngineDeadError" in log(0)
    assert "died unexpectedly" in log(1)
    head, worker = exit_codes()
    shown = words_of(engine.preview().text)
    assert f"head's rank ended with exit code {head} and worker's rank ended with exit code {worker}" in shown
    asked = run([str(project() / "scripts" / "spark"), "smoke"], limit_s=60, env=engine.env, check=False)
    assert asked.code != 0 and "no answer from the pair" in words_of(asked.text)
    figure("up after both ranks ended", engine.up().seconds)
    assert not set(before) & set(identities()), "both ranks are new"
    assert api("/v1/completions", ONE_TOKEN)[0] == 200


def test_an_idle_head_notices_a_killed_worker_with_the_next_request_but_preview_names_it_at_once(
    engine: Stack, first_up: Done
) -> None:
    on("worker", "docker kill spark-dev-rank1")
    time.sleep(IDLE_S)
    assert health() == "200"
    assert "worker's rank ended with exit code 137" in words_of(engine.preview().text)
    assert api("/v1/completions", ONE_TOKEN)[0] == 500
    until("the head's rank ended", lambda: running() == [False, False])
    engine.up()
    assert api("/v1/completions", ONE_TOKEN)[0] == 200


def test_a_pulled_cable_freezes_a_request_and_it_goes_on_when_the_cable_is_back(engine: Stack, first_up: Done) -> None:
    before, request = identities(), Request()
    lab("cable", "out")
    try:
        time.sleep(2)
        frozen = counter("generation_tokens_total")
        time.sleep(FROZEN_S)
        assert counter("generation_tokens_total") == frozen
        assert counter("num_requests_running") == 1
        assert health() == "200"
        refused = engine.preview(check=False)
        assert refused.code != 0
        assert words_of(refused.text).count("Check the QSFP cable at both ends") >= len(NODES)
    finally:
        lab("cable", "in")
    assert request.status() == 200
    assert identities() == before
    engine.up(None, "--expect-no-changes")


def test_destroy_leaves_the_checkpoint_and_nothing_else(engine: Stack, first_up: Done, figure: Figure) -> None:
    figure("destroy", engine.destroy().seconds)
    for node in NODES:
        assert on(node, "docker ps --all --quiet; docker volume ls --quiet") == ""
        assert on(node, "docker network ls --quiet --filter type=custom") == ""
        assert on(node, "pgrep --full --list-full VLLM::", root=True, check=False) == ""
        assert on(node, "test -e ~/.local/share/spark-stack/dev || echo gone").strip() == "gone"
        assert on(node, "ls /dev/shm | grep ^psm_", check=False) == "", "shared memory of an engine that was ended"
        snapshot = snapshot_of(Path("~/.cache/huggingface/hub"), TINY.name, TINY.revision)
        assert on(node, f"ls {snapshot} | grep -c safetensors$").strip() == "48"
