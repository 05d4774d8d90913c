"""How the stand-in reads a checkpoint: a missing, short or unknown part ends the load with the real loader's error."""

import json

import pytest

from lab.hub.checkpoint import DSPARK, SHARDS, VISION_EXP
from lab.runtime.vllm import weights
from lab.runtime.vllm.errors import SafetensorError
from lab.runtime.vllm.log import trace
from lab.runtime.vllm.models.deepseek_v4.nvidia.model import DeepseekV4ForCausalLM
from tests.lab_unit.stand_in_machine import checkpoint

SECOND = "model-00002-of-00003.safetensors"


def load_all(folder):
    loaded = weights.open_checkpoint(str(folder), None)
    for shard in loaded.shards:
        weights.load_shard(loaded, shard)
    return loaded


def test_a_whole_checkpoint_is_read(tmp_path):
    loaded = load_all(checkpoint(tmp_path / "snapshot"))
    assert len(loaded.shards) == 3
    assert not loaded.has_vision


def test_a_missing_shard_and_a_dangling_link_are_named(tmp_path):
    folder = checkpoint(tmp_path / "snapshot")
    (folder / SECOND).unlink()
    with pytest.raises(FileNotFoundError, match=SECOND):
        load_all(folder)
    (folder / SECOND).symlink_to("../../blobs/gone")
    with pytest.raises(FileNotFoundError, match=SECOND):
        load_all(folder)


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (4, "header too small"),
        (30, "invalid header length"),
        (-1, "incomplete metadata, file not fully covered"),
    ],
)
def test_a_truncated_shard_ends_the_load_in_the_reader_s_words(tmp_path, length, words):
    """The error names no file; the rank's own check before the engine does."""
    folder = checkpoint(tmp_path / "snapshot")
    content = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(content[:length])
    with pytest.raises(SafetensorError) as end:
        load_all(folder)
    assert str(end.value) == f"Error while deserializing header: {words}"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("vision.patch_embed.weight", "ValueError: There is no module or parameter named 'vision' in Deepseek"),
        ("aligner.weight", "ValueError: There is no module or parameter named 'aligner' in DeepseekV4ForCausalLM"),
        ("image_newline", "ValueError: There is no module or parameter named 'image_newline' in DeepseekV4ForCausal"),
        ("layers.9.ffn.gate.bias_vl", "KeyError: 'layers.9.ffn.gate.bias_vl'"),
        ("mtp.0.ffn.gate.bias_vl", "KeyError: 'mtp.0.ffn.gate.bias_vl'"),
        ("layers.2.ffn.gate.bias", "KeyError: 'layers.2.ffn.gate.e_score_correction_bias'"),
    ],
)
def test_a_tensor_that_the_text_model_has_no_place_for_ends_the_load_as_in_the_real_class(name, error):
    with pytest.raises((ValueError, KeyError)) as end:
        DeepseekV4ForCausalLM.load_weights(["embed.weight", name])
    assert trace(end.value).splitlines()[-1].startswith(error)


def test_the_lab_s_text_checkpoint_has_a_place_for_every_tensor_and_the_vision_one_has_not():
    def names(repository):
        return [name for number in range(1, SHARDS + 1) for name in repository.tensors(number)]

    DeepseekV4ForCausalLM.load_weights(names(DSPARK))
    with pytest.raises(KeyError, match=r"layers\.0\.ffn\.gate\.bias_vl"):
        DeepseekV4ForCausalLM.load_weights(names(VISION_EXP))


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
