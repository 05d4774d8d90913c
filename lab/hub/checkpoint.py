"""Small checkpoints with the layout of the real ones: 48 safetensors shards, an index, and the files beside them.

Every byte is derived from the repository's name and revision, so two machines, two runs and a rebuilt hub agree on
every digest, and no random data is in version control. The weights are noise, which compresses as badly as real
weights. A later revision has most shards of the one before it, byte for byte, as when a real model is trained further.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

SHARDS = 48
LAYERS = 43
DRAFTER_LAYERS = 3
EXPERTS = 8
CHANGED = (2, 24, 48)
"""The numbers of the shards that a later revision changes."""
WIDTHS = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4}
"""Bytes of an element, by safetensors' name of the type."""

ENCODING = Path(__file__).with_name("encoding_dsv4.py")
POINTER_SIZE = 134
"""Bytes of a Git LFS pointer file with a nine-digit size. huggingface_hub only needs some number."""

Tensor = tuple[str, tuple[int, ...]]
"""Type and shape."""


@dataclass(frozen=True)
class File:
    """One file of a repository. Its digest is sha256 if `lfs`, else Git's blob id."""

    path: str
    content: bytes
    lfs: bool

    @cached_property
    def oid(self) -> str:
        """The hex digest that the hub lists and sends as ETag, and that huggingface_hub uses as the blob's name."""
        if self.lfs:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    def entry(self) -> dict[str, Any]:
        """The file's row in the tree listing."""
        size = len(self.content)
        row: dict[str, Any] = {"type": "file", "path": self.path, "size": size, "oid": self.oid}
        if self.lfs:
            row["lfs"] = {"oid": self.oid, "size": size, "pointerSize": POINTER_SIZE}
        return row


@dataclass(frozen=True)
class Repository:
    """One model repository at one revision."""

    name: str
    revision: str
    vision: bool
    earlier: Repository | None = None
    """The revision before this one. All shards except CHANGED are the same."""

    @cached_property
    def files(self) -> dict[str, File]:
        """All files by path, made on first use: about 34 MB. A later revision makes only three shards of its own."""
        files = list(self._shards())
        weight_map = {tensor: shard_name(number) for number in range(1, SHARDS + 1) for tensor in self.tensors(number)}
        total = sum(size_of(tensor) for number in range(1, SHARDS + 1) for tensor in self.tensors(number).values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        texts = {
            ".gitattributes": "*.safetensors filter=lfs diff=lfs merge=lfs -text\n",
            "README.md": f"# {self.name}\n\nThe lab's stand-in: the layout is real, the weights are noise.\n",
            "config.json": document(self.config()),
            "generation_config.json": document({"temperature": 1.0, "top_p": 1.0, "do_sample": True}),
            "model.safetensors.index.json": document(index),
            "tokenizer.json": document({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}),
            "tokenizer_config.json": document({"tokenizer_class": "PreTrainedTokenizerFast"}),
            "encoding/encoding_dsv4.py": ENCODING.read_text().replace("REVISION", self.revision[:8]),
        }
        files += [File(path, text.encode(), lfs=False) for path, text in texts.items()]
        return {file.path: file for file in sorted(files, key=lambda file: file.path)}

    def config(self) -> dict[str, Any]:
        """config.json, with the fields that an engine reads before it loads weights."""
        config: dict[str, Any] = {
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": "deepseek_v4",
            "torch_dtype": "bfloat16",
            "max_position_embeddings": 1048576,
            "num_hidden_layers": LAYERS,
            "num_nextn_predict_layers": DRAFTER_LAYERS,
            "dspark_block_size": 5,
            "n_routed_experts": EXPERTS,
            "vocab_size": 129280,
            "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
        }
        if self.vision:
            config |= {"vision_config": {"model_type": "deepseek_v4_vit", "patch_size": 14}, "n_predict": 3}
        if self.earlier:
            config["transformers_version"] = "4.57.3"
        return config

    def tensors(self, number: int) -> dict[str, Tensor]:
        """The tensors of shard `number`, 1 to 48: the embedding, one layer each, the head, the drafter, the ViT.

        vLLM 0.25.1's class has a place for every name of a text checkpoint, but not for those that `vision` adds.
        """
        if number == 1:
            return {"embed.weight": ("BF16", (1280, 256))}
        if number <= LAYERS + 1:
            return self.layer(f"layers.{number - 2}")
        if number == LAYERS + 2:
            return {"norm.weight": ("BF16", (256,)), "head.weight": ("F32", (640, 256))}
        drafter = number - LAYERS - 3
        tensors = self.layer(f"mtp.{drafter}") | {f"mtp.{drafter}.main_norm.weight": ("BF16", (256,))}
        if self.vision and number == SHARDS:
            tensors |= {
                "vision.patch_embed.weight": ("BF16", (256, 588)),
                "aligner.weight": ("BF16", (256, 256)),
                "image_newline": ("BF16", (256,)),
            }
        return tensors

    def layer(self, prefix: str) -> dict[str, Tensor]:
        """One transformer layer. A checkpoint with a vision encoder has an extra bias that routes images."""
        return layer(prefix) | ({f"{prefix}.ffn.gate.bias_vl": ("F32", (EXPERTS,))} if self.vision else {})

    def _shards(self) -> Iterator[File]:
        for number in range(1, SHARDS + 1):
            name = shard_name(number)
            if self.earlier and number not in CHANGED:
                yield self.earlier.files[name]
            else:
                seed = f"{self.name}@{self.revision}/{name}".encode()
                yield File(name, safetensors(self.tensors(number), seed), lfs=True)


def layer(prefix: str) -> dict[str, Tensor]:
    """One transformer layer: FP8 attention, and FP4 experts (two values a byte) with their block scales."""
    tensors: dict[str, Tensor] = {
        f"{prefix}.attn_norm.weight": ("BF16", (256,)),
        f"{prefix}.attn.wq_a.weight": ("F8_E4M3", (256, 512)),
        f"{prefix}.attn.wkv.weight": ("F8_E4M3", (128, 512)),
        f"{prefix}.attn.wo_a.weight": ("F8_E4M3", (512, 256)),
        f"{prefix}.ffn.gate.weight": ("F32", (EXPERTS, 256)),
    }
    for expert in range(EXPERTS):
        for part in ("w1", "w2", "w3"):
            tensors[f"{prefix}.ffn.experts.{expert}.{part}.weight"] = ("I8", (128, 128))
            tensors[f"{prefix}.ffn.experts.{expert}.{part}.scale"] = ("F8_E8M0", (128, 4))
    return tensors


def size_of(tensor: Tensor) -> int:
    """The bytes of a tensor's data."""
    kind, shape = tensor
    return WIDTHS[kind] * math.prod(shape)


def shard_name(number: int) -> str:
    return f"model-{number:05}-of-{SHARDS:05}.safetensors"


def safetensors(tensors: dict[str, Tensor], seed: bytes) -> bytes:
    """A safetensors file of these tensors, with noise for data."""
    return packed(tensors, hashlib.shake_256(seed).digest(sum(map(size_of, tensors.values()))))


def packed(tensors: dict[str, Tensor], data: bytes) -> bytes:
    """A safetensors file: eight bytes of header length, the JSON header padded to eight, the data without gaps."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + size_of(tensor)
        header[name] = {"dtype": tensor[0], "shape": list(tensor[1]), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def document(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


DSPARK = Repository("deepseek-ai/DeepSeek-V4-Flash-DSpark", "3c5ed1f0a94b27d86ef1a0b9c2d4e87f5a6b0c13", vision=False)
LATER = Repository(DSPARK.name, "b2f0447c61e9d85a3d0c7be15f1962a84cd3707e", vision=False, earlier=DSPARK)
TEXT_0731 = Repository("deepseek-ai/DeepSeek-V4-Flash-0731", "9e165c30e2704aec5d9d593cce3eebd58bbef1cb", vision=False)
VISION_EXP = Repository(
    "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp", "86f746b36186f0e567729a5c06a8c918caba82a9", vision=True
)

REPOSITORIES = {repository.name: repository for repository in (DSPARK, TEXT_0731, VISION_EXP)}
"""Repositories by name, each at the revision of its `main`."""
REVISIONS = {
    (repository.name, repository.revision): repository for repository in (DSPARK, LATER, TEXT_0731, VISION_EXP)
}
"""All repositories, by name and revision."""
