"""What a preview says about the checkpoint: which node, how many GiB, why."""

from typing import Any

from components.checkpoint_plan import lines, need
from components.facts import NodeFacts
from tests.program.pair import healthy, typed
from tests.unit.stacks import cluster

GIB = 1 << 30
OLD = "0" * 40
NO_SNAPSHOT = {"gaps": ["there is no snapshot"], "bytes_present": 0}


def pair(*checkpoints: dict[str, Any], **common: Any) -> list[NodeFacts]:
    documents = healthy()
    for document, checkpoint in zip(documents, checkpoints, strict=True):
        document.update(checkpoint={**document["checkpoint"], **checkpoint}, **common)
    return [typed(document) for document in documents]


def test_a_first_start_downloads_once_and_mirrors_the_rest():
    model = "checkpoint deepseek-ai/DeepSeek-V4-Flash-Vision-Exp at 86f746b3"
    assert lines(cluster("vision-exp"), pair(NO_SNAPSHOT, NO_SNAPSHOT)) == [
        f"{model}: head downloads 156.3 GiB: there is no snapshot",
        f"{model}: worker mirrors 156.3 GiB from head: there is no snapshot",
    ]


def test_a_whole_pair_has_nothing_to_say():
    assert lines(cluster("vision-exp"), pair({}, {})) == []


def test_another_revision_says_what_stays_behind():
    """D5."""
    moved = {**NO_SNAPSHOT, "revisions": [OLD]}
    found = lines(cluster("vision-exp"), pair(moved, {}))
    assert "head downloads up to 156.3 GiB: there is no snapshot" in found[0]
    assert found[1] == "checkpoint: head keeps revision 00000000 until scripts/prune removes it"


def test_half_a_copy_is_told_by_what_it_lacks():
    half = {"gaps": ["model-00048-of-00048.safetensors is missing"], "bytes_present": 150 * GIB}
    assert "worker mirrors 6.3 GiB from head" in lines(cluster("vision-exp"), pair({}, half))[0]


def test_a_copy_that_has_changed_is_proven_again():
    changed = {"gaps": ["model-7 was never proven by its hash, or changed since"], "bytes_present": 157 * GIB}
    assert (
        "head proves its 156.3 GiB again, and fetches what is damaged: model-7 was"
        in lines(cluster("vision-exp"), pair(changed, {}))[0]
    )


def test_another_attempt_is_another_reason_to_run_a_step():
    def trigger(job: dict[str, Any] | None) -> str:
        [head, _] = pair(NO_SNAPSHOT, {}, job=job)
        found = need(cluster("vision-exp"), 0, head)
        assert found
        return found.trigger

    words = [trigger(job) for job in (None, {"id": "a1", "state": "failed"}, {"id": "b2", "state": "failed"})]
    assert len(set(words)) == 3


def test_a_worker_that_reads_over_nfs_needs_the_server_and_no_bytes():
    stack = cluster("vision-exp", {"checkpoint": {"mode": "nfs"}})
    assert lines(stack, pair({}, NO_SNAPSHOT, nfs={"refused": None})) == []
    [line] = lines(stack, pair({}, NO_SNAPSHOT, nfs={"refused": "Connection refused"}))
    way = "worker proves its way to the head's copy: the head's NFS server does not answer it (Connection refused)"
    assert line.endswith(way)


def test_a_move_to_nfs_says_that_the_workers_copy_stays():
    stack = cluster("vision-exp", {"checkpoint": {"mode": "nfs"}})
    found = lines(stack, pair({}, {}, nfs={"refused": "Connection refused"}))
    assert found[1] == "checkpoint: worker keeps a copy of its own, 156.0 GiB, until scripts/prune removes it"


def test_a_server_that_stops_twice_is_two_reasons():
    stack = cluster("vision-exp", {"checkpoint": {"mode": "nfs"}})
    found = set()
    for second in (1, 2):
        [_, worker] = pair({}, NO_SNAPSHOT, nfs={"refused": "timed out"}, read_at=f"2026-11-30 12:00:0{second}")
        lacking = need(stack, 1, worker)
        assert lacking
        found.add(lacking.trigger)
    assert len(found) == 2
