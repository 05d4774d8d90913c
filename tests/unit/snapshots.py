"""Small snapshots of a checkpoint in a hub cache, laid out as huggingface_hub lays them out."""

import json
import struct
from pathlib import Path

REPO, REVISION = "owner/name", "86f746b36186f0e567729a5c06a8c918caba82a9"
ENCODER = "encoding/encoding_dsv4.py"


def shard(size: int = 16) -> bytes:
    """A safetensors file whose one tensor has `size` bytes."""
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "U8", "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


def names(count: int) -> list[str]:
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def snapshot(hub: Path, count: int = 3) -> Path:
    """A whole snapshot below `hub`: links to blobs, an index, an encoder. Returns its folder."""
    model = hub / "models--owner--name"
    folder = model / "snapshots" / REVISION
    (folder / "encoding").mkdir(parents=True)
    (model / "blobs").mkdir()
    for name in names(count):
        (model / "blobs" / f"blob-of-{name}").write_bytes(shard())
        (folder / name).symlink_to(f"../../blobs/blob-of-{name}")
    index = {"weight_map": {f"layers.{number}.w": name for number, name in enumerate(names(count))}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / ENCODER).write_text("PROMPT = 4\n")
    return folder
