"""What tests in several folders start from."""

import gc
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.unit.executables import Recorder

# `make test` tries more examples than `make unit`. There is no deadline, since a correct example may be slow on a busy
# machine, and speed is what the benchmark measures
for profile, examples in {"quick": 20, "thorough": 100}.items():
    settings.register_profile(
        profile, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("quick")

# the hundred thousand objects of the imports live until the end: looking through them again and again takes a tenth of
# the time
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()


@pytest.fixture
def free_port() -> Iterator[Callable[[], int]]:
    """Ports of 127.0.0.1 that are the test's own until it ends.

    Each stays bound, not listening, with SO_REUSEADDR: a server that sets it too (as Python's and QEMU's do) may
    listen there, a client is refused, and the kernel gives the port to nobody who asks for any. A port that is only
    looked up is gone to another test now and then.
    """
    with ExitStack() as held:

        def port() -> int:
            sock = held.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
            return int(sock.getsockname()[1])

        yield port


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that pauses before it looks again does not pause."""
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Programs that record their calls, first on this process' PATH."""
    made = Recorder(tmp_path / "bin")
    monkeypatch.setenv("PATH", made.path)
    return made
