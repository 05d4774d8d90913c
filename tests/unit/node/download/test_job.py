"""The long work on a checkpoint: what a node ends with, whatever it begins with."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from download import hub_client, job, tree
from download.hub_client import HubError
from download.job import Offer
from download.job_status import Status
from download.tree import Failed, JobInputs
from hub.files import gaps
from hub.lock import locked
from hub.manifest import unverified
from hub.verified import NAME, VerifiedBlobs
from tests.unit.node.download.fake_hub import FakeHub
from tests.unit.node.snapshots import ENCODER, REPO, REVISION, blob_of, contents, names, prove, put, snapshot

FIRST, SECOND, THIRD = names(3)
HEAD, WORKER = "127.0.0.1", "127.0.0.2"


class Node:
    """A cache and a job's folder."""

    def __init__(self, folder: Path, address: str) -> None:
        self.hub, self.job, self.address = folder / "hub", folder / "job", address
        self.model = self.hub / "models--owner--name"
        self.snapshot = self.model / "snapshots" / REVISION
        self.hub.mkdir(parents=True)
        self.job.mkdir()

    def run(
        self, role: Literal["fetch", "mirror"], *, peers: list[str] | None = None, offer: Offer | None = None
    ) -> None:
        address = HEAD if role == "mirror" else None
        inputs: JobInputs = {
            "id": f"{role}-job",
            "source_job": None,
            "role": role,
            "repo": REPO,
            "revision": REVISION,
            "shards": 3,
            "encoding_file": ENCODER,
            "patience_s": 0.05,
            "address": self.address,
            "peers": peers or [],
            "endpoint": "https://huggingface.co",
            "image": "repo@sha256:1",
            "hub": str(self.hub),
        }
        (self.job / "secret.json").write_text(json.dumps({"hf_token": "hf_word", "address": address, "offer": offer}))
        job.run(self.job, self.hub, inputs, Status(self.job / "status.json", inputs["id"]))

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.job / "status.json").read_text())
        return found

    def assert_whole(self) -> None:
        assert gaps(self.snapshot, 3, ENCODER) == []
        assert unverified(self.snapshot) == []
        assert {path: (self.snapshot / path).read_bytes() for path in contents()} == contents()
        assert (self.model / "refs/main").read_bytes() == REVISION.encode()
        assert not (self.job / "secret.json").exists(), "a token is there as long as it takes to read it"
        kept = {path.name for path in self.model.rglob("*") if path.is_file() and not path.is_symlink()}
        assert kept == {*(blob_of(*item) for item in contents().items()), NAME, "main"}, "no leftovers"


@pytest.fixture
def head(tmp_path: Path) -> Node:
    return Node(tmp_path / "head", HEAD)


@pytest.fixture
def worker(tmp_path: Path) -> Node:
    return Node(tmp_path / "worker", WORKER)


@pytest.fixture
def hub(head: Node, short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    made = FakeHub(head.hub)
    made.install(monkeypatch)
    monkeypatch.setattr(hub_client, "LONGEST_PAUSE_S", 0.001)
    monkeypatch.setattr(hub_client, "FIRST_PAUSE_S", 0.001)
    yield made


def test_an_empty_cache_ends_whole(head: Node, hub: FakeHub):
    head.run("fetch")
    head.assert_whole()
    assert sorted(hub.asked) == sorted(contents())
    assert hub.tokens == {"hf_word"}
    status = head.status
    assert (status["state"], status["files"], status["bytes"][0]) == ("done", [5, 5], status["bytes"][1])


def test_a_proven_cache_asks_nobody_and_hashes_nothing(head: Node, hub: FakeHub, monkeypatch):
    prove(snapshot(head.hub))
    monkeypatch.setattr(tree, "digest_of", lambda *_: pytest.fail("it was hashed"))
    head.run("fetch")
    head.assert_whole()
    assert (hub.asked, hub.tokens) == ([], set())


def test_a_whole_cache_that_nobody_proved_is_hashed_without_the_hub(head: Node, hub: FakeHub):
    snapshot(head.hub)
    head.run("fetch")
    head.assert_whole()
    assert (hub.asked, hub.tokens) == ([], set())


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 0xFF])


def test_one_wrong_byte_is_found_and_that_file_alone_is_fetched_again(head: Node, hub: FakeHub):
    prove(snapshot(head.hub))
    blob = (head.snapshot / SECOND).resolve()
    blob.write_bytes(flipped(blob.read_bytes()))
    head.run("fetch")
    head.assert_whole()
    assert hub.asked == [SECOND]
    assert f"{SECOND} is damaged" in head.status["notes"][0]


@pytest.mark.parametrize("keep", [0, 40])
def test_a_truncated_shard_is_fetched_again(head: Node, hub: FakeHub, keep: int):
    """G-TRUNC."""
    prove(snapshot(head.hub))
    blob = (head.snapshot / FIRST).resolve()
    blob.write_bytes(blob.read_bytes()[:keep])
    head.run("fetch")
    head.assert_whole()
    assert hub.asked == [FIRST]


def test_a_dangling_link_a_missing_index_and_leftovers_of_a_killed_download_are_mended(head: Node, hub: FakeHub):
    """G-DANGLE, G-NOIDX, G-PART."""
    prove(snapshot(head.hub))
    (head.snapshot / THIRD).resolve().unlink()
    (head.snapshot / "model.safetensors.index.json").unlink()
    left = head.model / "blobs" / f"{blob_of(THIRD, contents()[THIRD])}.1a2b3c4d.incomplete"
    left.write_bytes(b"half")
    head.run("fetch")
    head.assert_whole()
    # the index's blob was still there: only its link was lost
    assert set(hub.asked) <= {THIRD, "model.safetensors.index.json"} and THIRD in hub.asked


def test_a_plain_file_where_a_link_belongs_becomes_the_blob(head: Node, hub: FakeHub):
    prove(snapshot(head.hub))
    link = head.snapshot / SECOND
    blob = link.resolve()
    link.unlink()
    blob.rename(link)
    head.run("fetch")
    head.assert_whole()
    assert (link.is_symlink(), hub.asked) == (True, [])


def test_plain_files_of_one_content_become_one_blob(head: Node, hub: FakeHub):
    prove(snapshot(head.hub))
    for name in (SECOND, "copy.safetensors"):
        hub.files[name] = contents()[SECOND]
        (head.snapshot / name).unlink(missing_ok=True)
        (head.snapshot / name).write_bytes(contents()[SECOND])
    (head.model / "blobs" / blob_of(SECOND, contents()[SECOND])).unlink()
    # plain files tell no hashes, so the hub is asked for its list
    head.run("fetch")
    head.assert_whole()
    assert hub.asked == []
    assert (head.snapshot / "copy.safetensors").resolve() == (head.snapshot / SECOND).resolve()


def test_a_file_that_arrives_wrong_twice_is_named(head: Node, hub: FakeHub):
    hub.sent[SECOND] = flipped(contents()[SECOND])
    with pytest.raises(Failed, match=f"{SECOND} arrived twice from https://huggingface.co with another content"):
        head.run("fetch")
    assert hub.asked.count(SECOND) == 2


def test_a_file_that_arrives_wrong_once_is_fetched_once_more(head: Node, hub: FakeHub):
    hub.sent[SECOND] = flipped(contents()[SECOND])

    def heal(path: str) -> None:
        if path == SECOND and hub.asked.count(SECOND) == 2:
            hub.sent.clear()

    hub.before = heal
    head.run("fetch")
    head.assert_whole()


@pytest.mark.parametrize("found", ["", "main\n", f"{REVISION}\n", "0" * 40])
def test_a_ref_that_is_no_revision_here_is_written_properly(head: Node, hub: FakeHub, found: str):
    """G-REFNL, G-REFBAD."""
    prove(snapshot(head.hub))
    (head.model / "refs").mkdir()
    (head.model / "refs/main").write_text(found)
    head.run("fetch")
    head.assert_whole()


def test_a_ref_that_somebody_set_to_a_revision_that_is_here_stays(head: Node, hub: FakeHub):
    prove(snapshot(head.hub))
    other = "1" * 40
    (head.model / "snapshots" / other).mkdir()
    (head.model / "refs").mkdir()
    (head.model / "refs/main").write_text(other)
    head.run("fetch")
    assert (head.model / "refs/main").read_text() == other
    assert head.status["notes"] == ["refs/main stays at 11111111, which is here and was not set by us"]


def test_a_ref_that_we_set_moves_with_the_revision(head: Node, hub: FakeHub):
    prove(snapshot(head.hub))
    other = "1" * 40
    (head.model / "snapshots" / other).mkdir()
    (head.model / "refs").mkdir()
    (head.model / "refs/main").write_text(other)
    VerifiedBlobs(head.model).wrote_main(other)
    head.run("fetch")
    assert (head.model / "refs/main").read_text() == REVISION


# --- the hub ---


def test_a_hub_that_is_down_for_a_while_is_waited_for(head: Node, hub: FakeHub, monkeypatch):
    fails = iter(range(2))

    def down(path: str) -> None:
        if path == SECOND and next(fails, None) is not None:
            raise hub.errors.LocalEntryNotFoundError("An error happened while trying to locate the file", 0)

    hub.before = down
    shown = []
    monkeypatch.setattr(tree.Job, "trouble", lambda job, words: shown.append(words))
    head.run("fetch")
    head.assert_whole()
    assert hub.asked.count(SECOND) == 3
    words = "LocalEntryNotFoundError: An error happened while trying to locate the file"
    assert shown == [words, words, None], "why nothing arrives is told, and that it is over"


def test_a_hub_that_stays_away_ends_the_job_with_what_was_tried(head: Node, hub: FakeHub):
    def down(path: str) -> None:
        raise ConnectionError("Connection refused")

    hub.before = down
    with pytest.raises(HubError, match="the list of files of owner/name could not be downloaded from https://hugging"):
        head.run("fetch")


@pytest.mark.parametrize("status", [401, 403])
def test_a_closed_repository_is_named_with_the_page_of_its_licence(head: Node, hub: FakeHub, status: int):
    """D11."""

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
    assert hub.received.count((THIRD, len(hub.sent[THIRD]))) == 2, "nothing of it is kept to go on with"
    hub.sent.clear()
    head.run("fetch")
    head.assert_whole()


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


def test_a_connection_that_breaks_off_is_gone_on_with_where_it_ended(head: Node, hub: FakeHub):
    size = len(contents()[SECOND])
    hub.breaks_at[SECOND] = [10, 25]
    head.run("fetch")
    head.assert_whole()
    assert [count for path, count in hub.received if path == SECOND] == [10, 15, size - 25]


def test_a_line_that_breaks_off_all_the_time_is_waited_for_as_long_as_something_arrives(
    head: Node, hub: FakeHub, monkeypatch
):
    monkeypatch.setattr(hub_client, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(hub_client, "LONGEST_PAUSE_S", 0.02)
    # twenty pauses are eight times what it waits for a hub that gives nothing
    hub.breaks_at[SECOND] = list(range(1, 21))
    head.run("fetch")
    head.assert_whole()


def test_what_an_ended_job_had_of_a_file_is_not_fetched_again(head: Node, hub: FakeHub):
    hub.breaks_at[SECOND] = [10] * 100
    with pytest.raises(HubError, match=f"{SECOND} of owner/name could not be downloaded"):
        head.run("fetch")
    hub.breaks_at.clear()
    hub.received.clear()
    head.run("fetch")
    head.assert_whole()
    assert hub.received == [(SECOND, len(contents()[SECOND]) - 10)]


@pytest.mark.parametrize("left", [b"something else", b"x" * 1000], ids=["another content", "longer than the file"])
def test_a_beginning_that_is_not_the_files_is_found_and_the_file_is_fetched_anew(head: Node, hub: FakeHub, left: bytes):
    """As a node that lost its power may leave it."""
    (head.model / "blobs").mkdir(parents=True)
    (head.model / "blobs" / f"{blob_of(SECOND, contents()[SECOND])}.spark-part").write_bytes(left)
    head.run("fetch")
    head.assert_whole()
    assert (SECOND, len(contents()[SECOND])) in hub.received


# --- both nodes ---


def both(head: Node, worker: Node) -> None:
    """The head's job and, with the door that it opens, the worker's."""
    ended: list[BaseException] = []

    def run_head() -> None:
        try:
            head.run("fetch", peers=[WORKER])
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run_head)
    thread.start()
    source = head.job / "source.json"
    offer: Offer | None = None
    while not offer and thread.is_alive():
        with contextlib.suppress(OSError, ValueError):
            offer = json.loads(source.read_text())
    try:
        assert source.stat().st_mode & 0o077 == 0, "its token is the user's alone"
        worker.run("mirror", offer=offer)
    finally:
        thread.join(20)
    assert not thread.is_alive()
    if ended:
        raise ended[0]
    assert not source.exists()


def test_the_worker_is_whole_when_the_head_is_and_asks_no_hub(head: Node, worker: Node, hub: FakeHub):
    both(head, worker)
    head.assert_whole()
    worker.assert_whole()
    assert sorted(hub.asked) == sorted(contents()), "each file came over the internet once"


def test_two_names_of_one_content_are_fetched_and_copied_once(head: Node, worker: Node, hub: FakeHub):
    """By two at once it would be a mixture of both, in the place where it arrives."""
    hub.files["a/copy.safetensors"] = hub.files[SECOND]
    both(head, worker)
    for node in (head, worker):
        node.assert_whole()
        assert (node.snapshot / "a/copy.safetensors").resolve() == (node.snapshot / SECOND).resolve()
        assert node.status["files"] == [6, 6]
    assert len({SECOND, "a/copy.safetensors"} & set(hub.asked)) == 1


def test_a_worker_gets_only_what_it_lacks(head: Node, worker: Node, hub: FakeHub):
    prove(snapshot(head.hub))
    prove(snapshot(worker.hub))
    blob = (worker.snapshot / SECOND).resolve()
    before = {path: path.stat().st_ino for path in blob.parent.iterdir()}
    blob.write_bytes(flipped(blob.read_bytes()))
    both(head, worker)
    worker.assert_whole()
    assert [path for path, inode in before.items() if path.stat().st_ino != inode] == [blob]


def test_leftovers_of_a_mirror_that_lost_its_power_are_gone_after_the_next(head: Node, worker: Node, hub: FakeHub):
    (worker.model / "blobs").mkdir(parents=True)
    (worker.model / "blobs" / f"{blob_of(FIRST, contents()[FIRST])}.spark-part").write_bytes(b"half")
    both(head, worker)
    worker.assert_whole()


def test_a_worker_hears_why_the_head_failed(head: Node, worker: Node, hub: FakeHub):
    def closed(path: str) -> None:
        raise hub.errors.GatedRepoError("restricted", 401)

    hub.before = closed
    with pytest.raises(Failed, match=r"the head's own copy failed: .*accept its licence"):
        both(head, worker)


def test_two_jobs_never_work_on_one_cache_at_once(head: Node, hub: FakeHub):
    """Two stacks that share a cache: the second waits, and finds it whole."""
    waiting = threading.Event()
    with locked(head.hub, lambda: None):
        second = threading.Thread(target=lambda: head.run("fetch"))
        second.start()
        while second.is_alive() and not waiting.is_set():
            if (head.job / "status.json").exists() and "waits for another job" in head.status["phase"]:
                waiting.set()
        assert (second.is_alive(), hub.asked) == (True, [])
        put(head.hub, FIRST, contents()[FIRST])
    second.join(20)
    head.assert_whole()
    assert FIRST not in hub.asked
