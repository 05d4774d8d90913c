"""Changing the revision, going back, and what `scripts/spark prune` removes. Only the checkpoint's steps run."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.checkpoint import BEFORE, HUB, MODEL, REVISION, assert_whole, blobs, up
from tests.lab.pair import NODES, Stack, hub, on, words_of

LATER = "b2f0447c61e9d85a3d0c7be15f1962a84cd3707e"


@pytest.fixture(scope="module")
def pair(stack: Stack) -> Iterator[Stack]:
    """A stack whose nodes both have the first revision."""
    hub()
    stack.up(None, *BEFORE)
    up(stack)
    yield stack
    hub()


def later(cluster: dict[str, Any]) -> None:
    cluster["checkpoint"]["revision"] = LATER


def test_another_revision_is_a_readable_diff_and_fetches_only_what_differs(pair: Stack) -> None:
    shown = words_of(pair.preview(later).text)
    model = "checkpoint deepseek-ai/DeepSeek-V4-Flash-DSpark at b2f0447c"
    [downloads] = re.findall(rf"{model}: head downloads ([0-9.]+) MiB: it has revision 3c5ed1f0 so far", shown)
    [mirrors] = re.findall(rf"{model}: worker mirrors ([0-9.]+) MiB from head", shown)
    assert float(downloads) == float(mirrors) < 5, "the blobs that the old revision has too are not counted"
    assert "checkpoint: head keeps revision 3c5ed1f0 until scripts/spark prune removes it" in shown
    before = {node: blobs(node) for node in NODES}
    up(pair, later)
    for node in NODES:
        assert before[node].items() <= blobs(node).items(), "the old revision stays, its blobs are used again"
        assert on(node, f"cat {MODEL}/refs/main") == LATER, "a ref of ours moves along"
        assert len(blobs(node)) - len(before[node]) < 10


def test_the_way_back_fetches_nothing(pair: Stack) -> None:
    before = {node: blobs(node) for node in NODES}
    hub(down_after_bytes=1)
    up(pair)
    hub()
    assert {node: blobs(node) for node in NODES} == before
    assert_whole(*NODES)


def test_prune_lists_before_it_deletes_and_takes_only_what_no_stack_names(pair: Stack) -> None:
    on("head", f"mkdir -p {HUB}/models--somebody--else/blobs && echo x >{HUB}/models--somebody--else/blobs/x")
    listed = pair.spark("prune", "--stack", "dev", answer="no\n")
    assert "revision b2f0447c" in listed.text and "removable" in listed.text
    for node in NODES:
        assert on(node, f"ls {MODEL}/snapshots | wc -l").strip() == "2", "it only listed"
    pair.spark("prune", "--stack", "dev", "--yes")
    for node in NODES:
        assert on(node, f"ls {MODEL}/snapshots").split() == [REVISION]
    assert on("head", f"cat {HUB}/models--somebody--else/blobs/x").strip() == "x"
    on("head", f"rm -r {HUB}/models--somebody--else")
    assert_whole(*NODES)
    up(pair)
