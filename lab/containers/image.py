"""The image of a node-container: built from Debian's packages once for each set of inputs, kept in the cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from lab.containers.docker import LABEL, Docker
from lab.place import cache
from lab.report import long_step, say

SOURCE = Path(__file__).parent
INPUTS = ("build", "packages.txt")
BUILD_LIMIT_S = 900


def key() -> str:
    """A hash over the inputs of the root file system."""
    return hashlib.sha256(b"\0".join((SOURCE / name).read_bytes() for name in INPUTS)).hexdigest()[:16]


def ensure(docker: Docker) -> str:
    """The image's name on this daemon. Imports the image if the daemon lacks it; builds it first if the cache does."""
    name = f"spark-lab-node:{key()}"
    tar = cache() / "node-image" / f"{key()}.tar"
    tar.parent.mkdir(parents=True, exist_ok=True)
    with tar.with_suffix(".lock").open("w") as lock:
        # with pairs side by side, one builds and imports, and the others wait for it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if docker.call("image", "inspect", name).returncode != 0:
            if not tar.exists():
                _build(tar)
            say("node image: importing it into Docker")
            docker.run("import", "--change", f"LABEL {LABEL}=image", str(tar), name, limit_s=300)
    return name


def _build(tar: Path) -> None:
    part = tar.with_suffix(f".{os.getpid()}.part")
    what = "node image: installing Debian's packages, once (a minute and a half)"
    try:
        long_step(what, [SOURCE / "build", part], tar.with_suffix(".log"), limit_s=BUILD_LIMIT_S)
        part.rename(tar)
    finally:
        part.unlink(missing_ok=True)
