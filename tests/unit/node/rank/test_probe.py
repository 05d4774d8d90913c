"""The first completion and the warm-up: the shipped script against an engine that the test answers for."""

import http.client
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rank import probe
from rank.probe import ProbeInputs, WarmUp
from tests.unit.executables import run_shipped
from tests.unit.servers import Answer, Request, body, serving

INPUTS: ProbeInputs = {
    "base_url": "http://127.0.0.1:1",
    "model": "deepseek-v4-flash-dspark",
    "stack": "dev",
    "completion_timeout_s": 20,
}
KEY = "sk-0123456789"


def said(**message: object) -> Answer:
    return body({"choices": [{"message": message}]})


def run(
    answer: Callable[[Request], Answer],
    home: Path,
    inputs: dict[str, object] | None = None,
    **env: str,
) -> tuple["subprocess.CompletedProcess[str]", list[Request]]:
    with serving(answer) as (url, requests):
        asked = {**INPUTS, **(inputs or {}), "base_url": url}
        done = run_shipped("rank.probe", asked, apart=False, HOME=str(home), **env)
    return done, requests


def with_key(home: Path) -> None:
    folder = home / ".local/share/spark-stack/dev/secrets"
    folder.mkdir(parents=True)
    (folder / "api_key").write_text(KEY)


def test_a_real_completion_is_asked_for_and_shown(tmp_path: Path):
    """The model list answers before a chat does."""
    done, requests = run(lambda _: said(content=" 4183. "), tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["answer"], result["warmup_s"], result["settled"]) == ("4183.", [], True)
    assert done.stderr.startswith("What is 47 x 89?   4183.   (")
    [(method, path, headers, sent)] = requests
    assert (method, path) == ("POST", "/v1/chat/completions")
    assert sent == {
        "model": "deepseek-v4-flash-dspark",
        "messages": [{"role": "user", "content": "What is 47 x 89?"}],
        "max_tokens": 64,
        "temperature": 0,
    }
    assert "Authorization" not in headers


def test_a_stack_with_a_key_is_asked_with_it_and_prints_it_nowhere(tmp_path: Path):
    with_key(tmp_path)

    def keyed(request: Request) -> Answer:
        return said(content="4183.") if request[2].get("Authorization") == f"Bearer {KEY}" else body({}, 401)

    done, _ = run(keyed, tmp_path)
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr


def test_an_engine_that_refuses_our_key_is_told_at_once(tmp_path: Path):
    """Up, and with another key."""
    with_key(tmp_path)
    done, requests = run(lambda _: body({"error": "Unauthorized"}, 401), tmp_path, {"warm_up": PLAN})
    assert (done.returncode, len(requests)) == (1, 1)
    assert "the engine is up but refuses our API key" in done.stderr


def test_a_model_that_spends_its_tokens_on_thinking_has_answered(tmp_path: Path):
    done, _ = run(lambda _: said(content=None, reasoning="47 x 89 is"), tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["answer"] == "47 x 89 is"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (said(content=""), "the first completion failed: the completion is empty: "),
        (said(content=None), "the first completion failed: the completion is empty: "),
        (said(content=" \n"), "the first completion failed: the completion is empty: "),
        (body({"choices": []}), "the first completion failed: the answer is not a completion: "),
        (
            body({"object": "error"}),
            "the first completion failed: the answer is not a completion: ",
        ),
        (body([]), "the first completion failed: the answer is not a completion: "),
        ((200, b"<html>"), "the first completion failed: "),
        ((500, b"EngineCore encountered an issue"), "the first completion failed with 500: EngineCore encountered an"),
        ((0, b""), "the first completion failed: "),
    ],
    ids=["empty", "null", "blank", "no-choice", "no-choices", "a-list", "no-json", "500", "dies"],
)
def test_anything_but_text_is_no_completion(answer: Answer, reason: str, tmp_path: Path):
    done, _ = run(lambda _: answer, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(reason) and "Traceback" not in done.stderr


def test_an_engine_that_is_not_there_is_no_completion(tmp_path: Path):
    done = run_shipped("rank.probe", {**INPUTS, "base_url": "http://127.0.0.1:1"}, HOME=str(tmp_path))
    assert done.returncode == 1
    assert "the first completion failed: " in done.stderr and "refused" in done.stderr


def test_the_nodes_proxy_is_not_asked_for_what_runs_on_the_node(tmp_path: Path):
    done, requests = run(lambda _: said(content="4183."), tmp_path, http_proxy="http://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert len(requests) == 1


def test_an_engine_that_hangs_is_given_up_at_the_limit_by_name(monkeypatch: pytest.MonkeyPatch):
    """/health says 200 while no token comes."""

    def hangs(*_: object) -> tuple[str, float]:
        raise TimeoutError

    monkeypatch.setattr(probe, "complete", hangs)
    monkeypatch.setattr(sys, "argv", ["probe", json.dumps(INPUTS)])
    with pytest.raises(SystemExit) as ended:
        probe.main()
    assert ended.value.code == (
        "no completion within 20 s, although the API is up: the engine hangs; look at both ranks"
    )


# --- the warm-up ---

PLAN: WarmUp = {"streams": [1, 2, 6], "prompt_tokens": 0, "passes": 8, "max_tokens": 256, "agree": 0.05, "limit_s": 60}


def test_the_warm_up_asks_in_every_shape_of_service_and_the_prefix_cache_never_answers(tmp_path: Path):
    """Kernels for a shape are compiled when it first comes."""
    plan = {**PLAN, "prompt_tokens": 8193, "passes": 1, "max_tokens": 16}
    done, requests = run(lambda _: said(content="words"), tmp_path, {"warm_up": plan})
    assert done.returncode == 0, done.stderr
    [_, *asked] = [sent for _, _, _, sent in requests]
    prompts = [sent["messages"][0]["content"] for sent in asked]
    assert len({prompt[:12] for prompt in prompts}) == len(prompts) == 1 + 2 + 6 + 1 + 2 + 1
    assert max(len(prompt.split()) for prompt in prompts) > 8192
    assert [sent["chat_template_kwargs"] for sent in asked if "chat_template_kwargs" in sent] == [
        {"thinking": False},
        {"thinking": True, "reasoning_effort": "high"},
    ]
    assert "warm-up 3 of at most 7: 6 streams, 0." in done.stderr


def test_an_answer_of_control_characters_is_shown_as_text(tmp_path: Path):
    done, _ = run(lambda _: said(content="4183\0\x1b[2J\u202e." + "x" * 5000), tmp_path)
    answer = json.loads(done.stdout)["answer"]
    assert answer.startswith(r"4183\x00\x1b[2J\u202e.") and len(answer) < 2100
    assert "\x1b" not in done.stderr


def test_further_requests_are_answered_or_say_why_not_and_never_fail_the_probe(tmp_path: Path):
    checks = [
        {"name": "thinking", "content": "What?", "template": {"thinking": True}},
        {"name": "image", "content": [{"type": "image_url"}], "template": {"thinking": False}},
    ]

    def answer(request: Request) -> Answer:
        sees = isinstance(request[3]["messages"][0]["content"], list)
        return body({"error": "no eyes"}, 400) if sees else said(content="4183.", reasoning="so")

    done, _ = run(answer, tmp_path, {"checks": checks})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["checks"] == [
        {"name": "thinking", "reasoning": "so", "content": "4183.", "problem": None},
        {"name": "image", "reasoning": "", "content": "", "problem": '400: {"error": "no eyes"}'},
    ]


def test_a_shape_that_fails_leaves_the_others(tmp_path: Path):
    def answer(request: Request) -> Answer:
        return body({}, 400) if "chat_template_kwargs" in request[3] else said(content="words")

    plan = {**PLAN, "streams": [1], "passes": 2}
    done, requests = run(answer, tmp_path, {"warm_up": plan})
    assert done.returncode == 0 and len(requests) == 1 + 1 + 2 + 2
    assert "thinking off failed: HTTP Error 400: Bad Request: the pair serves without it" in done.stderr


class Steps:
    """Rounds and passes that take these seconds, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *taken: float | Exception) -> None:
        self.left = list(taken)
        monkeypatch.setattr(probe, "rounds", lambda plan: [])
        monkeypatch.setattr(probe, "at_once", self.at_once)

    def at_once(self, *_: object) -> float:
        taken = self.left.pop(0)
        if isinstance(taken, Exception):
            raise taken
        return taken


def warm_up(passes: int, limit_s: float = 60) -> tuple[list[float], bool]:
    return probe.warm_up(INPUTS, {**PLAN, "passes": passes, "limit_s": limit_s})


def test_the_warm_up_stops_when_two_passes_agree(monkeypatch: pytest.MonkeyPatch):
    Steps(monkeypatch, 21.0, 9.0, 6.0, 5.8, 5.8)
    assert warm_up(8) == ([21.0, 9.0, 6.0, 5.8], True)


def test_a_pass_that_is_slower_again_does_not_agree(monkeypatch: pytest.MonkeyPatch):
    Steps(monkeypatch, 6.0, 9.0, 9.1)
    assert warm_up(8) == ([6.0, 9.0, 9.1], True)


def test_the_warm_up_ends_at_its_most_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Bounded, with progress."""
    Steps(monkeypatch, 20.0, 10.0)
    assert warm_up(2) == ([20.0, 10.0], False)
    assert capsys.readouterr().err.splitlines() == [
        "warm-up 1 of at most 2: pass 1, 20.00 s",
        "warm-up 2 of at most 2: pass 2, 10.00 s",
    ]


def test_the_warm_up_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    Steps(monkeypatch, 20.0)
    assert warm_up(8, limit_s=-1) == ([], False)
    assert "readiness.warmup_limit_s" in capsys.readouterr().err


def test_without_passes_there_is_no_warm_up(monkeypatch: pytest.MonkeyPatch):
    Steps(monkeypatch)
    assert warm_up(0) == ([], True)


@pytest.mark.parametrize("error", [TimeoutError("timed out"), ValueError("empty"), http.client.IncompleteRead(b"")])
def test_a_pass_that_fails_is_never_fatal(error: Exception, monkeypatch: pytest.MonkeyPatch):
    Steps(monkeypatch, 20.0, error)
    assert warm_up(8) == ([20.0], False)
