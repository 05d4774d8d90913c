"""The checkpoint as the engine reads it: where the model is, what the index names, each shard's header."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SafetensorError
from .models.deepseek_v4.nvidia.model import DeepseekV4ForCausalLM

INDEX = "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000
"""The longest header that safetensors reads, in bytes."""


@dataclass(frozen=True)
class Checkpoint:
    """A local snapshot."""

    folder: Path
    config: dict[str, Any]
    shards: dict[str, set[str]]
    """The tensors that the index expects in each shard, by file name in order."""

    @property
    def has_vision(self) -> bool:
        return "vision_config" in self.config


def hub_cache() -> Path:
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub")))


def locate(model: str, revision: str | None) -> Path:
    """The snapshot folder of a local path or of a repository in the cache. Raises OSError without one."""
    if os.path.isdir(model):
        return Path(model)
    repository = hub_cache() / f"models--{model.replace('/', '--')}"
    commit = revision or "main"
    # a download of a pinned commit writes no ref, so a repository name without a commit is not found after it
    ref = repository / "refs" / commit
    if ref.is_file():
        commit = ref.read_text()
    folder = repository / "snapshots" / commit
    if not (folder / "config.json").is_file():
        raise OSError(
            "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached "
            f"files.\nThere is no {folder}/config.json for '{model}' at revision '{revision or 'main'}'. "
            "Check your internet connection or see how to run the library in offline mode."
        )
    return folder


def open_checkpoint(model: str, revision: str | None) -> Checkpoint:
    """Open a snapshot. Raises OSError or ValueError if the folder is not a checkpoint."""
    folder = locate(model, revision)
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise ValueError(
            f"Invalid repository ID or local directory specified: '{model}'.\nThere is no config.json in it."
        )
    config = json.loads(config_file.read_text())
    try:
        weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    except FileNotFoundError:
        raise RuntimeError(f"Cannot find any model weights with `{folder}`: no {INDEX}") from None
    shards: dict[str, set[str]] = {}
    for tensor, shard in sorted(weight_map.items(), key=lambda item: (item[1], item[0])):
        shards.setdefault(shard, set()).add(tensor)
    return Checkpoint(folder, config, shards)


def read_header(file: Path) -> dict[str, Any]:
    """The tensors of one shard: name -> dtype, shape, data_offsets.

    Raises FileNotFoundError for a missing file or a dangling link, and SafetensorError, which names no file, for a
    truncated one.
    """
    if not file.is_file():
        raise FileNotFoundError(f"No such file or directory: {str(file)!r}")
    size = file.stat().st_size
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        fault = (
            "header too small" if size < 8
            else "header too large" if length > HEADER_LIMIT
            else "invalid header length" if length > size - 8
            else ""
        )  # fmt: skip
        header: dict[str, Any] = {}
        if not fault:
            try:
                header = json.loads(content.read(length))
            except ValueError:
                fault = "invalid JSON in header"
    header.pop("__metadata__", None)
    if not fault and max((entry["data_offsets"][1] for entry in header.values()), default=0) != size - 8 - length:
        fault = "incomplete metadata, file not fully covered"
    if fault:
        raise SafetensorError(f"Error while deserializing header: {fault}")
    return header


def load_shard(checkpoint: Checkpoint, shard: str) -> None:
    """Read one shard's header, compare it with the index, and load its tensors.

    KeyError names a tensor that the shard lacks; the model's own errors name one that it has no place for.
    """
    held = read_header(checkpoint.folder / shard)
    if absent := sorted(checkpoint.shards[shard] - held.keys()):
        raise KeyError(f"{absent[0]} ({shard} does not have it, the index says it does)")
    DeepseekV4ForCausalLM.load_weights(held)
