"""The head's job when the hub or the line to it fails: which failures it waits out, resumes from, or names."""

import threading

import pytest

from download import hub_client, tree
from download.hub_client import HubError
from tests.unit.node.download.fake_hub import FakeHub
from tests.unit.node.download.job_node import Node
from tests.unit.node.snapshots import REVISION, blob_of, contents, names

FIRST, SECOND, THIRD = names(3)


def test_a_hub_that_is_down_for_a_while_is_waited_for(head: Node, hub: FakeHub, monkeypatch):
    fails = iter(range(2))

    def down(path: str) -> None:
        if path == SECOND and next(fails, None) is not None:
            raise hub.errors.LocalEntryNotFoundError("An error happened while trying to locate the file", 0)

    hub.before = down
    shown = []
    monkeypatch.setattr(tree.Job, "trouble", lambda job, reason: shown.append(reason))
    head.run("fetch")
    head.assert_verified()
    assert hub.asked.count(SECOND) == 3
    reason = "LocalEntryNotFoundError: An error happened while trying to locate the file"
    assert shown == [reason, reason, None], "why nothing arrives is shown, and that it is over"


def test_a_hub_that_stays_away_ends_the_job_with_what_was_tried(head: Node, hub: FakeHub):
    def down(path: str) -> None:
        raise ConnectionError("Connection refused")

    hub.before = down
    with pytest.raises(HubError, match="the list of files of owner/name could not be downloaded from https://hugging"):
        head.run("fetch")


@pytest.mark.parametrize("status", [401, 403])
def test_a_closed_repository_is_named_with_the_page_of_its_licence(head: Node, hub: FakeHub, status: int):

    def closed(path: str) -> None:
        raise hub.errors.GatedRepoError("Access to model owner/name is restricted", status)

    hub.before = closed
    with pytest.raises(
        HubError, match=rf"\(status {status}\): accept its licence at https://huggingface.co/owner/name"
    ):
        head.run("fetch")


def test_a_revision_that_does_not_exist_is_not_asked_for_again(head: Node, hub: FakeHub):
    calls = []

    def wrong(path: str) -> None:
        calls.append(path)
        raise hub.errors.RevisionNotFoundError("Invalid rev id", 404)

    hub.before = wrong
    with pytest.raises(HubError, match=f"has no revision {REVISION} of owner/name"):
        head.run("fetch")
    assert calls == [""]


@pytest.mark.parametrize("change", [-1, 1], ids=["shorter", "longer"])
def test_another_size_than_listed_is_tried_twice_and_named(head: Node, hub: FakeHub, change: int):
    hub.sent[THIRD] = contents()[THIRD][:change] if change < 0 else contents()[THIRD] + b"x"
    with pytest.raises(HubError, match=f"sends {THIRD} in another size than it lists"):
        head.run("fetch")
    assert hub.received.count((THIRD, len(hub.sent[THIRD]))) == 2, "nothing of it is kept to resume with"
    hub.sent.clear()
    head.run("fetch")
    head.assert_verified()


def test_a_full_disk_ends_the_job_at_once_and_leaves_nothing_in_the_way(head: Node, hub: FakeHub):
    def full(path: str) -> None:
        if path == SECOND:
            raise OSError(28, "No space left on device")

    hub.before = full
    with pytest.raises(OSError, match="No space left"):
        head.run("fetch")
    # the process ends after the files that were under way beside it
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(20)
    assert list(head.model.glob("blobs/*.spark-part")) == []


# --- a file in pieces ---


def test_a_connection_that_breaks_off_is_resumed_where_it_ended(head: Node, hub: FakeHub):
    size = len(contents()[SECOND])
    hub.breaks_at[SECOND] = [10, 25]
    head.run("fetch")
    head.assert_verified()
    assert [count for path, count in hub.received if path == SECOND] == [10, 15, size - 25]


def test_a_line_that_breaks_off_all_the_time_is_waited_for_as_long_as_something_arrives(
    head: Node, hub: FakeHub, monkeypatch
):
    monkeypatch.setattr(hub_client, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(hub_client, "LONGEST_PAUSE_S", 0.02)
    # twenty pauses are eight times what it waits for a hub that gives nothing
    hub.breaks_at[SECOND] = list(range(1, 21))
    head.run("fetch")
    head.assert_verified()


def test_what_an_ended_job_had_of_a_file_is_not_fetched_again(head: Node, hub: FakeHub):
    hub.breaks_at[SECOND] = [10] * 100
    with pytest.raises(HubError, match=f"{SECOND} of owner/name could not be downloaded"):
        head.run("fetch")
    hub.breaks_at.clear()
    hub.received.clear()
    head.run("fetch")
    head.assert_verified()
    assert hub.received == [(SECOND, len(contents()[SECOND]) - 10)]


@pytest.mark.parametrize("left", [b"something else", b"x" * 1000], ids=["another content", "longer than the file"])
def test_a_beginning_that_is_not_the_files_is_found_and_the_file_is_fetched_anew(head: Node, hub: FakeHub, left: bytes):
    """As a node that lost its power may leave it."""
    (head.model / "blobs").mkdir(parents=True)
    (head.model / "blobs" / f"{blob_of(SECOND, contents()[SECOND])}.spark-part").write_bytes(left)
    head.run("fetch")
    head.assert_verified()
    assert (SECOND, len(contents()[SECOND])) in hub.received
