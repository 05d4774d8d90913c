"""What a job says of its speed: only what arrived in the last seconds counts."""

import time
from pathlib import Path

import pytest

from download import job_status
from download.job_status import Status

MIB = 2**20


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_what_was_on_disk_before_the_job_does_not_count_as_speed(tmp_path: Path, clock: list[float]):
    status = Status(tmp_path / "status.json", "a1")
    status.publish(bytes=[0, 0])
    clock[0] += 1
    status.publish(bytes=[50 * MIB, 100 * MIB], files=[1, 2])
    clock[0] += 2
    status.publish(bytes=[60 * MIB, 100 * MIB])
    assert status.document["rate"] == 5 * MIB
    assert job_status.line(status.document).endswith("60.0 of 100.0 MiB, 5.0 MiB/s, 8 s left")


def test_hashing_what_is_on_disk_does_not_count_as_speed(tmp_path: Path, clock: list[float]):
    status = Status(tmp_path / "status.json", "a1")
    status.publish(bytes=[0, 100 * MIB], phase="verifying")
    clock[0] += 1
    status.publish(bytes=[50 * MIB, 100 * MIB])
    status.publish(phase="mirroring")
    clock[0] += 5
    status.publish(bytes=[60 * MIB, 100 * MIB])
    assert status.document["rate"] == 2 * MIB


def test_waiting_for_the_hub_is_shown_until_something_arrives(tmp_path: Path):
    status = Status(tmp_path / "status.json", "a1")
    status.publish(bytes=[5, 9], files=[1, 2])
    status.publish(trouble="ConnectError: refused")
    status.publish(bytes=[5, 9])
    assert "waiting for the hub (ConnectError: refused)" in job_status.line(status.document)
    status.publish(bytes=[6, 9])
    assert "waiting for" not in job_status.line(status.document)


def test_a_line_that_gets_slower_is_told_by_its_last_seconds(tmp_path: Path, clock: list[float]):
    status = Status(tmp_path / "status.json", "a1")
    status.publish(bytes=[0, 100 * MIB], files=[0, 1])
    for here in (40, 43, 46, 49):
        clock[0] += job_status.WINDOW_S / 2
        status.publish(bytes=[here * MIB, 100 * MIB])
    assert status.document["rate"] == 6 * MIB / job_status.WINDOW_S
