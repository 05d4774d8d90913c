"""Whatever models and revisions share, and wherever a removal breaks off: what is kept reads as before."""

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub import prune, tree
from tests.unit.node import hub_cache as cache
from tests.unit.node.hub.pruned_node import Node, running, with_two_revisions
from tests.unit.node.hub_cache import NEW, OLD, OTHER, REPO

NAMES = [f"{number:040x}" for number in range(3)]
FILES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("1234"), max_size=4)
"""Name in the snapshot -> content; equal contents are one blob of the model."""
MODEL = st.dictionaries(st.sampled_from(NAMES), FILES, max_size=3)


def contents(hub: Path, repo: str, revisions: set[str]) -> dict[str, bytes]:
    """What a reader of these revisions sees."""
    files = {}
    for revision in revisions:
        for path in (cache.folder(hub, repo) / "snapshots" / revision).rglob("*"):
            files[f"{revision}/{path.name}"] = path.read_bytes()
    return files


@given(ours=MODEL, theirs=MODEL, keep=st.sets(st.sampled_from(NAMES)), borrowed=st.sets(st.sampled_from("1234")))
def test_what_is_kept_reads_as_before_and_nothing_else_is_left(
    ours: dict[str, dict[str, str]], theirs: dict[str, dict[str, str]], keep: set[str], borrowed: set[str]
):
    """`borrowed` are blobs of ours that somebody else's model links to."""
    with tempfile.TemporaryDirectory() as name:
        hub = Path(name).resolve()
        for repo, model in ((REPO, ours), (OTHER, theirs)):
            for revision, files in model.items():
                (cache.folder(hub, repo) / "snapshots" / revision).mkdir(parents=True)
                cache.snapshot(hub, revision, files, repo)
        for text in borrowed:
            cache.link(hub, OLD, text, cache.blob(hub, text), OTHER)
        stay = keep & set(ours)
        other = set(theirs) | ({OLD} if borrowed else set())
        before = contents(hub, REPO, stay), contents(hub, OTHER, other)

        def plan() -> list[prune.Candidate]:
            cache = tree.Hub(str(hub), tree.links_of(str(hub)), [])
            return prune.plan(cache, REPO, dict.fromkeys(keep, "a stack"), [])[0]

        prune.remove(str(hub), plan())
        assert (contents(hub, REPO, stay), contents(hub, OTHER, other)) == before
        assert {path.name for path in (cache.folder(hub) / "snapshots").glob("*")} == stay
        needed = borrowed | {text for revision in stay for text in ours[revision].values()}
        assert set((cache.folder(hub) / "blobs").glob("*")) == {cache.blob(hub, text) for text in needed}
        assert plan() == []


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path) as node:
        yield with_two_revisions(node)


@pytest.mark.parametrize("files", range(5))
def test_a_removal_that_breaks_off_leaves_no_dangling_link_and_is_finished_by_the_next(
    two: Node, files: int, monkeypatch: pytest.MonkeyPatch
):
    """Here with a disk that fails after so many files; a power cut leaves the same."""
    real, left = os.unlink, iter(range(files))

    def failing(path: str) -> None:
        if next(left, None) is None:
            raise OSError(errno.EIO, "Input/output error", path)
        real(path)

    expect = two.list()["candidates"]
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", failing)
        done = two.run("remove", expect=expect)
        assert done.returncode == 1 and "Input/output error" in done.stderr
    links = [path for path in two.hub.rglob("*") if path.is_symlink()]
    assert links and all(path.exists() for path in links)
    two.prune()
    assert two.may_go() == {}
    assert not (cache.folder(two.hub) / "snapshots" / OLD).exists()
    assert (cache.folder(two.hub) / "snapshots" / NEW / "encoding/encoder.py").read_bytes().startswith(b"new")
    assert json.loads((cache.folder(two.hub) / ".spark-stack.json").read_text()).get("main") is None
