"""The stand-in's look at a checkpoint: what is missing or short is named, as the real loader names it."""

import json

import pytest

from lab.runtime.vllm import weights
from lab.runtime.vllm.errors import SafetensorError
from tests.lab_unit.stand_in_machine import checkpoint

SECOND = "model-00002-of-00003.safetensors"


def load_all(folder):
    found = weights.open_checkpoint(str(folder), None)
    for shard in found.shards:
        weights.load_shard(found, shard)
    return found


def test_a_whole_checkpoint_is_read(tmp_path):
    found = load_all(checkpoint(tmp_path / "snapshot"))
    assert len(found.shards) == 3
    assert not found.has_vision


def test_a_missing_shard_and_a_dangling_link_are_named(tmp_path):
    folder = checkpoint(tmp_path / "snapshot")
    (folder / SECOND).unlink()
    with pytest.raises(FileNotFoundError, match=SECOND):
        load_all(folder)
    (folder / SECOND).symlink_to("../../blobs/gone")
    with pytest.raises(FileNotFoundError, match=SECOND):
        load_all(folder)


@pytest.mark.parametrize("length", [0, 4, 30, -1])
def test_a_truncated_shard_is_named(tmp_path, length):
    folder = checkpoint(tmp_path / "snapshot")
    content = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(content[:length])
    with pytest.raises(SafetensorError, match=SECOND):
        load_all(folder)


def test_a_tensor_that_the_index_promises_elsewhere_is_missed(tmp_path):
    folder = checkpoint(tmp_path / "snapshot")
    index = json.loads((folder / weights.INDEX).read_text())
    index["weight_map"]["layers.9.weight"] = SECOND
    (folder / weights.INDEX).write_text(json.dumps(index))
    with pytest.raises(KeyError, match=r"layers\.9\.weight"):
        load_all(folder)


def test_a_repository_is_found_by_revision_and_by_ref_but_not_without_either(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    repository = tmp_path / "hub/models--org--model"
    folder = checkpoint(repository / "snapshots/abc")
    assert weights.locate("org/model", "abc") == folder
    with pytest.raises(OSError, match=r"config\.json"):
        weights.locate("org/model", None)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc")
    assert weights.locate("org/model", None) == folder
