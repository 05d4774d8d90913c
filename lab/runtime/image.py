"""The lab's runtime image: what goes into it, when it must be built again, and how.

It has two layers. The base (Debian, Python, huggingface_hub) takes half a minute to build and is keyed by its script
and the requirements. The thin one has the stand-in `vllm` and takes a second, so changing the stand-in is cheap.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from lab.place import CHECKOUT, cache
from lab.report import LabError, long_step, say
from lab.runtime import oci

SOURCE = CHECKOUT / "lab" / "runtime"
BASE_SCRIPT = SOURCE / "base-rootfs"
REQUIREMENTS = SOURCE / "requirements.txt"
STAND_IN = SOURCE / "vllm"
PROGRAMS = SOURCE / "bin"

NAME = "anemll/dspark-vllm-gx10"
TAG = "0.1.1"
BASE_TAG = "base"
"""The tag of the base layer alone. A machine that has pulled it pulls the whole image in seconds."""
PYTHON = "3.13"
PACKAGES = "usr/local/lib/python3.12/dist-packages"
"""Where the real image has the vllm package, and where a rank's start therefore looks for it."""

BASE_LIMIT_S = 900

CONFIG = {
    "Env": [
        "PATH=/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LD_LIBRARY_PATH=/usr/local/cuda/lib64",
        "PYTHONUNBUFFERED=1",
        # the real image names an interface of the machine it was built on; a rank that inherits it fails in Gloo
        "GLOO_SOCKET_IFNAME=enP7s7",
    ],
    "Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"],
    "Cmd": ["bash"],
    "WorkingDir": "/workspace",
    "Labels": {"spark.lab": "runtime stand-in"},
}


def key_of(*parts: bytes) -> str:
    """A hash over the parts in order, sixteen hex digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def stand_in_files() -> dict[str, tuple[bytes, int]]:
    """The files of the thin layer: path in the image -> (content, mode)."""
    files: dict[str, tuple[bytes, int]] = {}
    for path in sorted(STAND_IN.rglob("*.py")):
        files[f"{PACKAGES}/vllm/{path.relative_to(STAND_IN)}"] = (path.read_bytes(), 0o644)
    for path in sorted(PROGRAMS.iterdir()):
        place = "opt/nvidia" if path.suffix == ".sh" else "usr/local/bin"
        files[f"{place}/{path.name}"] = (path.read_bytes(), 0o755)
    files["workspace/.keep"] = (b"", 0o644)
    files["usr/local/cuda/bin/.keep"] = (b"", 0o644)
    return files


def installer() -> list[str]:
    """The command of a Python that has pip: the checkout's environment, or else the one that runs this."""
    for python in (CHECKOUT / ".venv" / "bin" / "python", Path(sys.executable)):
        if python.exists() and subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0:
            return [str(python), "-m", "pip"]
    raise LabError("the runtime image needs pip on the control host, but no Python here has it\n  way out: make setup")


def base_layer() -> oci.Layer:
    """The base layer, from the cache or built now."""
    folder = cache() / "runtime-image" / f"base-{key_of(BASE_SCRIPT.read_bytes(), REQUIREMENTS.read_bytes())}"
    file = folder / "base.tar.zst"
    if layer := oci.reopen(file):
        return layer
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        site, tar = Path(scratch) / "site", Path(scratch) / "base.tar"
        platforms = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
        install: list[str | Path] = [
            *installer(), "install", "--no-deps", "--no-compile", "--require-hashes", "--only-binary=:all:",
            "--disable-pip-version-check", "--implementation", "cp", "--python-version", PYTHON,
            *(word for platform in platforms for word in ("--platform", platform)),
            "--target", site, "-r", REQUIREMENTS,
        ]  # fmt: skip
        long_step("runtime image: fetching the wheels of huggingface_hub", install, log, limit_s=BASE_LIMIT_S)
        what = "runtime image: installing Debian and Python (half a minute, once)"
        long_step(what, [BASE_SCRIPT, site, tar], log, limit_s=BASE_LIMIT_S)
        say("runtime image: compressing the base layer")
        with tar.open("rb") as content:
            return oci.compress(content, file)


def thin_layer(name: str, files: dict[str, tuple[bytes, int]], folder: Path) -> oci.Layer:
    """The layer of these files (path in the image -> content, mode), from the cache or made now, which takes a second.

    `folder` is where the cache has the layers of its image. The image's history shows `name`.
    """
    parts = [part for path, (content, mode) in files.items() for part in (path.encode(), content, oct(mode).encode())]
    file = folder / key_of(*parts) / f"{name}.tar.zst"
    if layer := oci.reopen(file):
        return layer
    file.parent.mkdir(parents=True, exist_ok=True)
    layer = oci.compress(oci.tar_of(files), file)
    say(f"built the layer {name}, {layer.size // 1024} KiB")
    return layer


def build() -> tuple[oci.Image, oci.Image]:
    """The image of this checkout's files, and one of its base layer alone, which can be pulled in advance.

    What is in the cache is not built again.
    """
    base = base_layer()
    thin = thin_layer("stand-in", stand_in_files(), base.file.parent)
    return oci.image_of([base, thin], CONFIG), oci.image_of([base], CONFIG)
