"""What a node knows of its checkpoint before anything is declared: what lacks, what is here, what the hub gives."""

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from facts import checkpoint
from facts.document import CheckpointFacts
from tests.unit.node.snapshots import REPO, REVISION, contents, entries, names, put, shard, snapshot, verify
from tests.unit.servers import Answer, Request, body, serving


def facts(cache: Path, revision: str = REVISION, endpoint: str | None = None) -> CheckpointFacts:
    return checkpoint.checkpoint(str(cache), REPO, revision, 3, [], endpoint)


def test_a_proven_checkpoint_lacks_nothing_and_one_that_changed_since_is_named(tmp_path):
    folder = snapshot(tmp_path / "hub")
    never = facts(tmp_path).gaps
    assert len(never) == 5 and all("was never verified by its hash" in gap for gap in never)
    verify(folder)
    assert facts(tmp_path).gaps == []
    blob = (folder / names(3)[1]).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    [gap] = facts(tmp_path).gaps
    assert gap.startswith(f"{names(3)[1]} was never verified by its hash, or changed since")


def test_what_is_on_its_way_counts_as_here_since_the_same_disk_will_hold_it(tmp_path):
    folder = snapshot(tmp_path / "hub")
    before = facts(tmp_path).bytes_present
    (folder.parent.parent / "blobs" / "abc.12345678.incomplete").write_bytes(bytes(8192))
    after = facts(tmp_path).bytes_present
    assert after - before == 8192


def test_a_model_folder_that_leads_out_of_the_cache_is_told(tmp_path):
    snapshot(tmp_path / "elsewhere")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/models--owner--name").symlink_to(tmp_path / "elsewhere/models--owner--name")
    read = facts(tmp_path)
    assert read.outside == str(tmp_path / "elsewhere/models--owner--name")


def test_the_hub_is_asked_only_where_something_must_be_downloaded(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(checkpoint, "hub_error", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(checkpoint, "listing", lambda *arguments: None)
    verify(snapshot(tmp_path / "hub"))
    facts(tmp_path, endpoint="https://hub")
    assert asked == []
    facts(tmp_path, "0" * 40)
    assert asked == []
    facts(tmp_path, "0" * 40, "https://hub")
    assert asked == [("https://hub", REPO, "0" * 40)]


def test_of_another_revision_nothing_is_here(tmp_path):
    snapshot(tmp_path / "hub")
    read = facts(tmp_path, "0" * 40)
    assert (len(read.gaps), read.bytes_present) == (1, 0)


# --- the list of files, by which every node's lack is counted ---


def rows() -> list[dict[str, object]]:
    """The hub's tree of the revision, as it answers: LFS files have a pointer's oid, and their own beside it."""
    read: list[dict[str, object]] = [{"type": "directory", "path": "encoding", "oid": "1" * 40, "size": 0}]
    for entry in entries():
        about = {"oid": entry.blob, "size": entry.size}
        if entry.path.endswith(".safetensors"):
            read.append({"type": "file", "path": entry.path, "oid": "2" * 40, "size": 134, "lfs": about})
        else:
            read.append({"type": "file", "path": entry.path, **about})
    return read


def hub(listed: object, status: int = 200) -> Any:
    def answer(_: Request) -> Answer:
        return body(listed, status)

    return serving(answer)


def test_a_head_that_is_whole_tells_the_list_from_its_own_links_and_asks_nobody(tmp_path: Path):
    verify(snapshot(tmp_path / "hub"))
    read = facts(tmp_path, endpoint="http://127.0.0.1:9")
    assert (read.listing, read.sizes) == ([(e.path, e.blob, e.size) for e in entries()], {})


def test_a_head_that_is_not_gets_it_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "hub_error", lambda *arguments: None)
    with hub(rows()) as (url, requests):
        read = facts(tmp_path, endpoint=url)
    assert read.listing and sorted(read.listing) == [(e.path, e.blob, e.size) for e in entries()]
    assert [request[1] for request in requests] == [f"/api/models/{REPO}/tree/{REVISION}?recursive=true"]


@pytest.mark.parametrize(
    ("listed", "status"),
    [
        ({}, 401),
        ("no list", 200),
        ([{"type": "file"}], 200),
        ([{"type": "file", "path": "../x", "oid": "0" * 40, "size": 1}], 200),
    ],
)
def test_a_hub_that_gives_no_list_costs_only_the_exact_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: object, status: int
):
    monkeypatch.setattr(checkpoint, "hub_error", lambda *arguments: None)
    with hub(listed, status) as (url, _):
        read = facts(tmp_path, endpoint=url)
    assert read.listing is None and read.gaps


def test_a_list_that_a_job_kept_is_the_list_also_of_a_damaged_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = snapshot(tmp_path / "hub")
    verify(folder)
    (folder / names(3)[0]).unlink()
    monkeypatch.setattr(checkpoint, "hub_error", lambda *arguments: None)
    read = facts(tmp_path, endpoint="http://127.0.0.1:9")
    assert read.gaps and read.listing == [(e.path, e.blob, e.size) for e in entries()]


DEEP = b"[" * 100_000
SLOW = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n["


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6p1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n[{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + DEEP,
        b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n[["type", 1]]',
        SLOW,
    ],
    ids=["nothing", "no HTTP", "cut", "deep JSON", "other rows", "slow"],
)
def test_whatever_a_hub_sends_what_is_on_the_disk_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
):
    monkeypatch.setattr(checkpoint, "LISTING_S", 0.1)
    monkeypatch.setattr(checkpoint, "HUB_S", 0.1)
    path = names(3)[0]
    put(tmp_path / "hub", path, contents()[path])
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    client.recv(4096)
                    client.sendall(answer)
                    if answer is not SLOW:
                        client.close()
                    held.append(client)

        held: list[socket.socket] = []
        thread = threading.Thread(target=serve)
        thread.start()
        read = facts(tmp_path, endpoint=f"http://127.0.0.1:{listening.getsockname()[1]}")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    for client in held:
        client.close()
    assert (read.listing, read.bytes_present) == (None, len(contents()[path]))
    assert read.sizes[path] == len(contents()[path])


def test_a_worker_tells_what_it_has_and_no_list(tmp_path: Path):
    path = names(3)[0]
    blob = put(tmp_path / "hub", path, contents()[path])
    (blob.parent / f"{blob.name}.12345678.incomplete").write_bytes(bytes(8192))
    read = facts(tmp_path)
    size = len(shard())
    assert read.listing is None
    assert read.sizes == {path: size, blob.name: size, f"{blob.name}.12345678.incomplete": 8192}
