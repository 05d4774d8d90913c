"""A checkpoint that a real vLLM serves on a CPU: a Qwen2 of 1.5 MB with noise for weights, in 48 shards.

Its vocabulary is the 256 bytes and three special tokens, so it reads any text, and answers noise. Every byte is
derived from the name and the revision, as in checkpoint.py.
"""

from __future__ import annotations

import hashlib
import math
import struct
from functools import cached_property

from lab.hub.checkpoint import ENCODING, SHARDS, File, Repository, Tensor, document, packed, shard_name, size_of

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 4, 128, 4, 2, 32, 256
CONTEXT = 8192
SPREAD = 0.09
"""The largest weight."""
ONE = struct.pack("<f", 1.0)[2:]
"""1.0 as BF16: the upper half of a float."""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def letters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary: itself, or one above 255 if not printable."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    above = iter(range(256, 512))
    return [chr(byte if byte in printable else next(above)) for byte in range(256)]


VOCABULARY = [*SPECIAL, *letters()]


def noise(count: int, seed: bytes) -> bytes:
    """`count` BF16 weights between -SPREAD and SPREAD, little-endian."""
    values = [struct.pack("<f", (2 * byte / 255 - 1) * SPREAD)[2:] for byte in range(256)]
    drawn = hashlib.shake_256(seed).digest(count)
    weights = bytearray(2 * count)
    for half in (0, 1):
        weights[half::2] = drawn.translate(bytes(value[half] for value in values))
    return bytes(weights)


def all_tensors() -> dict[str, Tensor]:
    """The whole model's, by name."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(VOCABULARY), HIDDEN),
        "lm_head.weight": (len(VOCABULARY), HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            shapes[f"{layer}.self_attn.{part}_proj.weight"] = (heads * HEAD_DIM, HIDDEN)
            shapes[f"{layer}.self_attn.{part}_proj.bias"] = (heads * HEAD_DIM,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes[f"{layer}.mlp.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[f"{layer}.mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[f"{layer}.mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
        for part in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{part}.weight"] = (HIDDEN,)
    return {name: ("BF16", shape) for name, shape in shapes.items()}


def weights(tensors: dict[str, Tensor], seed: bytes) -> bytes:
    """The data of these tensors: norms are ones, the rest is noise."""
    counts = {name: math.prod(shape) for name, (_, shape) in tensors.items()}
    return b"".join(ONE * n if "norm" in name else noise(n, seed + name.encode()) for name, n in counts.items())


def tokenizer() -> dict[str, object]:
    """tokenizer.json: every byte is a token."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": token, **plain} for number, token in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(VOCABULARY)},
            "merges": [],
        },
    }


CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "vocab_size": len(VOCABULARY),
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": CONTEXT,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "model_max_length": CONTEXT,
    "clean_up_tokenization_spaces": False,
    "chat_template": TEMPLATE,
}


class Tiny(Repository):
    """The repository as the hub serves it, with files of its own."""

    @cached_property
    def files(self) -> dict[str, File]:
        tensors = all_tensors()
        parts: list[dict[str, Tensor]] = [{} for _ in range(SHARDS)]
        weight_map = {}
        for number, (name, tensor) in enumerate(tensors.items()):
            parts[number % SHARDS][name] = tensor
            weight_map[name] = shard_name(number % SHARDS + 1)
        total = sum(map(size_of, tensors.values()))
        texts = {
            "README.md": f"# {self.name}\n\nFor a real vLLM on a CPU: the weights are noise.\n",
            "config.json": document(CONFIG),
            "generation_config.json": document({"bos_token_id": 0, "eos_token_id": 2}),
            "model.safetensors.index.json": document({"metadata": {"total_size": total}, "weight_map": weight_map}),
            "tokenizer.json": document(tokenizer()),
            "tokenizer_config.json": document(TOKENIZER_CONFIG),
            # the engine uses the chat template; a rank's start replaces the image's encoder all the same
            "encoding/encoding_dsv4.py": ENCODING.read_text().replace("REVISION", self.revision[:8]),
        }
        found = [File(path, text.encode(), lfs=False) for path, text in texts.items()]
        seed = f"{self.name}@{self.revision}/".encode()
        for number, part in enumerate(parts, 1):
            found.append(File(shard_name(number), packed(part, weights(part, seed)), lfs=True))
        return {file.path: file for file in sorted(found, key=lambda file: file.path)}


TINY = Tiny("tiny/qwen2", "5b0c7f0d5e1f4b4c9c0d8a7e6f1b2a3c4d5e6f70", vision=False)
