"""When the live pair is kept, and when and why all ranks are restarted."""

import re
from dataclasses import replace

import pytest

from components.facts.generation import Generation, LiveRank, decide

ROLES = ["head", "worker"]
SPEC = "feedfeedfeed"
HEAD = LiveRank("head", running=True, generation="aaaa1111", spec=SPEC)
WORKER = LiveRank("worker", running=True, generation="aaaa1111", spec=SPEC)


def test_a_complete_live_pair_is_kept():
    assert decide([HEAD, WORKER], ROLES, SPEC) == Generation("aaaa1111", None)


BROKEN: list[tuple[list[LiveRank | None], str]] = [
    ([None, None], "no rank exists yet"),
    ([HEAD, None], "worker has no rank, so the pair is incomplete"),
    ([None, WORKER], "head has no rank, so the pair is incomplete"),
    ([replace(HEAD, running=False, exit_code=1), WORKER], "head's rank ended with exit code 1"),
    # a headless rank that lost its worker process ends with 0, which does not mean that it is healthy
    ([HEAD, replace(WORKER, running=False, exit_code=0)], "worker's rank ended with exit code 0"),
    (
        [HEAD, replace(WORKER, running=False, exit_code=137, oom_killed=True)],
        "worker's rank was killed for lack of memory",
    ),
    (
        [HEAD, replace(WORKER, running=False, exit_code=128, error="no such file or directory: /dev/infiniband")],
        "worker's rank could not start: no such file or directory: /dev/infiniband",
    ),
    (
        [HEAD, replace(WORKER, generation="bbbb2222")],
        "the ranks are of different generations: head aaaa1111, worker bbbb2222",
    ),
    (
        [HEAD, replace(WORKER, generation=None)],
        "the ranks are of different generations: head aaaa1111, worker None",
    ),
    ([replace(HEAD, generation=None), replace(WORKER, generation=None)], "the ranks carry no generation"),
    ([HEAD, replace(WORKER, spec="0ther")], "the ranks were started from other settings"),
    ([replace(HEAD, spec=None), replace(WORKER, spec=None)], "the ranks were started from other settings"),
]


@pytest.mark.parametrize(("live", "reason"), BROKEN, ids=[reason for _, reason in BROKEN])
def test_any_other_pair_is_restarted_with_the_reason(live: list[LiveRank | None], reason: str):
    generation = decide(live, ROLES, SPEC)
    assert generation.reason == reason
    assert re.fullmatch(r"[0-9a-f]{8}", generation.name)
    assert generation.name not in [rank.generation for rank in live if rank]


def test_every_new_generation_has_a_new_name():
    assert len({decide([None, None], ROLES, SPEC).name for _ in range(50)}) == 50


def test_a_third_rank_counts_as_much_as_the_others():
    third = LiveRank("worker2", running=False, generation="aaaa1111", spec=SPEC, exit_code=1)
    generation = decide([HEAD, WORKER, third], [*ROLES, "worker2"], SPEC)
    assert generation.reason == "worker2's rank ended with exit code 1"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("a@1 b@2", "a@1 b@3", "patches: b changed"),
        ("a@1 b@2", "a@1 c@3", "patches: c new; b left out"),
        ("", "a@1 b@2", "patches: a, b new"),
        ("a@1 b@2", "b@2 a@1", "patches: in another order"),
    ],
)
def test_the_reason_names_the_patches_that_changed(before, after, expected):
    live = [replace(rank, patches=before) for rank in (HEAD, WORKER)]
    reason = decide(live, ROLES, "another", after).reason
    assert reason == f"{decide(live, ROLES, 'another', before).reason} ({expected})"
