"""Makes an OCI image from layer files, byte for byte the same from the same inputs, and pushes it to a registry.

This needs no Docker daemon and no container tool: an image is two JSON documents beside its layers, and a push is a few
HTTP requests of the distribution API. Every file has the same time, so a rebuild has the same digest and replaces
nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

EPOCH = 1764460800
"""The modification time of every file of a layer, in seconds; CREATED is the same time."""

CREATED = "2025-11-30T00:00:00Z"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
CHUNK = 1 << 20


@dataclass(frozen=True)
class Layer:
    """One layer: its compressed file, that file's digest and size, and the digest of the tar inside (`diff_id`)."""

    file: Path
    digest: str
    size: int
    diff_id: str


@dataclass(frozen=True)
class Image:
    """What a registry gets. `digest` is the manifest's, the one to pull by."""

    layers: list[Layer]
    config: bytes
    manifest: bytes
    digest: str


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def compress(tar: IO[bytes], out: Path, level: int = 12) -> Layer:
    """Write a tar stream as a layer at `out` (whole or not at all), with a `.json` beside it for `reopen`.

    It uses zstd, which an emulated machine unpacks in half of gzip's time. Raises OSError if the zstd program fails.
    """
    inside = hashlib.sha256()
    part = out.with_name(out.name + ".part")
    with part.open("wb") as packed:
        zstd = subprocess.Popen(["zstd", "-q", f"-{level}", "--single-thread"], stdin=subprocess.PIPE, stdout=packed)
        assert zstd.stdin is not None
        while chunk := tar.read(CHUNK):
            inside.update(chunk)
            zstd.stdin.write(chunk)
        zstd.stdin.close()
        if code := zstd.wait():
            raise OSError(f"zstd ended with exit code {code}")
    outside = hashlib.sha256()
    with part.open("rb") as written:
        while chunk := written.read(CHUNK):
            outside.update(chunk)
    layer = Layer(out, f"sha256:{outside.hexdigest()}", part.stat().st_size, f"sha256:{inside.hexdigest()}")
    out.with_suffix(".json").write_text(json.dumps({"digest": layer.digest, "diff_id": layer.diff_id}))
    part.rename(out)
    return layer


def reopen(file: Path) -> Layer | None:
    """A layer that `compress` wrote earlier; None if there is none."""
    try:
        note = json.loads(file.with_suffix(".json").read_text())
        return Layer(file, note["digest"], file.stat().st_size, note["diff_id"])
    except (OSError, ValueError, KeyError):
        return None


def tar_of(files: dict[str, tuple[bytes, int]]) -> io.BytesIO:
    """A tar of path -> (content, mode), owned by root, with every parent folder. Plain files only."""
    folders = {str(parent) for path in files for parent in Path(path).parents} - {"."}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted({*folders, *files}):
            entry = tarfile.TarInfo(path)
            entry.mtime = EPOCH
            if path in files:
                content, entry.mode = files[path]
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
            else:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
    out.seek(0)
    return out


def image_of(layers: list[Layer], runtime_config: dict[str, Any]) -> Image:
    """A linux/amd64 image of the layers, lowest first. `runtime_config` is OCI's `config`: Env, Entrypoint, Cmd, ..."""
    config = {
        "created": CREATED,
        "architecture": "amd64",
        "os": "linux",
        "config": runtime_config,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": CREATED, "created_by": layer.file.name} for layer in layers],
    }
    config_bytes = json.dumps(config, sort_keys=True).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": sha256(config_bytes), "size": len(config_bytes)},
        "layers": [{"mediaType": LAYER_TYPE, "digest": layer.digest, "size": layer.size} for layer in layers],
    }
    manifest_bytes = json.dumps(manifest, sort_keys=True).encode()
    return Image(layers, config_bytes, manifest_bytes, sha256(manifest_bytes))


class Registry:
    """A registry that speaks plain HTTP, like the lab's."""

    def __init__(self, address: str, *, timeout_s: float = 60) -> None:
        self.base = f"http://{address}"
        self.timeout_s = timeout_s

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """Status and Location header of a request. Only a server error raises."""
        url = path if path.startswith("http") else self.base + path
        request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
                return reply.status, reply.headers.get("Location", "")
        except urllib.error.HTTPError as refusal:
            if refusal.code >= 500:
                raise
            return refusal.code, ""

    def answers(self) -> bool:
        try:
            return self.ask("GET", "/v2/")[0] == 200
        except OSError:
            return False

    def has(self, name: str, digest: str) -> bool:
        return self.ask("HEAD", f"/v2/{name}/manifests/{digest}", headers={"Accept": MANIFEST_TYPE})[0] == 200

    def push(self, image: Image, name: str, tag: str) -> None:
        """Upload what the registry lacks, then the manifest under `tag`. Raises OSError if the registry refuses."""
        config = io.BytesIO(image.config)
        self._blob(name, sha256(image.config), len(image.config), config)
        for layer in image.layers:
            with layer.file.open("rb") as content:
                self._blob(name, layer.digest, layer.size, content)
        status, _ = self.ask("PUT", f"/v2/{name}/manifests/{tag}", image.manifest, {"Content-Type": MANIFEST_TYPE})
        if status != 201:
            raise OSError(f"{self.base} refused the manifest of {name}:{tag} with status {status}")

    def _blob(self, name: str, digest: str, size: int, content: IO[bytes]) -> None:
        if self.ask("HEAD", f"/v2/{name}/blobs/{digest}")[0] == 200:
            return
        status, location = self.ask("POST", f"/v2/{name}/blobs/uploads/", b"")
        if status != 202:
            raise OSError(f"{self.base} refused an upload for {name} with status {status}")
        url = f"{location}{'&' if '?' in location else '?'}digest={digest}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        status, _ = self.ask("PUT", url, content, headers)
        if status != 201:
            raise OSError(f"{self.base} refused blob {digest} of {name} with status {status}")
