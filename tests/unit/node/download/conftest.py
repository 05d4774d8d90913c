"""Two nodes with empty caches, and the hub that the head asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from download import hub_client
from tests.unit.node.download.fake_hub import FakeHub
from tests.unit.node.download.job_node import HEAD, WORKER, Node


@pytest.fixture
def head(tmp_path: Path) -> Node:
    return Node(tmp_path / "head", HEAD)


@pytest.fixture
def worker(tmp_path: Path) -> Node:
    return Node(tmp_path / "worker", WORKER)


@pytest.fixture
def hub(head: Node, short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    made = FakeHub()
    made.install(monkeypatch)
    monkeypatch.setattr(hub_client, "LONGEST_PAUSE_S", 0.001)
    monkeypatch.setattr(hub_client, "FIRST_PAUSE_S", 0.001)
    yield made
