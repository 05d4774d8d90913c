"""What prune takes from a node's cache and what it leaves, over real trees: never what is needed or of others."""

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.node import hub_cache as cache
from tests.unit.node.hub.pruned_node import Node, Row, running, with_two_revisions
from tests.unit.node.hub_cache import BLOCK, NEW, OLD, OTHER, REPO


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def two(node: Node) -> Node:
    return with_two_revisions(node)


def container(name: str, *arguments: str, labels: dict[str, str] | None = None, source: str | None = None) -> Row:
    config = {"Cmd": list(arguments), "Entrypoint": None, "Env": ["API_KEY=sk-not-to-be-seen"], "Labels": labels or {}}
    mounts = [{"Type": "bind", "Source": source}] if source else [{"Type": "volume", "Source": "/var/lib/docker/x"}]
    return {"Name": name, "Config": config, "Mounts": mounts}


def test_an_old_revision_may_go_with_what_only_it_has(two: Node):
    (cache.folder(two.hub) / "refs" / "main").unlink()  # it would be counted too
    listing = two.list()
    assert [(row["what"], row["bytes"]) for row in listing["candidates"]] == [("revision 3c5ed1f0", BLOCK)]
    [kept] = listing["kept"]
    assert (kept["what"], kept["why"]) == ("revision b2f0447c", "named by Pulumi.dev.yaml")
    assert kept["bytes"] == 3 * BLOCK
    assert listing["others"] == 1


def test_listing_changes_nothing(two: Node):
    before = cache.tree(two.hub)
    two.list()
    assert cache.tree(two.hub) == before


def test_removal_leaves_the_other_revision_and_somebody_elses_model_to_the_byte(two: Node):
    before = cache.tree(two.hub)
    old = cache.blob(two.hub, "old")
    done = two.prune()
    assert done["removed"] >= BLOCK and done["free"] > 0
    after = cache.tree(two.hub)
    gone = set(before) - set(after)
    mine = cache.folder(two.hub).name
    snapshot = f"{mine}/snapshots/{OLD}"
    inside = {"model-1", "model-2", "encoding", "encoding/encoder.py"}
    assert gone == {f"{mine}/blobs/{old.name}", f"{mine}/refs/main", snapshot, *(f"{snapshot}/{x}" for x in inside)}
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {f"{mine}/.spark-stack.json"}
    assert two.may_go() == {}


def test_our_list_of_verified_blobs_forgets_what_went_and_nothing_else(two: Node):
    file = cache.folder(two.hub) / ".spark-stack.json"
    before, old = json.loads(file.read_text()), cache.blob(two.hub, "old").name
    two.prune()
    after = json.loads(file.read_text())
    del before["verified"][old]
    assert after == {"verified": before["verified"]}, "refs/main went too, so we wrote none"


def test_a_models_last_revision_takes_its_folder_and_its_locks(two: Node):
    cache.lock(two.hub, "a")
    theirs = cache.lock(two.hub, "b", OTHER)
    for note in (f".no_exist/{OLD}/added_tokens.json", f"trees/{OLD}.json"):
        path = cache.folder(two.hub) / note
        path.parent.mkdir(parents=True)
        path.touch()
    before = cache.tree(cache.folder(two.hub, OTHER))
    two.inputs["keep"] = {}
    assert list(two.may_go()) == ["revision 3c5ed1f0", "revision b2f0447c", "its folder"]
    assert two.prune()["removed"] > 4 * BLOCK, "and what is beside the blobs"
    assert not cache.folder(two.hub).exists() and not (two.hub / ".locks" / cache.folder(two.hub).name).exists()
    assert cache.tree(cache.folder(two.hub, OTHER)) == before and theirs.exists()


def test_huggingface_hubs_notes_on_a_revision_go_with_it(two: Node):
    trees = cache.folder(two.hub) / "trees"
    trees.mkdir()
    for revision in (OLD, NEW):
        (trees / f"{revision}.json").write_text("{}")
    two.prune()
    assert [path.name for path in trees.iterdir()] == [f"{NEW}.json"]


def test_a_folder_with_something_strange_in_it_stays(two: Node):
    strange = cache.folder(two.hub) / "blobs" / "thesis.tex"
    strange.write_text("x")
    two.inputs["keep"] = {}
    assert [row["why"] for row in two.list()["kept"]] == [f"{strange} is neither ours nor the hub's"]
    two.prune()
    assert [path.name for path in (cache.folder(two.hub) / "blobs").iterdir()] == ["thesis.tex"]


def test_a_revision_that_your_own_ref_points_to_stays(two: Node):
    cache.note_verified(two.hub)  # refs/main is not ours
    assert two.may_go() == {}
    assert ("revision 3c5ed1f0", "refs/main, which we did not write, points to it") in [
        (row["what"], row["why"]) for row in two.list()["kept"]
    ]
    cache.note_verified(two.hub, main=OLD)
    cache.ref(two.hub, OLD, "pr/7")
    assert two.may_go() == {}


def test_a_ref_that_was_moved_since_we_wrote_it_is_yours(two: Node):
    cache.note_verified(two.hub, main=NEW)
    assert two.may_go() == {}


RANK = {"spark.stack": "dev", "spark.rank": "0"}


@pytest.mark.parametrize(
    ("made", "kept"),
    [
        (container("rank", "--revision", OLD, labels=RANK, source="HUB"), True),
        (container("rank", "--revision", NEW, labels=RANK, source="HUB"), False),
        (container("rank-over-nfs", "--revision", OLD, labels=RANK), False),
        (container("theirs", "serve", REPO, "--revision", OLD), True),
        (container("theirs", "serve", REPO), True),
        (container("theirs", "serve", "/hf/hub/models--owner--name"), True),
        (container("theirs", "serve", OTHER, source="HUB"), False),
    ],
)
def test_what_a_running_container_uses_stays(two: Node, made: Row, kept: bool):
    """Without a revision it follows refs/main, which is OLD. A worker's rank reads the head's copy in mode nfs."""
    for mount in made["Mounts"]:
        mount["Source"] = mount["Source"].replace("HUB", str(two.hub))
    two.containers = [made]
    listing = two.list()
    assert [row["what"] for row in listing["candidates"]] == ([] if kept else ["revision 3c5ed1f0"])
    assert "sk-not-to-be-seen" not in json.dumps(listing)
    if kept:
        assert f"container {made['Name']} uses it" in [row["why"] for row in listing["kept"]]


def test_without_dockerd_nobody_knows_what_runs_so_nothing_may_go(two: Node, tmp_path: Path):
    two.docker_host = f"unix://{tmp_path}/nobody.sock"
    done = two.run("list")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dockerd does not say which containers run (")
    assert "so revisions in use are unknown" in done.stderr


def test_a_copy_that_is_read_from_the_head_instead_is_told_as_such(two: Node):
    two.inputs |= {"keep": {}, "unneeded": {REPO: [NEW]}}
    why = {row["what"]: row["why"] for row in two.list()["candidates"]}
    assert why["revision b2f0447c"].startswith("a copy of its own: this node reads the revision from the head")
    assert why["revision 3c5ed1f0"].startswith("no stack file names it")
    two.inputs["keep"] = {REPO: {NEW: "Pulumi.prod.yaml"}}
    assert list(two.may_go()) == ["revision 3c5ed1f0"], "another stack needs it here"


def test_left_over_files_and_unlinked_blobs_may_go(two: Node):
    """A download and a mirror that broke off."""
    blobs = cache.folder(two.hub) / "blobs"
    left = [blobs / f"{'a' * 64}.{end}" for end in ("0b1c2d3e.incomplete", "spark-part", "damaged")]
    for path in left:
        path.write_bytes(b"." * BLOCK)
        os.sync()  # some file systems allocate late
    orphan = cache.blob(two.hub, "nobody links to it")
    two.inputs["keep"] = {REPO: {NEW: "a", OLD: "b"}}
    assert two.may_go() == {"left-over files: 3": 3 * BLOCK, "unlinked blobs: 1": BLOCK}
    linked = set(blobs.iterdir()) - {*left, orphan}
    two.prune()
    assert set(blobs.iterdir()) == linked


def test_what_was_only_reserved_frees_what_it_holds(two: Node):
    with (cache.folder(two.hub) / "blobs" / f"{'a' * 64}.spark-part").open("wb") as file:
        file.truncate(2**40)
    assert two.may_go()["left-over files: 1"] < BLOCK


def test_a_model_that_a_program_downloads_now_is_left_alone(two: Node):
    (cache.folder(two.hub) / "blobs" / f"{'a' * 64}.incomplete").write_bytes(b"x")
    lock = cache.lock(two.hub, "a" * 64)
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        listing = two.list()
        assert listing["candidates"] == []
        assert [row["why"] for row in listing["kept"]] == [
            f"a program may be downloading into it: {lock} is held, or closed to us"
        ]
    assert "left-over files: 1" in two.may_go()


def test_a_blob_in_a_store_that_models_share_is_never_touched(node: Node):
    shared = node.hub / "blobs" / ("c" * 64)
    shared.parent.mkdir()
    shared.write_bytes(b"s" * BLOCK)
    cache.link(node.hub, OLD, "model-1", shared)
    cache.link(node.hub, OLD, "model-1", shared, OTHER)
    theirs = cache.tree(cache.folder(node.hub, OTHER))
    assert list(node.may_go()) == ["revision 3c5ed1f0", "its folder"]
    node.prune()
    assert shared.read_bytes() == b"s" * BLOCK and not cache.folder(node.hub).exists()
    assert cache.tree(cache.folder(node.hub, OTHER)) == theirs


def test_a_blob_that_another_model_links_to_stays_where_it_is(two: Node):
    theirs = cache.link(two.hub, OLD, "borrowed", cache.blob(two.hub, "old"), OTHER)
    assert two.may_go()["revision 3c5ed1f0"] < BLOCK
    two.prune()
    assert theirs.read_bytes().startswith(b"old")


def test_a_blob_that_is_itself_a_link_goes_and_what_it_names_stays(two: Node, tmp_path: Path):
    """Somebody moved blobs to another disk by hand."""
    moved, blob = tmp_path / "moved", cache.blob(two.hub, "old")
    blob.rename(moved)
    blob.symlink_to(moved)
    two.prune()
    assert moved.exists() and not blob.is_symlink()
