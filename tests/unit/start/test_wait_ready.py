"""scripts/wait_ready as it is shipped, with an `ssh` that answers for both nodes."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from components.settings.base import PROJECT_DIR
from tests.unit.executables import Recorder
from tests.unit.start.test_rank_log import START

SSH = """
case "$*" in
  *-G*) printf 'hostname 203.0.113.7\\nuser ops\\nport 22\\n' ;;
  *"docker logs"*rank0*) cat {folder}/head.log; [ -e {folder}/ends ] || exec sleep 30 ;;
  *"docker logs"*) cat {folder}/worker.log; [ -e {folder}/ends ] || exec sleep 30 ;;
  *"docker inspect"*) echo '{state}' ;;
  *"python3 -I -"*) cat >/dev/null; echo '{{"answer": "4183.", "first_s": 0.5}}' ;;
esac
"""
WAIT = {
    "ssh_config": None,
    "nodes": [
        {"role": "head", "ssh": "ops@spark-a", "container": "spark-dev-rank0"},
        {"role": "worker", "ssh": "ops@spark-b", "container": "spark-dev-rank1"},
    ],
    "base_url": "http://127.0.0.1:8888",
    "model": "m",
    "stack": "dev",
    "timeout_s": 60,
    "completion_timeout_s": 10,
    "warm_up": {"streams": [], "prompt_tokens": 0, "passes": 0, "max_tokens": 8, "agree": 0.05, "limit_s": 60},
    "expected_kv_tokens": None,
}


ENDED = '{"Running": false, "ExitCode": 1, "FinishedAt": "2026-12-01T01:06:17.5Z"}'


def wait_ready(
    recorder: Recorder, folder: Path, head: str, worker: str, monkeypatch: pytest.MonkeyPatch, state: str = ENDED
) -> object:
    """The exit code of the shipped script, run here; `state` is what docker says of each container."""
    (folder / "head.log").write_text(head)
    (folder / "worker.log").write_text(worker)
    recorder.answer("ssh", SSH.format(folder=folder, state=state))
    monkeypatch.setenv("SPARK_WAIT", json.dumps(WAIT))
    monkeypatch.setattr(sys, "argv", ["wait_ready"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(PROJECT_DIR / "scripts/wait_ready"), run_name="__main__")
    return ended.value.code


def test_a_pair_that_serves_is_reported_with_the_engines_numbers(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    head = "".join(f"{line}\n" for line, _ in START)
    assert wait_ready(recorder, tmp_path, head, "", monkeypatch) == 0
    report = json.loads(capsys.readouterr().out)
    numbers = ("kv_memory_gib", "kv_tokens", "context_tokens", "max_concurrency", "answer", "first_s")
    assert [report[name] for name in numbers] == [17.21, 2_555_830, 1_048_576, 2.44, "4183.", 0.5]


@pytest.mark.parametrize(("expected", "short"), [(2_555_830, False), (2_800_000, False), (2_900_000, True)])
def test_a_kv_pool_that_is_much_smaller_than_elsewhere_is_said(
    expected: int,
    short: bool,
    recorder: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(WAIT, "expected_kv_tokens", expected)
    head = "".join(f"{line}\n" for line, _ in START)
    assert wait_ready(recorder, tmp_path, head, "", monkeypatch) == 0
    shown = capsys.readouterr()
    assert ("2,555,830 tokens, 88% of the 2,900,000" in shown.err) == short
    assert json.loads(shown.out)["expected_kv_tokens"] == expected


def test_a_pair_that_will_not_serve_ends_with_its_lines_and_exit_code_1(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "ends").touch()
    code = wait_ready(recorder, tmp_path, "vllm: error: unrecognized arguments: --x\n", "waits\n", monkeypatch)
    shown = capsys.readouterr()
    assert code == 1 and shown.out == ""
    assert "    vllm: error: unrecognized arguments: --x" in shown.err and "    waits" in shown.err
    assert "what this means: The image's vLLM does not know the flag" in shown.err


def test_a_pair_that_served_for_so_long_that_its_start_was_rotated_away_is_asked_at_once(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    healthy = '{"Running": true, "Health": {"Status": "healthy"}}'
    assert wait_ready(recorder, tmp_path, "a request of today\n", "", monkeypatch, healthy) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["answer"], report["kv_tokens"]) == ("4183.", None)
