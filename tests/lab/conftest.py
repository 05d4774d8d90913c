"""Gives every file of tests here clean nodes, an empty backend, no fault and a good hub.

Files do not build on each other and run side by side (`pytest -n 2 --dist loadfile`): each process has its own pair,
with its own networks and services. The nodes are containers, except for the tests in machines/, which need kernels of
their own. lab/README.md says what is real in the lab.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.place import PAIRS
from tests.lab.pair import LAB, PROJECT_DIR, Stack, hub, lab, view

HERE = Path(__file__).parent
CONTAINERS, MACHINES = "containers", "machines"
DOWN_LIMIT_S = 180


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nodes", choices=(CONTAINERS, MACHINES), default=CONTAINERS, help="of tests that need no machine"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.lab)
        if item.path.is_relative_to(HERE / MACHINES):
            item.add_marker(pytest.mark.machines)


Guard = Callable[[Path], None]


def said(folder: Path) -> Path:
    """What a pair's guard says before it takes the pair down; after that it writes guard.log there."""
    return folder / "guard.errors"


@pytest.fixture(scope="session")
def guard() -> Iterator[Guard]:
    """guard(folder) takes a pair down when this process ends, however it ends."""
    guards: dict[Path, subprocess.Popen[bytes]] = {}

    def begin(folder: Path) -> None:
        if folder not in guards:
            environment = os.environ | {"SPARK_LAB": str(folder)}
            folder.mkdir(parents=True, exist_ok=True)
            # in a session of its own, so that Ctrl-C reaches only this process
            with said(folder).open("w") as errors:
                guards[folder] = subprocess.Popen(
                    [str(LAB), "guard"], stdin=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True
                )

    yield begin
    failed = {}
    for folder, process in guards.items():
        assert process.stdin is not None
        process.stdin.close()
        # one after the other: the last one ends the lab's own daemon
        if code := process.wait(DOWN_LIMIT_S):
            log = folder / "guard.log"
            failed[folder] = f"{code}: {said(folder).read_text()}{log.read_text() if log.exists() else ''}"
    assert failed == {}


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, guard: Guard) -> Iterator[Stack]:
    """A stack `dev`, on clean nodes that only this file uses."""
    is_machine = Path(request.node.path).is_relative_to(HERE / MACHINES)
    nodes = MACHINES if is_machine else request.config.getoption("--nodes", CONTAINERS)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if nodes == MACHINES and worker:
        pytest.exit("machines run one pair at a time: without -n, or with -n 1")
    # `make demo` uses pair 0; there is only one pair of machines at a time; a ring has addresses beside the pair's
    ring = getattr(request.module, "RING", False)
    number = str(0 if nodes == MACHINES else PAIRS - 1 - worker if ring else worker + 1)
    place = PROJECT_DIR / ".lab" / "pairs" / (nodes if nodes == MACHINES else number)
    os.environ["SPARK_LAB"] = str(place)
    guard(place)
    shutil.rmtree(place / "state", ignore_errors=True)
    hub()
    if nodes == MACHINES:
        # going back to the kept state takes seconds; new machines would have to boot
        lab("up", "--nodes", nodes, "--pair", number, limit_s=1800)
        lab("reset")
    else:
        lab("up", "--nodes", nodes, "--pair", number, "--fresh", *(["--ring"] if ring else []), limit_s=1800)
    lab("fault", "clear")
    view(place)
    yield Stack()
    del os.environ["SPARK_LAB"]
