"""What a preview says about the checkpoint: which node, how many GiB, why."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.facts.checkpoint_plan import lines, missing_gib, need
from components.facts.node_facts import NodeFacts, with_missing
from tests.program.pair import healthy, typed
from tests.unit.stacks import cluster

GIB = 1 << 30
OLD = "0" * 40
VISION = cluster("vision-exp")
NO_SNAPSHOT = {"gaps": ["there is no snapshot"], "bytes_present": 0, "revisions": []}


def pair(*checkpoints: dict[str, Any], **common: Any) -> list[NodeFacts]:
    documents = healthy()
    here = {"revisions": [VISION.checkpoint.revision]}
    for document, checkpoint in zip(documents, checkpoints, strict=True):
        document.update(checkpoint={**document["checkpoint"], **here, **checkpoint}, **common)
    return [typed(document) for document in documents]


def test_a_first_start_downloads_once_and_mirrors_the_rest():
    model = "checkpoint deepseek-ai/DeepSeek-V4-Flash-Vision-Exp at 86f746b3"
    assert lines(VISION, pair(NO_SNAPSHOT, NO_SNAPSHOT)) == [
        f"{model}: head downloads 156.3 GiB: it has nothing of this model yet",
        f"{model}: worker mirrors 156.3 GiB from head: it has nothing of this model yet",
    ]


def test_a_verified_pair_has_nothing_to_say():
    assert lines(VISION, pair({}, {})) == []


def test_another_revision_says_what_stays_behind():
    moved = {**NO_SNAPSHOT, "revisions": [OLD]}
    shown = lines(VISION, pair(moved, {}))
    assert "head downloads up to 156.3 GiB: it has revision 00000000 so far" in shown[0]
    assert shown[1] == "checkpoint: head keeps revision 00000000 until scripts/spark prune removes it"


# --- counted by the list of files ---

LISTING = [
    ["model-1.safetensors", "a" * 64, 100 * GIB],
    ["model-2.safetensors", "b" * 64, 50 * GIB],
    ["copy-of-2.safetensors", "b" * 64, 50 * GIB],
    ["config.json", "c" * 40, 1500],
]


def counted(head: dict[str, Any], worker: dict[str, Any]) -> list[str]:
    """The preview's lines where the head has, or was given, the list."""
    return lines(VISION, with_missing(pair({"listing": LISTING, **head}, worker)))


def test_what_another_revision_has_too_is_not_counted_as_missing():
    """A new revision moves a few GiB, not 155; a blob with two names is one blob."""
    moved = {**NO_SNAPSHOT, "revisions": [OLD], "sizes": {"a" * 64: 100 * GIB, "f" * 64: 9}}
    shown = counted(moved, {**moved, "sizes": {}})
    assert "head downloads 50.0 GiB: it has revision 00000000 so far" in shown[0]
    assert "worker mirrors 150.0 GiB from head: it has revision 00000000 so far" in shown[2]


@pytest.mark.parametrize("name", ["a" * 64, "model-1.safetensors"])
def test_a_file_counts_as_present_by_blob_or_by_path_if_its_size_is_right(name: str):
    lacking = {"gaps": ["config.json is missing"], "sizes": {name: 100 * GIB, "b" * 64: 50 * GIB}}
    assert "head downloads 1,500 bytes: config.json is missing" in counted(lacking, {})[0]
    short = {"gaps": ["model-1.safetensors is short"], "sizes": {name: 100 * GIB - 1, "b" * 64: 50 * GIB}}
    assert "head downloads 100.0 GiB" in counted(short, {})[0]


def test_an_interrupted_download_restarts_in_the_room_that_it_already_takes():
    gaps = {"gaps": ["model-1.safetensors is missing"]}
    partial = {f"{'a' * 64}.1234abcd.incomplete": 30 * GIB, f"{'f' * 64}.1234abcd.incomplete": 7 * GIB}
    shown = counted({}, {**gaps, "sizes": {"b" * 64: 50 * GIB, "c" * 40: 1500, **partial}})
    assert "worker mirrors 70.0 GiB from head" in shown[0]


def test_where_every_byte_is_present_only_verification_is_missing():
    all_here = {blob: size for _, blob, size in LISTING}
    unproven = {"gaps": ["config.json was never verified by its hash, or changed since"], "sizes": all_here}
    assert "head verifies its 156.3 GiB again, and fetches what is damaged" in counted(unproven, {})[0]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.sets(st.integers(0, 5)),
    st.dictionaries(st.integers(0, 5), st.integers(0, 40)),
)
def test_what_is_missing_and_what_is_present_add_up(sizes: list[int], present: set[int], partial: dict[int, int]):
    """Never less than nothing, never more than the revision."""
    listing = [[f"{number}.safetensors", str(number) * 64, size * GIB] for number, size in enumerate(sizes)]
    here = {str(number) * 64: sizes[number] * GIB for number in present if number < len(sizes)}
    under_way = {f"{str(number) * 64}.spark-part": size * GIB for number, size in partial.items()}
    facts = with_missing(
        pair({"listing": listing}, {"gaps": ["something is missing"], "sizes": {**here, **under_way}}),
    )
    lacking = missing_gib(VISION, facts[1])
    room = sum(size for number, size in partial.items() if number < len(sizes) and number not in present)
    assert lacking == max(0, sum(sizes) - sum(here.values()) // GIB - room)


def test_half_a_copy_is_described_by_what_it_lacks():
    half = {"gaps": ["model-00048-of-00048.safetensors is missing"], "bytes_present": 150 * GIB}
    assert "worker mirrors 6.3 GiB from head" in lines(VISION, pair({}, half))[0]


def test_a_copy_that_has_changed_is_verified_again():
    changed = {"gaps": ["model-7 was never verified by its hash, or changed since"], "bytes_present": 157 * GIB}
    assert (
        "head verifies its 156.3 GiB again, and fetches what is damaged: model-7 was"
        in lines(VISION, pair(changed, {}))[0]
    )


def test_another_attempt_is_another_reason_to_run_a_step():
    def trigger(job: dict[str, Any] | None) -> str:
        [head, _] = pair(NO_SNAPSHOT, {}, job=job)
        lacking = need(VISION, 0, head)
        assert lacking
        return lacking.trigger

    triggers = [trigger(job) for job in (None, {"id": "a1", "state": "failed"}, {"id": "b2", "state": "failed"})]
    assert len(set(triggers)) == 3


def test_a_worker_that_reads_over_nfs_needs_the_server_and_no_bytes():
    stack = cluster("vision-exp", {"checkpoint": {"mode": "nfs"}})
    assert lines(stack, pair({}, NO_SNAPSHOT, nfs={"refused": None})) == []
    [line] = lines(stack, pair({}, NO_SNAPSHOT, nfs={"refused": "Connection refused"}))
    assert line.endswith(
        "worker verifies that it can read the head's copy: "
        "the head's NFS server does not answer it (Connection refused)"
    )


def test_a_move_to_nfs_says_that_the_workers_copy_stays():
    stack = cluster("vision-exp", {"checkpoint": {"mode": "nfs"}})
    shown = lines(stack, pair({}, {}, nfs={"refused": "Connection refused"}))
    assert shown[1] == "checkpoint: worker keeps a copy of its own, 156.0 GiB, until scripts/spark prune removes it"


def test_a_server_that_stops_twice_is_two_reasons():
    stack = cluster("vision-exp", {"checkpoint": {"mode": "nfs"}})
    triggers = set()
    for second in (1, 2):
        [_, worker] = pair({}, NO_SNAPSHOT, nfs={"refused": "timed out"}, read_at=f"2026-11-30 12:00:0{second}")
        lacking = need(stack, 1, worker)
        assert lacking
        triggers.add(lacking.trigger)
    assert len(triggers) == 2
