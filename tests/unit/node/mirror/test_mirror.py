"""The mirror over real sockets: the head at 127.0.0.1 offers, a node at 127.0.0.2 copies."""

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror import fetch, head, source
from mirror.fetch import Blob
from mirror.head import Head, MirrorError
from mirror.source import Source
from mirror.wire import Wire, WireError, introduce
from tests.unit.node.mirror.mirrors import FOREIGN, HEAD, NODE, TOKEN, Pair


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(head, "RETRY_S", 0.01)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.source.close()


def raw(port: int, own: str) -> socket.socket:
    return socket.create_connection((HEAD, port), timeout=2, source_address=(own, 0))


# --- copying ---


def test_what_the_head_has_arrives_and_every_byte_is_counted(pair: Pair):
    blobs = [pair.blob(content) for content in (b"weights" * 500_000, b"{}", b"")]
    pair.fetch(*blobs)
    assert pair.copied() == {blob.name: (pair.head / blob.name).read_bytes() for blob in blobs}
    assert sum(pair.counted) == sum(blob.size for blob in blobs)
    assert sorted(pair.verified) == sorted(blob.name for blob in blobs)


@given(st.lists(st.binary(max_size=300), max_size=8, unique=True), st.integers(1, 5), st.integers(1, 50))
@settings(max_examples=15)
def test_any_files_over_any_number_of_streams_arrive_once(contents: list[bytes], streams: int, piece: int):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(fetch, "PIECE_BYTES", piece)
        patch.setattr(source, "PIECE_BYTES", piece)
        made = Pair(Path(folder))
        blobs = [made.blob(content) for content in contents]
        made.fetch(*blobs, streams=streams)
        assert made.copied() == {blob.name: content for blob, content in zip(blobs, contents, strict=True)}
        assert sorted(made.verified) == sorted(blob.name for blob in blobs)
        made.source.close()


def test_a_small_file_named_as_git_names_it_is_verified_too(pair: Pair):
    name = "ce013625030ba8dba906f756967f9e9ca394464a"
    (pair.head / name).write_bytes(b"hello\n")
    pair.offer(name)
    pair.fetch(Blob(name, 6, pair.node / name))
    (pair.head / name).write_bytes(b"jello\n")
    with pytest.raises(MirrorError, match="arrived damaged twice"):
        pair.fetch(Blob(name, 6, pair.node / name))
    assert pair.copied() == {name: b"hello\n"}


def test_nothing_to_copy_is_copied_at_once(pair: Pair):
    pair.fetch()
    assert pair.copied() == {}


def test_a_node_waits_for_what_the_head_is_still_downloading_and_takes_first_what_is_there(pair: Pair):
    late, early = pair.blob(b"late", offered=False), pair.blob(b"early")
    timer = threading.Timer(0.1, pair.offer, [late.name])
    timer.start()
    pair.fetch(late, early, streams=1)
    timer.join()
    assert pair.verified == [early.name, late.name]


def test_blobs_that_are_there_come_in_the_order_that_was_asked_for(pair: Pair):
    blobs = [pair.blob(bytes([number])) for number in range(9)]
    pair.fetch(*reversed(blobs), streams=1)
    assert pair.verified == [blob.name for blob in reversed(blobs)]


def test_a_wait_without_any_progress_ends(pair: Pair):
    """A head whose download hangs must not hold the node for ever."""
    blob = pair.blob(b"never", offered=False)
    with pytest.raises(MirrorError, match="had nothing new for 0 s, and this node still lacks 1 files: look"):
        pair.fetch(blob, limit_s=0.1)


def test_the_manifest_is_waited_for(pair: Pair):
    document = {"files": {"config.json": "ab" * 20}, "bytes": 155 << 30}
    timer = threading.Timer(0.1, pair.source.announce, [document])
    timer.start()
    with pair.connect() as connected:
        assert connected.document(limit_s=5) == document
    timer.join()


def test_a_manifest_that_does_not_come_is_named(pair: Pair):
    with (
        pair.connect() as connected,
        pytest.raises(MirrorError, match="announced no files within 0 s: look at its own"),
    ):
        connected.document(limit_s=0.05)


def test_a_manifest_that_cannot_be_sent_fails_on_the_head(pair: Pair):
    with pytest.raises(TypeError):
        pair.source.announce({"path": Path("/")})


def test_the_head_learns_who_has_everything_and_since_when_nobody_is_there(pair: Pair):
    assert pair.source.finished() == set()
    time.sleep(0.02)
    assert pair.source.quiet_s() > 0.01
    with pair.connect() as connected:
        connected.finished()
        assert pair.source.finished() == {NODE}
        assert pair.source.quiet_s() == 0
    until = time.monotonic() + 2
    while pair.source.quiet_s() == 0 and time.monotonic() < until:
        time.sleep(0.005)
    assert 0 < pair.source.quiet_s() < 2


def test_a_copy_that_was_interrupted_leaves_nothing_and_may_start_again(pair: Pair):
    blobs = [pair.blob(bytes([number]) * 3_000_000) for number in range(4)]

    def interrupt(_: int) -> None:
        if len(pair.counted) > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.fetch(*blobs, on_bytes=interrupt)
    assert set(pair.copied()) <= {blob.name for blob in blobs} and len(pair.copied()) < 4
    pair.fetch(*blobs)
    assert set(pair.copied()) == {blob.name for blob in blobs}


# --- who is let in ---


def test_a_node_with_another_token_is_refused(pair: Pair):
    with pytest.raises(MirrorError, match="and this node belong to different runs: it refused this node's token"):
        Head(HEAD, pair.source.port, "of yesterday", own_fabric_ip=NODE, limit_s=1)


def test_an_address_that_is_no_peers_gets_not_one_byte(pair: Pair):
    pair.source.announce({"secret": 1})
    with raw(pair.source.port, FOREIGN) as connection:
        assert connection.recv(1) == b""
    with pytest.raises(MirrorError, match=f"is {FOREIGN} this node's fabric_ip in the stack file"):
        Head(HEAD, pair.source.port, TOKEN, own_fabric_ip=FOREIGN, limit_s=1)


def test_a_peer_that_proves_nothing_keeps_nobody_waiting(pair: Pair):
    blob = pair.blob(b"content")
    with raw(pair.source.port, NODE):
        pair.fetch(blob)
        assert pair.copied() == {blob.name: b"content"}


def test_only_what_was_offered_is_readable(pair: Pair):
    secret = pair.blob(b"hf_token", offered=False)
    for name in (secret.name, "../head/" + secret.name, str(pair.head / secret.name), ["a"], None):
        with raw(pair.source.port, NODE) as connection:
            wire = Wire(connection, gone_after_s=5)
            introduce(wire, TOKEN)
            wire.send({"ask": "blob", "of": [name]})
            assert wire.receive() == {"wait": True}


@pytest.mark.parametrize("request_", [{}, {"ask": "files"}, {"ask": "blob"}, {"ask": "blob", "of": "abc"}])
def test_an_unknown_request_ends_the_connection(request_: dict[str, object], pair: Pair):
    with raw(pair.source.port, NODE) as connection:
        wire = Wire(connection, gone_after_s=5)
        introduce(wire, TOKEN)
        wire.send(request_)
        with pytest.raises(WireError, match="closed the connection"):
            wire.receive()


@pytest.mark.parametrize(("address", "token"), [("", TOKEN), ("0.0.0.0", TOKEN), (HEAD, "")])
def test_a_mirror_that_anyone_could_read_is_not_started(address: str, token: str):
    with pytest.raises(ValueError, match="without them anyone could read"):
        Source([address], [NODE], token)


def test_an_address_that_is_not_the_heads_is_named():
    with pytest.raises(OSError, match=r"cannot listen at 192\.0\.2\.1: .* is that address this node's, and up"):
        Source(["192.0.2.1"], [NODE], TOKEN)


def test_an_address_that_is_not_the_nodes_is_tried_for_a_while_and_named(pair: Pair):
    """After a boot the fabric may come up later than the job."""
    began = time.monotonic()
    with pytest.raises(MirrorError, match=r"broke off: .*assign requested address"):
        Head(HEAD, pair.source.port, TOKEN, own_fabric_ip="192.0.2.1", limit_s=0.1)
    assert time.monotonic() - began >= 0.1
