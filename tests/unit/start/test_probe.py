"""The completion that shows that a pair is ready, asked on the head's node over the ssh program."""

import json
from pathlib import Path

import pytest

from components.ssh.shell import python_line
from components.start.failure import StartFailed
from components.start.probe import Probe
from rank.probe import Answer, ProbeInputs
from tests.unit.executables import Recorder
from tests.unit.start.ranks import rank

INPUTS: ProbeInputs = {
    "base_url": "http://127.0.0.1:8888",
    "model": "m",
    "stack": "dev",
    "completion_timeout_s": 60,
}
ANSWER: Answer = {"answer": "4183.", "first_s": 1.5, "warmup_s": [], "settled": True}


def probed(recorder: Recorder, does: str) -> Probe:
    recorder.answer("ssh", does)
    probe = Probe(rank("head", 0), INPUTS, 90)
    probe.process.wait(10)
    return probe


def test_the_probe_runs_on_the_heads_node_and_hands_back_its_answer(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    probe = probed(recorder, f"cat >{tmp_path}/stdin; echo 'warm-up 1: 5.7 s' >&2; echo '{json.dumps(ANSWER)}'")
    assert probe.done() and probe.result() == ANSWER
    assert "        warm-up 1: 5.7 s" in capsys.readouterr().err
    [call] = recorder.calls("ssh")
    assert call[-2:] == ["spark-head", python_line(INPUTS, 90)]
    compile((tmp_path / "stdin").read_text(), "probe", "exec")


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("cat >/dev/null; echo 'one' >&2; echo 'refuses our API key' >&2; exit 3", "refuses our API key"),
        ("cat >/dev/null; exit 124", "the probe ended with 124"),
    ],
)
def test_a_probe_without_an_answer_fails_with_its_last_line(does: str, message: str, recorder: Recorder):
    with pytest.raises(StartFailed) as caught:
        probed(recorder, does).result()
    assert str(caught.value) == message


def test_a_probe_that_ends_before_it_reads_its_script_fails_with_the_reason(recorder: Recorder):
    with pytest.raises(StartFailed, match="No route to host"):
        probed(recorder, "echo 'ssh: connect: No route to host' >&2; exit 255").result()


def test_a_probe_that_is_no_longer_needed_is_ended(recorder: Recorder):
    recorder.answer("ssh", "cat >/dev/null; exec sleep 60")
    probe = Probe(rank("head", 0), INPUTS, 90)
    assert not probe.done()
    probe.close()
    assert probe.done()
