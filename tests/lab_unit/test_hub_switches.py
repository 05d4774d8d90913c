"""The hub's switches: its rate, which all connections share, and mistakes in the file."""

import json

import pytest

from lab.hub.switches import Switches, Valve


def valve(tmp_path, **switches) -> tuple[Valve, list[float]]:
    (tmp_path / "hub.json").write_text(json.dumps(switches))
    pauses: list[float] = []
    return Valve(tmp_path / "hub.json", clock=lambda: 100.0, sleep=pauses.append), pauses


def test_a_rate_is_shared_by_everything_that_is_sent(tmp_path):
    made, pauses = valve(tmp_path, rate_bytes_s=1000)
    assert [made.pass_through(500), made.pass_through(250)] == [500, 250]
    assert pauses == pytest.approx([0.5, 0.75])


def test_without_a_file_nothing_is_held_back(tmp_path):
    pauses: list[float] = []
    made = Valve(tmp_path / "hub.json", sleep=pauses.append)
    assert made.pass_through(10**9) == 10**9
    assert not pauses
    assert made.switches() == Switches()


def test_the_bytes_until_the_hub_goes_down_are_counted_anew_when_the_file_changes(tmp_path):
    made, _ = valve(tmp_path, down_after_bytes=100)
    assert [made.pass_through(80), made.pass_through(80), made.pass_through(80)] == [80, 20, 0]
    assert made.is_down
    (tmp_path / "hub.json").write_text(json.dumps({"down_after_bytes": 1000}))
    assert not made.is_down


def test_a_list_is_no_set_of_switches():
    with pytest.raises(ValueError, match="not a JSON object"):
        Switches.of([])
