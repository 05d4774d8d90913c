"""lab/services ends only processes that it started, and names a process that is in the way."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lab.place import MACHINES, Place
from lab.report import LabError
from lab.runtime import services
from lab.runtime.services import Service

SLEEPER = "import time; time.sleep(60)"


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path, MACHINES)


@pytest.fixture
def foreign() -> Iterator[int]:
    """A process that is not the lab's."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPER])
    yield process.pid
    process.kill()
    process.wait()


def service(place: Place, signature: str, port: int) -> Service:
    return Service("sleeper", [sys.executable, "-c", SLEEPER, signature], signature, port, place)


def test_a_service_is_started_known_and_stopped(place, free_port):
    made = service(place, "signature-one", free_port())
    made.launch()
    pid = made.pid()
    assert pid is not None
    assert made.stop()
    assert not made.stop()
    assert "signature-one" not in services.command_line(pid)


def test_a_pid_that_is_somebody_elses_by_now_is_left_alone(place, foreign, free_port):
    made = service(place, "signature-two", free_port())
    made.pid_file.write_text(f"{foreign}\n")
    assert made.pid() is None
    assert not made.stop()
    assert SLEEPER in services.command_line(foreign)


def test_whoever_holds_the_port_is_named(place, free_port):
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert f"pid {os.getpid()} " in str(services.listener("127.0.0.1", port))
        with pytest.raises(LabError, match=rf"needs port {port} .* pid {os.getpid()} .*\n  way out: stop it"):
            service(place, "signature-three", port).launch()
    assert services.listener("127.0.0.1", port) is None


def test_a_service_that_ends_at_once_is_told_with_the_end_of_its_log(place, free_port):
    command = [sys.executable, "-c", "print('no such setting'); raise SystemExit(3)", "signature-four"]
    made = Service("sleeper", command, "signature-four", free_port(), place)
    made.launch()
    with pytest.raises(LabError, match=r"the sleeper ended at once(.|\n)*no such setting"):
        made.await_answer(lambda: False)
