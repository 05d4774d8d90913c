"""The files of a revision and how they lie in a cache."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.manifest import Entry, ManifestError, checked, content_of, of_snapshot, place
from hub.verified import NAME, VerifiedBlobs
from tests.unit.characters import ANY
from tests.unit.node.snapshots import REVISION, contents, entries, names, snapshot, verify

BLOB = "ab" * 32


def test_a_snapshots_links_tell_its_manifest(tmp_path: Path):
    assert of_snapshot(snapshot(tmp_path)) == entries()


def test_a_file_that_is_no_link_has_no_hash_to_tell(tmp_path: Path):
    folder = snapshot(tmp_path)
    (folder / "config.json").write_text("{}")
    assert of_snapshot(folder) is None


@pytest.mark.parametrize(
    "row",
    [
        ("../../../etc/passwd", BLOB, 1),
        ("/etc/passwd", BLOB, 1),
        ("a/../../b", BLOB, 1),
        ("", BLOB, 1),
        ("a", "x", 1),
        ("a", BLOB.upper(), 1),
        ("a", BLOB, -1),
        ("a", BLOB, "1"),
    ],
)
def test_a_manifest_that_would_write_elsewhere_or_names_no_hash_is_refused(row):
    """It comes over the network."""
    with pytest.raises(ManifestError):
        checked([row])


@given(st.text(ANY), st.text(ANY), st.integers())
def test_whatever_a_manifest_holds_nothing_leaves_the_snapshot(path: str, blob: str, size: int):
    try:
        [entry] = checked([(path, blob, size)])
    except ManifestError:
        return
    inside = Path(os.path.normpath(Path("/snapshot") / entry.path))
    assert Path("/snapshot") in inside.parents


def test_a_shared_store_is_left_as_it_is(tmp_path: Path):
    folder = snapshot(tmp_path)
    model = folder.parent.parent
    [entry] = [entry for entry in entries() if entry.path == names(3)[0]]
    shared = tmp_path / "blobs" / entry.blob
    shared.parent.mkdir()
    (folder / entry.path).resolve().rename(shared)
    (folder / entry.path).unlink()
    (folder / entry.path).symlink_to(f"../../../blobs/{entry.blob}")
    content = content_of(model, folder, entry)
    assert content == shared
    place(model, folder, entry, content)
    assert os.readlink(folder / entry.path) == f"../../../blobs/{entry.blob}"


def test_a_link_to_another_blob_is_turned_and_the_other_blob_is_kept(tmp_path: Path):
    folder = snapshot(tmp_path)
    model = folder.parent.parent
    first, second = (entry for entry in entries() if entry.path in names(2 + 1)[:2])
    (folder / first.path).unlink()
    (folder / first.path).symlink_to(f"../../blobs/{second.blob}")
    assert content_of(model, folder, first) == model / "blobs" / first.blob
    place(model, folder, first, model / "blobs" / first.blob)
    assert (folder / first.path).read_bytes() == contents()[first.path]
    assert (folder / second.path).read_bytes() == contents()[second.path]


def test_a_folder_where_a_file_belongs_is_refused_by_name(tmp_path: Path):
    folder = snapshot(tmp_path)
    entry = Entry("config.json", BLOB, 2)
    (folder / "config.json").mkdir()
    with pytest.raises(ManifestError, match=r"snapshots/.*/config.json is a folder where a file"):
        place(folder.parent.parent, folder, entry, folder.parent.parent / "blobs" / BLOB)


def test_nothing_is_written_through_a_folder_that_leads_out(tmp_path: Path):
    folder, elsewhere = snapshot(tmp_path / "hub"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "tools").symlink_to(elsewhere)
    blob = folder.parent.parent / "blobs" / entries()[0].blob
    with pytest.raises(ManifestError, match="tools leads out of the model's folder: move it away"):
        place(folder.parent.parent, folder, Entry("tools/run.py", blob.name, 2), blob)
    assert list(elsewhere.iterdir()) == []


# --- what was verified ---


def test_a_verified_blob_stays_so_until_size_time_or_inode_changes(tmp_path: Path):
    folder = snapshot(tmp_path)
    verify(folder)
    blob = (folder / names(3)[0]).resolve()
    assert VerifiedBlobs(folder.parent.parent).holds(blob.name, blob)
    assert not VerifiedBlobs(folder.parent.parent).holds("0" * 64, blob)
    about = blob.stat()
    os.utime(blob, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert not VerifiedBlobs(folder.parent.parent).holds(blob.name, blob)
    os.utime(blob, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert VerifiedBlobs(folder.parent.parent).holds(blob.name, blob)
    copy = blob.with_name("copy")
    copy.write_bytes(blob.read_bytes())
    os.utime(copy, ns=(about.st_atime_ns, about.st_mtime_ns))
    copy.rename(blob)
    assert not VerifiedBlobs(folder.parent.parent).holds(blob.name, blob), "the same content, another file"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"verified": 3}', '{"verified": {"a": 1}}'])
def test_a_list_of_verified_blobs_that_cannot_be_read_verifies_nothing(tmp_path: Path, text: str):
    folder = snapshot(tmp_path)
    (folder.parent.parent / NAME).write_text(text)
    blob = (folder / names(3)[0]).resolve()
    verified = VerifiedBlobs(folder.parent.parent)
    assert not verified.holds(blob.name, blob)
    verified.add(blob.name, blob)
    assert VerifiedBlobs(folder.parent.parent).holds(blob.name, blob)
    assert REVISION not in (folder.parent.parent / NAME).read_text()
