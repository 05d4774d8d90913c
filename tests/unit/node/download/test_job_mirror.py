"""The jobs of both nodes: the worker copies from the head what the head downloads."""

import contextlib
import json
import threading

import pytest

from download.job import Offer
from download.tree import Failed
from hub.lock import locked
from tests.unit.node.download.fake_hub import FakeHub
from tests.unit.node.download.job_node import WORKER, Node, flipped
from tests.unit.node.snapshots import blob_of, contents, names, put, snapshot, verify

FIRST, SECOND, _ = names(3)


def both(head: Node, worker: Node) -> None:
    """The head's job and, once that serves it, the worker's."""
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


def test_the_worker_is_verified_when_the_head_is_and_asks_no_hub(head: Node, worker: Node, hub: FakeHub):
    both(head, worker)
    head.assert_verified()
    worker.assert_verified()
    assert sorted(hub.asked) == sorted(contents()), "each file came over the internet once"


def test_two_names_of_one_content_are_fetched_and_copied_once(head: Node, worker: Node, hub: FakeHub):
    """By two at once it would be a mixture of both, in the place where it arrives."""
    hub.files["a/copy.safetensors"] = hub.files[SECOND]
    both(head, worker)
    for node in (head, worker):
        node.assert_verified()
        assert (node.snapshot / "a/copy.safetensors").resolve() == (node.snapshot / SECOND).resolve()
        assert node.status["files"] == [6, 6]
    assert len({SECOND, "a/copy.safetensors"} & set(hub.asked)) == 1


def test_a_worker_gets_only_what_it_lacks(head: Node, worker: Node, hub: FakeHub):
    verify(snapshot(head.hub))
    verify(snapshot(worker.hub))
    blob = (worker.snapshot / SECOND).resolve()
    before = {path: path.stat().st_ino for path in blob.parent.iterdir()}
    blob.write_bytes(flipped(blob.read_bytes()))
    both(head, worker)
    worker.assert_verified()
    assert [path for path, inode in before.items() if path.stat().st_ino != inode] == [blob]


def test_leftovers_of_a_mirror_that_lost_its_power_are_gone_after_the_next(head: Node, worker: Node, hub: FakeHub):
    (worker.model / "blobs").mkdir(parents=True)
    (worker.model / "blobs" / f"{blob_of(FIRST, contents()[FIRST])}.spark-part").write_bytes(b"half")
    both(head, worker)
    worker.assert_verified()


def test_a_worker_hears_why_the_head_failed(head: Node, worker: Node, hub: FakeHub):
    def closed(path: str) -> None:
        raise hub.errors.GatedRepoError("restricted", 401)

    hub.before = closed
    with pytest.raises(Failed, match=r"the head's own copy failed: .*accept its licence"):
        both(head, worker)


def test_two_jobs_never_work_on_one_cache_at_once(head: Node, hub: FakeHub):
    """Two stacks that share a cache: the second waits, and finds it complete."""
    waiting = threading.Event()
    with locked(head.hub, lambda: None):
        second = threading.Thread(target=lambda: head.run("fetch"))
        second.start()
        while second.is_alive() and not waiting.is_set():
            if (head.job / "status.json").exists() and "waiting for another job" in head.status["phase"]:
                waiting.set()
        assert (second.is_alive(), hub.asked) == (True, [])
        put(head.hub, FIRST, contents()[FIRST])
    second.join(20)
    head.assert_verified()
    assert FIRST not in hub.asked
