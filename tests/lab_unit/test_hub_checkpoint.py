"""The lab's checkpoints: the real layout, files that safetensors can read, and the same bytes on every machine."""

import json
import re
from typing import Any

import pytest

from components.settings.profile import profiles, read_profile
from lab.hub import checkpoint
from lab.hub.checkpoint import CHANGED, DSPARK, LATER, REPOSITORIES, REVISIONS, SHARDS

SHARD_OF_THE_LAST = checkpoint.shard_name(SHARDS)


@pytest.fixture(params=sorted(REVISIONS))
def repository(request):
    return REVISIONS[request.param]


def header_of(content: bytes) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), len(content) - 8 - length


def test_there_are_48_shards_and_the_index_names_every_tensor_once(repository):
    index = json.loads(repository.files["model.safetensors.index.json"].content)
    shards = [path for path in repository.files if path.endswith(".safetensors")]
    assert len(shards) == len(set(index["weight_map"].values())) == 48
    assert 30_000_000 < sum(len(repository.files[path].content) for path in shards) < 40_000_000
    held: dict[str, str] = {}
    total = 0
    for path in shards:
        header, data = header_of(repository.files[path].content)
        del header["__metadata__"]
        assert max(entry["data_offsets"][1] for entry in header.values()) == data
        held |= dict.fromkeys(header, path)
        total += data
    assert held == index["weight_map"]
    assert total == index["metadata"]["total_size"]


def test_the_bytes_follow_from_name_and_revision_alone():
    digest = REPOSITORIES["deepseek-ai/DeepSeek-V4-Flash-DSpark"].files[SHARD_OF_THE_LAST].oid
    assert digest == "5907e22b5c87994fa392efd3320c78a31279a4dcc0cafeb5834e11332f8a7c22", (
        "a change of content changes every lab's cache"
    )


def test_a_later_revision_has_45_of_48_shards_byte_for_byte_and_is_not_main():
    shards = [checkpoint.shard_name(number) for number in range(1, SHARDS + 1)]
    other = [path for path in shards if LATER.files[path].oid != DSPARK.files[path].oid]
    assert other == [checkpoint.shard_name(number) for number in CHANGED]
    assert len(other) == 3
    assert REPOSITORIES[DSPARK.name] is DSPARK
    assert all(len(LATER.files[path].content) == len(DSPARK.files[path].content) for path in other), (
        "the layout is the same, so one index fits both"
    )


def test_a_later_revisions_config_and_encoder_are_its_own():
    for path in ("config.json", "encoding/encoding_dsv4.py"):
        assert LATER.files[path].oid != DSPARK.files[path].oid
    same = {path for path in DSPARK.files if LATER.files[path].oid == DSPARK.files[path].oid}
    assert {"tokenizer.json", "model.safetensors.index.json"} <= same


PLACES = re.compile(
    r"embed\.weight|norm\.weight|head\.weight|mtp\.\d\.main_norm\.weight|(layers|mtp)\.\d+\."
    r"(attn_norm\.weight|attn\.(wq_a|wkv|wo_a)\.weight|ffn\.gate\.weight|ffn\.experts\.\d\.w[123]\.(weight|scale))"
)
"""Names that vLLM 0.25.1 has a place for (models/deepseek_v4/nvidia: model.py, dspark.py), of those used here."""


def test_a_text_checkpoint_has_only_tensors_that_the_text_class_takes(repository):
    index = json.loads(repository.files["model.safetensors.index.json"].content)
    others = {re.sub(r"\d+", "N", name) for name in index["weight_map"] if not PLACES.fullmatch(name)}
    assert others == (
        {
            "vision.patch_embed.weight",
            "aligner.weight",
            "image_newline",
            "layers.N.ffn.gate.bias_vl",
            "mtp.N.ffn.gate.bias_vl",
        }
        if repository.vision
        else set()
    )


def test_every_profile_that_pins_a_revision_finds_it_on_the_hub():
    checkpoints = [read_profile(name)[0]["checkpoint"] for name in profiles()]
    pinned = {(each["repo"], each["revision"]) for each in checkpoints if "revision" in each}
    assert len(pinned) == 2 and pinned <= set(REVISIONS)


def test_only_vision_exp_has_a_vision_encoder():
    with_vision = [name for name, repo in REPOSITORIES.items() if "vision_config" in repo.config()]
    assert with_vision == ["deepseek-ai/DeepSeek-V4-Flash-Vision-Exp"]
    assert "vision.patch_embed.weight" in REPOSITORIES[with_vision[0]].tensors(SHARDS)


def test_the_checkpoints_encoding_is_a_program_that_encodes():
    namespace: dict[str, Any] = {}
    source = REPOSITORIES["deepseek-ai/DeepSeek-V4-Flash-DSpark"].files["encoding/encoding_dsv4.py"].content
    exec(compile(source, "encoding_dsv4.py", "exec"), namespace)
    encode = namespace["encode_messages"]
    assert encode([{"role": "user", "content": "hi"}], thinking=True).endswith("hi<|Assistant|><think>")
    with pytest.raises(ValueError, match="reasoning_effort"):
        encode([], thinking=True, reasoning_effort="medium")
