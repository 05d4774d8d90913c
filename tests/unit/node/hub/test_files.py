"""Is a snapshot complete: the cache trees that people have reported."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from hub.files import gaps, shard_fault, snapshot_of
from tests.unit.node.snapshots import ENCODER, REPO, REVISION, names, shard, snapshot

FIRST, SECOND, THIRD = names(3)
INDEX = "model.safetensors.index.json"


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    return snapshot(tmp_path / "hub")


def test_a_complete_snapshot_has_no_gap(complete: Path, tmp_path: Path):
    assert snapshot_of(tmp_path / "hub", REPO, REVISION) == complete
    assert gaps(complete, 3, ENCODER) == []


def test_blobs_outside_the_models_folder_are_blobs_too(complete: Path, tmp_path: Path):
    """A shared store."""
    (tmp_path / "hub/blobs").mkdir()
    (tmp_path / "hub/blobs/x").write_bytes(shard())
    (complete / FIRST).unlink()
    (complete / FIRST).symlink_to("../../../blobs/x")
    assert gaps(complete, 3) == []


def test_leftovers_of_a_download_that_no_shard_needs_do_not_matter(complete: Path):
    (complete.parents[1] / "blobs/abc.incomplete").write_bytes(b"x")
    assert gaps(complete, 3) == []


def dangling(folder: Path) -> None:
    (folder / SECOND).resolve().unlink()


def missing(folder: Path) -> None:
    (folder / SECOND).unlink()


def truncated(folder: Path) -> None:
    blob = (folder / SECOND).resolve()
    blob.write_bytes(blob.read_bytes()[:-1])


def too_long(folder: Path) -> None:
    with (folder / SECOND).resolve().open("ab") as file:
        file.write(b"xx")


def empty(folder: Path) -> None:
    (folder / SECOND).resolve().write_bytes(b"")


def text(folder: Path) -> None:
    (folder / SECOND).resolve().write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


def a_folder(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / SECOND).mkdir()


def unreadable(folder: Path) -> None:
    (folder / SECOND).unlink()
    # a regular file whose bytes nobody gets, root included
    (folder / SECOND).symlink_to("/proc/self/mem")


SIZE = len(shard())


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (dangling, "is a link to a file that is not there"),
        (missing, "is missing"),
        (truncated, f"has {SIZE - 1:,} bytes instead of {SIZE:,}"),
        (too_long, f"has {SIZE + 2:,} bytes instead of {SIZE:,}"),
        (empty, "has no safetensors header (0 bytes)"),
        (text, "has no safetensors header (43 bytes)"),
        (a_folder, "is not a regular file"),
        (unreadable, "cannot be read: Input/output error"),
    ],
)
def test_a_shard_that_is_incomplete_is_named_with_its_fault(harm: Callable[[Path], None], fault: str, complete: Path):
    harm(complete)
    assert gaps(complete, 3) == [f"{SECOND} {fault}"]


def test_every_gap_has_a_line(complete: Path):
    (complete / FIRST).unlink()
    (complete / THIRD).unlink()
    (complete / ENCODER).unlink()
    assert gaps(complete, 3, ENCODER) == [f"{FIRST} is missing", f"{THIRD} is missing", f"{ENCODER} is missing"]


def test_an_index_that_names_other_shards_than_the_profile_is_a_gap(complete: Path):
    assert gaps(complete, 48) == [f"{INDEX} names 3 shards instead of 48"]


def test_no_snapshot_is_a_gap(tmp_path: Path):
    assert gaps(tmp_path / "none", 3) == [f"there is no snapshot {tmp_path / 'none'}"]


def test_shards_without_an_index_are_a_gap(complete: Path):
    (complete / INDEX).unlink()
    assert gaps(complete, 3) == [f"{INDEX} is missing in {complete}"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"{}", b'{"weight_map": []}', b"\xff"])
def test_an_index_that_cannot_be_read_is_a_gap_with_its_reason(content: bytes, complete: Path):
    (complete / INDEX).write_bytes(content)
    [line] = gaps(complete, 3)
    assert line.startswith(f"{INDEX} cannot be read: ")


def test_an_index_whose_bytes_nobody_gets_is_a_gap_with_its_reason(complete: Path):
    (complete / INDEX).unlink()
    (complete / INDEX).symlink_to("/proc/self/mem")
    assert gaps(complete, 3) == [f"{INDEX} cannot be read: OSError: [Errno 5] Input/output error"]


def test_an_index_that_names_no_files_has_gaps(complete: Path):
    (complete / INDEX).write_text('{"weight_map": {"a": [], "b": 3}}')
    assert gaps(complete, 2) == ["3 is missing", "[] is missing"]


@pytest.mark.parametrize(
    "header",
    [b"[]", b"3", b'{"w": 3}', b'{"w": {"data_offsets": 3}}', b'{"w": {"data_offsets": [0]}}', b'{"w": {}}', b"\xff{"],
)
def test_a_header_of_any_other_shape_is_no_safetensors_header(header: bytes, tmp_path: Path):
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header)
    assert shard_fault(tmp_path / "x") == f"has no safetensors header ({8 + len(header)} bytes)"


@pytest.mark.parametrize("length", [1 << 40, (1 << 64) - 1])
def test_a_header_longer_than_its_file_is_none_and_takes_no_memory(length: int, tmp_path: Path):
    (tmp_path / "x").write_bytes(struct.pack("<Q", length) + b"x" * 20)
    assert shard_fault(tmp_path / "x") == "has no safetensors header (28 bytes)"


def test_a_shard_without_tensors_is_as_long_as_its_header(tmp_path: Path):
    header = json.dumps({"__metadata__": {}}).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header)
    assert shard_fault(tmp_path / "x") is None
