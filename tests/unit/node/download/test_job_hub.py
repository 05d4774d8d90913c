"""The head's job when the hub or the line to it fails: which failures it waits out, resumes from, or names."""

import logging
import threading
import time

import pytest

from download import hub_client, tree
from download.hub_client import HubError
from tests.unit.node.download.fake_hub import FakeHub, HubHTTPError
from tests.unit.node.download.job_node import Node
from tests.unit.node.snapshots import REPO, REVISION, blob_of, contents, names

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
        head.run("fetch", patience_s=0.05)


@pytest.mark.parametrize("status", [401, 403])
def test_a_closed_repository_is_named_with_the_page_of_its_licence(head: Node, hub: FakeHub, status: int):

    def closed(path: str) -> None:
        raise hub.errors.GatedRepoError("Access to model owner/name is restricted", status)

    hub.before = closed
    with pytest.raises(
        HubError, match=rf"\(status {status}\): accept its licence at https://huggingface.co/owner/name"
    ):
        head.run("fetch")


@pytest.mark.parametrize(
    ("code", "said"),
    [("RepoNotFound", "has no repository owner/name for this account"), ("GatedRepo", "accept its licence at")],
)
def test_a_misspelt_repository_is_told_from_a_gated_one_by_the_hubs_own_code(
    head: Node, hub: FakeHub, code: str, said: str
):
    """To a stranger the hub answers 401 in both cases."""

    def closed(path: str) -> None:
        raise hub.errors.RepositoryNotFoundError("401 Client Error", 401, X_Error_Code=code)

    hub.before = closed
    with pytest.raises(HubError, match=said):
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


@pytest.mark.parametrize("name", [FIRST, "model.safetensors.index.json"])
def test_a_folder_in_the_way_ends_the_job_at_once_in_its_own_words(head: Node, hub: FakeHub, name: str):
    folder = head.model / "blobs" / f"{blob_of(name, contents()[name])}.spark-part"
    folder.mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        head.run("fetch")
    assert head.status["error"] == f"{folder}: Is a directory: mend this on the node, then run pulumi up again"


# --- how long it waits ---


def client(hub: FakeHub, patience_s: float) -> tuple[hub_client.Hub, list[str | None]]:
    shown: list[str | None] = []
    return hub_client.Hub(REPO, REVISION, None, patience_s, shown.append), shown


def test_a_wait_that_the_hub_asks_for_is_shown_and_kept(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    busy = iter([True])

    def before(path: str) -> None:
        if next(busy, False):
            raise HubHTTPError("Too Many Requests", 429, Retry_After="7")

    hub.before = before
    asker, shown = client(hub, 60)
    assert len(asker.listing()) == len(contents())
    assert (slept, shown) == ([7], ["HubHTTPError: Too Many Requests, and asks to wait 7 s", None])


def test_a_wait_inside_the_library_is_shown_and_ended_if_it_is_too_long(hub: FakeHub):
    waits = iter(["31.0", "3601.0"])

    def before(path: str) -> None:
        for seconds in waits:
            message = f"Rate limited. Waiting {seconds}s before retry [Retry 1/5]."
            logging.getLogger("huggingface_hub.utils._http").warning(message)

    hub.before = before
    asker, shown = client(hub, 60)
    with pytest.raises(HubError, match=r"asks to wait 3601 s, which is longer than checkpoint.hub_patience_s \(60\)"):
        asker.listing()
    assert shown == ["it is busy and asks to wait 31 s"]


def test_a_wait_beyond_the_patience_ends_the_job_with_what_was_asked(hub: FakeHub):
    def before(path: str) -> None:
        raise HubHTTPError("Too Many Requests", 429, Retry_After="3600")

    hub.before = before
    with pytest.raises(HubError, match=r"within 60 s: .*Too Many Requests, and asks to wait 3600 s: is this node"):
        client(hub, 60)[0].listing()


def test_the_patience_counts_what_the_library_waits_itself_and_a_silence_is_shown(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hub_client, "SILENT_S", 0.01)
    calls = []

    def before(path: str) -> None:
        calls.append(path)
        # as long as the library may wait inside a call: until a person was told
        end = time.monotonic() + 5
        while not shown and time.monotonic() < end:
            threading.Event().wait(0.005)
        threading.Event().wait(0.03)
        raise ConnectionError("Connection refused")

    hub.before = before
    asker, shown = client(hub, 0.05)
    with pytest.raises(HubError, match="within 0 s"):
        asker.listing()
    # with pauses alone counted, it would ask for as long as the first pause allows
    assert len(calls) <= 2 and shown[0] == "no answer for 0.01 s"


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
    # twenty pauses are twice what it waits for a hub that gives nothing
    hub.breaks_at[SECOND] = list(range(1, 21))
    head.run("fetch", patience_s=0.2)
    head.assert_verified()


def test_what_an_ended_job_had_of_a_file_is_not_fetched_again(head: Node, hub: FakeHub):
    hub.breaks_at[SECOND] = [10] * 100
    with pytest.raises(HubError, match=f"{SECOND} of owner/name could not be downloaded"):
        head.run("fetch", patience_s=0.05)
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


def test_a_signed_url_is_shown_without_its_signature():
    """Who has it may read the file."""
    text = "403 for url: https://cas.example.net/a/b?X-Amz-Signature=0123&Expires=9 (Request ID: r)"
    assert hub_client.without_queries(text) == "403 for url: https://cas.example.net/a/b (Request ID: r)"
