"""Small snapshots of a checkpoint in a hub cache, laid out as huggingface_hub lays them out."""

import hashlib
import json
import struct
from pathlib import Path

from hub.manifest import Entry, of_snapshot
from hub.verified import VerifiedBlobs

REPO, REVISION = "owner/name", "86f746b36186f0e567729a5c06a8c918caba82a9"
ENCODER = "encoding/encoding_dsv4.py"


def shard(size: int = 16, fill: int = 0) -> bytes:
    """A safetensors file whose one tensor has `size` bytes."""
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "U8", "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([fill]) * size


def names(count: int) -> list[str]:
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def contents(count: int = 3) -> dict[str, bytes]:
    """Path -> content of every file of a complete revision: shards, an index, an encoder."""
    index = {"weight_map": {f"layers.{number}.w": name for number, name in enumerate(names(count))}}
    files = {name: shard(16, number) for number, name in enumerate(names(count))}
    return {**files, "model.safetensors.index.json": json.dumps(index).encode(), ENCODER: b"PROMPT = 4\n"}


def blob_of(path: str, content: bytes) -> str:
    """The name that the hub gives a file's blob: sha256 for LFS, Git's own for the others."""
    if path.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def entries(count: int = 3) -> list[Entry]:
    """The manifest of a complete revision."""
    return [Entry(path, blob_of(path, content), len(content)) for path, content in sorted(contents(count).items())]


def put(hub: Path, path: str, content: bytes) -> Path:
    """One file of the revision: its blob, and the link to it. Returns the blob."""
    model = hub / "models--owner--name"
    blob, link = model / "blobs" / blob_of(path, content), model / "snapshots" / REVISION / path
    for folder in (blob.parent, link.parent):
        folder.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(f"{'../' * (2 + path.count('/'))}blobs/{blob.name}")
    return blob


def snapshot(hub: Path, count: int = 3) -> Path:
    """A complete snapshot below `hub`. Returns its folder."""
    for path, content in contents(count).items():
        put(hub, path, content)
    return hub / "models--owner--name" / "snapshots" / REVISION


def verify(folder: Path) -> None:
    """What a job leaves beside a snapshot whose content is right: its list of files, and their blobs as verified."""
    verified = VerifiedBlobs(folder.parent.parent)
    verified.keep_list(folder.name, [(entry.path, entry.blob, entry.size) for entry in of_snapshot(folder) or []])
    for entry in of_snapshot(folder) or []:
        verified.add(entry.blob, (folder / entry.path).resolve())
