"""When prune removes nothing: links, locks, owners, other machines, and a cache that changed under it."""

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.node import hub_cache as cache
from tests.unit.node.hub.pruned_node import Node, running, with_two_revisions
from tests.unit.node.hub_cache import OLD, REPO


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def two(node: Node) -> Node:
    return with_two_revisions(node)


@pytest.mark.parametrize("part", ["", "blobs", "snapshots"])
def test_a_model_behind_a_link_is_not_touched(two: Node, tmp_path: Path, part: str):
    path = cache.folder(two.hub) / part
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    before = cache.tree(tmp_path / "elsewhere")
    [kept] = two.list()["kept"]
    assert kept["why"] == f"{path} is a link: what lies behind it is not touched"
    assert two.prune()["removed"] == 0
    assert cache.tree(tmp_path / "elsewhere") == before


def test_a_cache_that_is_reached_through_a_link_is_the_users_and_pruned(two: Node, tmp_path: Path):
    (tmp_path / "link").symlink_to(two.hub.parent)
    done = two.run("list", hf_cache=str(tmp_path / "link"))
    assert json.loads(done.stdout)["hub"] == str(two.hub)
    assert [row["what"] for row in json.loads(done.stdout)["candidates"]] == ["revision 3c5ed1f0"]


def test_a_folder_where_a_file_is_expected_is_refused(two: Node):
    folder = cache.folder(two.hub) / "blobs" / f"{'a' * 64}.incomplete"
    (folder / "deep").mkdir(parents=True)
    before = cache.tree(two.hub)
    for action in ("list", "remove"):
        done = two.run(action, expect=[])
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"{folder} is a folder where a file is expected: ")
    assert cache.tree(two.hub) == before


@pytest.mark.parametrize("change", ["a blob", "its time", "a new leftover", "a ref", "nothing listed"])
def test_removal_is_refused_when_the_cache_is_not_what_was_listed(two: Node, change: str):
    expect = two.list()["candidates"]
    match change:
        case "a blob":
            cache.blob(two.hub, "old").write_text("grown")
        case "its time":
            os.utime(cache.blob(two.hub, "old"), ns=(1, 1))
        case "a new leftover":
            (cache.folder(two.hub) / "blobs" / f"{'a' * 64}.damaged").touch()
        case "a ref":
            cache.ref(two.hub, OLD, "v1")
        case _:
            expect = []
    before = cache.tree(two.hub)
    done = two.run("remove", expect=expect)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{two.hub} changed since it was listed: nothing was removed, list again\n"
    assert cache.tree(two.hub) == before


def test_removal_is_refused_while_a_job_has_the_cache_and_a_list_says_so(two: Node):
    free = two.list()
    holder = os.open(two.hub, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        listed = two.list()
        assert listed["busy"] and listed["candidates"] == free["candidates"]
        before = cache.tree(two.hub)
        done = two.run("remove", expect=free["candidates"])
        assert done.returncode == 1 and done.stderr.startswith(f"a checkpoint job runs on {two.hub}: nothing was")
        assert cache.tree(two.hub) == before
    finally:
        os.close(holder)
    assert not two.list()["busy"]


def test_a_folder_of_another_user_stops_it_before_the_first_file(two: Node, monkeypatch: pytest.MonkeyPatch):
    """Root left it; the test pretends, since root may do everything."""
    closed = cache.folder(two.hub) / "blobs"
    monkeypatch.setattr(os, "access", lambda path, _: os.fspath(path) != str(closed))
    before, expect = cache.tree(two.hub), two.list()["candidates"]
    done = two.run("remove", expect=expect)
    assert done.returncode == 1 and done.stderr.startswith(f"{closed} is closed to this user (owner: uid ")
    assert f"sudo chown -R {os.getuid()}:{os.getgid()} {two.hub}" in done.stderr
    assert cache.tree(two.hub) == before


def test_another_machines_disk_is_refused_by_name(two: Node, monkeypatch: pytest.MonkeyPatch):
    device = os.stat(two.hub).st_dev
    line = f"40 30 {os.major(device)}:{os.minor(device)} / /hf rw - nfs4 198.51.100.1:/hub rw\n"
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self: line if self.name == "mountinfo" else real(self))
    done = two.run("list")
    assert done.stderr == f"{two.hub} is on 198.51.100.1:/hub (nfs4), another machine's disk: prune it there\n"


def test_a_cache_that_is_not_there_is_said(node: Node, tmp_path: Path):
    done = node.run("list", hf_cache=str(tmp_path / "raid"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"there is no {tmp_path}/raid/hub: ")


def test_a_model_that_was_never_here_needs_nothing(two: Node):
    two.inputs["models"] = ["owner/other", REPO]
    assert list(two.may_go()) == ["revision 3c5ed1f0"]
