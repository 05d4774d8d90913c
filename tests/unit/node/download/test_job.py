"""The head's job on a checkpoint: what its cache ends with, whatever it begins with."""

import pytest

from download import tree
from download.tree import Failed
from hub.manifest import listed, unverified
from hub.verified import VerifiedBlobs
from tests.unit.node.download.fake_hub import FakeHub
from tests.unit.node.download.job_node import Node, flipped
from tests.unit.node.snapshots import ENCODER, REVISION, blob_of, contents, names, snapshot, verify

FIRST, SECOND, THIRD = names(3)


def test_an_empty_cache_ends_verified(head: Node, hub: FakeHub):
    head.run("fetch")
    head.assert_verified()
    assert sorted(hub.asked) == sorted(contents())
    assert hub.tokens == {"hf_word"}
    status = head.status
    assert (status["state"], status["files"], status["bytes"][0]) == ("done", [5, 5], status["bytes"][1])


def test_a_verified_cache_asks_nobody_and_hashes_nothing(head: Node, hub: FakeHub, monkeypatch):
    verify(snapshot(head.hub))
    monkeypatch.setattr(tree, "digest_of", lambda *_: pytest.fail("it was hashed"))
    head.run("fetch")
    head.assert_verified()
    assert (hub.asked, hub.tokens) == ([], set())


def test_of_a_complete_cache_that_nobody_verified_the_hub_gives_the_list_alone(head: Node, hub: FakeHub):
    snapshot(head.hub)
    head.run("fetch")
    head.assert_verified()
    assert hub.asked == []


def test_without_a_hub_a_complete_cache_is_verified_by_its_links_and_that_is_said(head: Node, hub: FakeHub):
    def down(path: str) -> None:
        raise ConnectionError("Connection refused")

    snapshot(head.hub)
    hub.before = down
    head.run("fetch")
    head.assert_verified()
    [note] = head.status["notes"]
    assert note.startswith("verifying what is on the disk, without the hub's list of files: ") and "refused" in note
    assert listed(head.snapshot) is None, "it may be less than the revision has"


CONFIG = "config.json"


@pytest.mark.parametrize("harm", ["emptied", "cut", "dangling", "gone"])
def test_a_small_file_of_a_verified_cache_is_mended_like_a_shard(head: Node, hub: FakeHub, harm: str):
    """The index does not name it, so only the list tells that it belongs there."""
    hub.files[CONFIG] = b'{"model_type": "deepseek_v4"}'
    head.run("fetch")
    hub.asked.clear()
    link = head.snapshot / CONFIG
    blob = link.resolve()
    if harm in ("emptied", "cut"):
        blob.write_bytes(blob.read_bytes()[: 9 * (harm == "cut")])
    else:
        blob.unlink()
    if harm == "gone":
        link.unlink()
    assert unverified(head.snapshot) == [CONFIG]
    head.run("fetch")
    assert link.read_bytes() == hub.files[CONFIG]
    assert (unverified(head.snapshot), hub.asked) == ([], [CONFIG])


def test_a_cache_of_another_tool_that_lacks_a_small_file_gets_it(head: Node, hub: FakeHub):
    snapshot(head.hub)
    hub.files[CONFIG] = b"{}"
    head.run("fetch")
    assert (head.snapshot / CONFIG).read_bytes() == b"{}" and hub.asked == [CONFIG]


def test_other_files_in_the_snapshot_are_left_and_said_and_nothing_else(head: Node, hub: FakeHub):
    head.run("fetch")
    for name in (".DS_Store", "encoding/__pycache__/encoding_dsv4.cpython-312.pyc", f".{FIRST}.Xy12Ab"):
        (head.snapshot / name).parent.mkdir(exist_ok=True)
        (head.snapshot / name).write_text("x")
    assert unverified(head.snapshot) == []
    head.run("fetch")
    assert head.status["notes"] == ["not of the checkpoint, so left as they are: .DS_Store and 2 more"]
    assert (head.snapshot / ".DS_Store").read_text() == "x"


@pytest.mark.parametrize("blob_is_here", [True, False])
def test_an_edited_file_is_kept_under_another_name_and_that_is_said(head: Node, hub: FakeHub, blob_is_here: bool):
    head.run("fetch")
    path = head.snapshot / ENCODER
    blob = path.resolve()
    path.unlink()
    path.write_text("PROMPT = 5\n")
    if not blob_is_here:
        blob.unlink()
    assert unverified(head.snapshot) == [ENCODER]
    head.run("fetch")
    assert path.read_bytes() == contents()[ENCODER] and path.is_symlink()
    assert path.with_name("encoding_dsv4.py.kept").read_text() == "PROMPT = 5\n"
    said = f"{ENCODER} was not the checkpoint's (did somebody edit it?): it is now encoding_dsv4.py.kept"
    assert head.status["notes"][0] == said


def test_one_wrong_byte_is_found_and_that_file_alone_is_fetched_again(head: Node, hub: FakeHub):
    verify(snapshot(head.hub))
    blob = (head.snapshot / SECOND).resolve()
    blob.write_bytes(flipped(blob.read_bytes()))
    head.run("fetch")
    head.assert_verified()
    assert hub.asked == [SECOND]
    assert f"{SECOND} is damaged" in head.status["notes"][0]


@pytest.mark.parametrize("keep", [0, 40])
def test_a_truncated_shard_is_fetched_again(head: Node, hub: FakeHub, keep: int):
    verify(snapshot(head.hub))
    blob = (head.snapshot / FIRST).resolve()
    blob.write_bytes(blob.read_bytes()[:keep])
    head.run("fetch")
    head.assert_verified()
    assert hub.asked == [FIRST]


def test_a_dangling_link_a_missing_index_and_leftovers_of_a_killed_download_are_mended(head: Node, hub: FakeHub):
    verify(snapshot(head.hub))
    (head.snapshot / THIRD).resolve().unlink()
    (head.snapshot / "model.safetensors.index.json").unlink()
    left = head.model / "blobs" / f"{blob_of(THIRD, contents()[THIRD])}.1a2b3c4d.incomplete"
    left.write_bytes(b"half")
    head.run("fetch")
    head.assert_verified()
    # the index's blob was still there: only its link was lost
    assert set(hub.asked) <= {THIRD, "model.safetensors.index.json"} and THIRD in hub.asked


def test_a_plain_file_where_a_link_belongs_becomes_the_blob(head: Node, hub: FakeHub):
    verify(snapshot(head.hub))
    link = head.snapshot / SECOND
    blob = link.resolve()
    link.unlink()
    blob.rename(link)
    head.run("fetch")
    head.assert_verified()
    assert (link.is_symlink(), hub.asked) == (True, [])


def test_plain_files_of_one_content_become_one_blob(head: Node, hub: FakeHub):
    snapshot(head.hub)
    for name in (SECOND, "copy.safetensors"):
        hub.files[name] = contents()[SECOND]
        (head.snapshot / name).unlink(missing_ok=True)
        (head.snapshot / name).write_bytes(contents()[SECOND])
    (head.model / "blobs" / blob_of(SECOND, contents()[SECOND])).unlink()
    # plain files tell no hashes, so the hub is asked for its list
    head.run("fetch")
    head.assert_verified()
    assert hub.asked == []
    assert (head.snapshot / "copy.safetensors").resolve() == (head.snapshot / SECOND).resolve()


def test_a_file_that_arrives_wrong_twice_is_named(head: Node, hub: FakeHub):
    hub.sent[SECOND] = flipped(contents()[SECOND])
    with pytest.raises(
        Failed, match=f"{SECOND} arrived twice from https://huggingface.co with content that does not match its hash"
    ):
        head.run("fetch")
    assert hub.asked.count(SECOND) == 2


def test_a_file_that_arrives_wrong_once_is_fetched_once_more(head: Node, hub: FakeHub):
    hub.sent[SECOND] = flipped(contents()[SECOND])

    def heal(path: str) -> None:
        if path == SECOND and hub.asked.count(SECOND) == 2:
            hub.sent.clear()

    hub.before = heal
    head.run("fetch")
    head.assert_verified()


@pytest.mark.parametrize("text", ["", "main\n", f"{REVISION}\n", "0" * 40])
def test_a_ref_to_no_revision_on_disk_is_rewritten(head: Node, hub: FakeHub, text: str):
    verify(snapshot(head.hub))
    (head.model / "refs").mkdir()
    (head.model / "refs/main").write_text(text)
    head.run("fetch")
    head.assert_verified()


def test_a_ref_that_somebody_set_to_a_revision_on_disk_stays(head: Node, hub: FakeHub):
    verify(snapshot(head.hub))
    other = "1" * 40
    (head.model / "snapshots" / other).mkdir()
    (head.model / "refs").mkdir()
    (head.model / "refs/main").write_text(other)
    head.run("fetch")
    assert (head.model / "refs/main").read_text() == other
    assert head.status["notes"] == ["refs/main stays at 11111111, which is on this node and was not set by us"]


def test_a_ref_that_we_set_moves_with_the_revision(head: Node, hub: FakeHub):
    verify(snapshot(head.hub))
    other = "1" * 40
    (head.model / "snapshots" / other).mkdir()
    (head.model / "refs").mkdir()
    (head.model / "refs/main").write_text(other)
    VerifiedBlobs(head.model).wrote_main(other)
    head.run("fetch")
    assert (head.model / "refs/main").read_text() == REVISION
