"""One lab pair for all tests here, brought up and reset to clean nodes at the start, left running at the end.

The tests run in order and build on each other's nodes: an `up` costs a minute on emulated machines. A test that breaks
the pair brings it back. What the lab stands in for is in lab/README.md: the engine and the GPU.
"""

import pytest

from tests.lab.pair import WORK, Stack, lab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.lab)


@pytest.fixture(scope="session")
def clean_lab() -> None:
    """Both machines up, at their clean snapshot: no image, no checkpoint, no container; no fault switched on."""
    lab("up", limit_s=1800)
    lab("reset")
    lab("fault", "clear")


@pytest.fixture(scope="session")
def stack(clean_lab: None) -> Stack:
    WORK.mkdir(parents=True, exist_ok=True)
    return Stack()
