"""The mirror when something goes wrong on its way: named, nothing left behind, and what was there before stays."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror import fetch, head
from mirror.fetch import Blob
from mirror.head import Head, MirrorError
from tests.unit.node.mirror.mirrors import HEAD, NODE, TOKEN, Grudging, Pair, silent_head


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror.source.HEARTBEAT_S", 0.02)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.source.close()


# --- damage ---


def test_a_damaged_blob_is_fetched_once_more(pair: Pair):
    blob = pair.blob(b"x" * 3_000_000)
    damaged = b"y" + b"x" * 2_999_999
    (pair.head / blob.name).write_bytes(damaged)

    def mend(count: int) -> None:
        if count < 0:
            (pair.head / blob.name).write_bytes(b"x" * 3_000_000)

    pair.fetch(blob, on_bytes=mend)
    assert pair.copied() == {blob.name: b"x" * 3_000_000}
    assert sum(pair.counted) == blob.size and -blob.size in pair.counted


def test_a_blob_that_is_damaged_twice_is_named_and_what_was_there_stays(pair: Pair):
    """One flipped byte; the file that lies here may be damaged too, but it is all there is."""
    blob = pair.blob(b"x" * 1000)
    (pair.head / blob.name).write_bytes(b"x" * 999 + b"y")
    blob.target.write_bytes(b"before")
    with pytest.raises(MirrorError, match=f"{blob.name} arrived damaged twice"):
        pair.fetch(blob)
    assert pair.copied() == {blob.name: b"before"}
    assert sum(pair.counted) == 0 and pair.verified == []


def test_a_damaged_file_on_the_node_is_replaced_by_a_verified_one(pair: Pair):
    blob = pair.blob(b"right")
    blob.target.write_bytes(b"wrong")
    pair.fetch(blob)
    assert pair.copied() == {blob.name: b"right"}


def test_a_file_of_another_size_is_not_even_received(pair: Pair):
    blob = pair.blob(b"x" * 10)
    (pair.head / blob.name).write_bytes(b"x" * 7)
    with pytest.raises(MirrorError, match=f"the head has 7 bytes of .*{blob.name} instead of 10"):
        pair.fetch(blob)
    assert (pair.copied(), pair.counted) == ({}, [])


# --- the head ---


def test_a_head_that_cannot_continue_says_why_after_it_gave_what_it_has(pair: Pair):
    here, missing = pair.blob(b"here"), pair.blob(b"missing", offered=False)
    pair.source.fail("the hub answers 403: accept the licence")
    with pytest.raises(MirrorError, match="cannot continue: the hub answers 403: accept the licence"):
        pair.fetch(missing, here, streams=1)
    assert pair.copied() == {here.name: b"here"}


def test_those_who_wait_hear_at_once_that_the_head_failed(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mirror.source.HEARTBEAT_S", 60)
    timer = threading.Timer(0.05, pair.source.fail, ["the disk is full"])
    timer.start()
    with pair.connect() as connected, pytest.raises(MirrorError, match="cannot continue: the disk is full"):
        connected.document(limit_s=5)
    timer.join()


def test_a_blob_that_vanished_from_the_head_is_named(pair: Pair):
    blob = pair.blob(b"gone")
    (pair.head / blob.name).unlink()
    with pytest.raises(MirrorError, match=f"cannot continue: .*{blob.name} cannot be read: No such file"):
        pair.fetch(blob)


def test_a_head_that_ends_in_the_middle_of_a_blob_leaves_nothing_behind(pair: Pair):
    blobs = [pair.blob(bytes([number]) * 30_000_000) for number in range(2)]
    for blob in blobs:
        blob.target.write_bytes(b"before")
    with pytest.raises(MirrorError, match=f"from the head at {HEAD} port {pair.source.port} broke off: .* run pulumi"):
        pair.fetch(*blobs, streams=1, on_bytes=lambda _: pair.source.close())
    assert pair.copied() == {blob.name: b"before" for blob in blobs}


def test_a_head_that_is_not_there_is_named_at_once(pair: Pair):
    pair.source.close()
    with pytest.raises(MirrorError, match=f"{HEAD} port {pair.source.port} broke off: Connection refused: is the head"):
        Head(HEAD, pair.source.port, TOKEN, own_fabric_ip=NODE, limit_s=60)


def test_a_file_that_becomes_shorter_on_the_head_is_not_taken(pair: Pair):
    blob = pair.blob(b"x" * 30_000_000)
    with pytest.raises(MirrorError, match=f"the head has 0 bytes of .*{blob.name} instead of 30,000,000"):
        pair.fetch(blob, on_bytes=lambda _: os.truncate(pair.head / blob.name, 0))
    assert pair.copied() == {}


def test_streams_that_break_off_connect_again_and_copy_only_what_is_not_verified_yet(pair: Pair):
    blobs = [pair.blob(bytes([number]) * 5_000_000) for number in range(4)]

    def cut_once(_: int) -> None:
        if pair.verified and not cuts:
            cuts.append(set(pair.verified))
            pair.cut()

    cuts: list[set[str]] = []
    pair.fetch(*blobs, on_bytes=cut_once)
    assert cuts, "it was cut on the way"
    assert set(pair.copied()) == {blob.name for blob in blobs}
    assert sorted(pair.verified) == sorted(blob.name for blob in blobs), "each is told once"
    assert sum(pair.counted) == sum(blob.size for blob in blobs), "what was lost on the way does not count"


def test_a_stream_that_breaks_off_again_and_again_gives_up(pair: Pair):
    blob = pair.blob(b"x" * 30_000_000)
    with pytest.raises(MirrorError, match="broke off: it closed the connection"):
        pair.fetch(blob, streams=1, on_bytes=lambda count: pair.cut() if count > 0 else None)
    assert pair.copied() == {} and sum(pair.counted) == 0


def test_a_connection_that_was_forgotten_in_the_hours_of_the_copy_is_no_reason_to_fail(pair: Pair):
    pair.source.announce({"files": []})
    with pair.connect() as connected:
        pair.cut()
        assert connected.document(limit_s=5) == {"files": []}
        pair.cut()
        connected.finished()
    assert pair.source.finished() == {NODE}


def test_a_head_that_lost_its_power_is_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    """No byte and no end of the connection: only silence tells."""
    monkeypatch.setattr(head, "SILENCE_S", 0.1)
    monkeypatch.setattr(fetch, "SILENCE_S", 0.1)
    with silent_head() as port, Head(HEAD, port, TOKEN, own_fabric_ip=NODE) as connected:
        blob = Blob("0" * 64, 10, pair.node / "blob")
        with pytest.raises(MirrorError, match="broke off: it was silent for too long: is the head up, and the cable"):
            fetch.Fetch(connected, [blob]).run(1)
    assert pair.copied() == {}


# --- the node's disk ---


def test_a_full_disk_is_named_with_what_is_free_and_nothing_is_left(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    """Delayed allocation reports it at the latest when the file is put on disk."""
    blob = pair.blob(b"x" * 1000)
    blob.target.write_bytes(b"before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetch.os, "fdatasync", full)  # type: ignore[attr-defined]
    with pytest.raises(MirrorError, match=rf"no room for .*{blob.name} of 1,000 bytes: [\d,]+ are free there"):
        pair.fetch(blob)
    assert pair.copied() == {blob.name: b"before"}


def test_a_file_that_takes_only_part_of_a_piece_is_given_the_rest(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    """write(2) may take less than it was given, and says so."""
    blob = pair.blob(bytes(range(256)) * 40)
    monkeypatch.setattr(Path, "open", lambda path, mode, buffering: Grudging(path, mode))
    pair.fetch(blob)
    monkeypatch.undo()
    assert pair.copied() == {blob.name: bytes(range(256)) * 40}


def test_a_folder_that_is_not_there_is_named(pair: Pair):
    blob = pair.blob(b"content")
    nowhere = Blob(blob.name, blob.size, pair.node / "blobs" / blob.name)
    with pytest.raises(MirrorError, match=f"{nowhere.target} cannot be written: No such file or directory: look at"):
        pair.fetch(nowhere)


def test_one_streams_fault_ends_the_others_too(pair: Pair):
    waiting, nowhere = pair.blob(b"never", offered=False), pair.blob(b"content")
    with pytest.raises(MirrorError, match="cannot be written"):
        pair.fetch(waiting, Blob(nowhere.name, nowhere.size, pair.node / "blobs" / "x"), limit_s=60)
