"""The guest image: built once for each set of inputs, booted once so that Docker settles, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lab import access
from lab.machines.machine import Machine
from lab.place import CHECKOUT, MACHINES, NODE_ROOT, PAIRS, Node, Place, cache
from lab.report import long_step, say, wait_for

BUILD_LIMIT_S = 1800
POWER_OFF_LIMIT_S = 120

BAKE = """\
set -eu
# Docker's own networks and layout exist now; what identifies one machine must not stay
docker network ls >/dev/null
systemctl stop docker.socket docker.service containerd.service
rm -rf /etc/docker/key.json /etc/lab/seeded /etc/lab/fabric /root/.ssh /home/spark/.ssh /var/lib/nfs/etab
rm -f /etc/ssh/ssh_host_* /var/log/*.log
: >/etc/machine-id
: >/etc/hostname
fstrim / || true
sync
systemctl poweroff
"""


SOURCE = CHECKOUT / "lab" / "machines" / "image"


def key(*sources: Path) -> str:
    """A hash over the names, modes and bytes of the image's inputs."""
    digest = hashlib.sha256()
    for source in sources or (SOURCE, NODE_ROOT):
        for path in sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            executable = "x" if os.access(path, os.X_OK) else "-"
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(source)} {executable} {content}\n".encode())
    return digest.hexdigest()[:16]


def folder() -> Path:
    """The folder where the image of the present inputs is, or will be."""
    return cache() / "lab-image" / key()


def ensure(accelerator: str) -> Path:
    """The image's folder. Builds the image first if the cache has none, which takes one to four minutes."""
    done = folder()
    if done.exists():
        return done
    done.parent.mkdir(parents=True, exist_ok=True)
    say(f"image: {done.parent} has no guest for these inputs yet; building {done.name} (a few minutes, once)")
    work = Path(tempfile.mkdtemp(prefix=f".building-{done.name}-", dir=done.parent))
    try:
        long_step("image: the guest's disk", [SOURCE / "build", work], work / "build.log", limit_s=BUILD_LIMIT_S)
        _bake(work, accelerator)
        os.replace(work, done)
    except OSError:
        # another checkout finished the same image first
        if not done.exists():
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"image: {done.name} is in the cache")
    return done


def _bake(work: Path, accelerator: str) -> None:
    """Boot the new disk once so that Docker sets up its state, then remove what identifies one machine."""
    say("image: first boot, so that Docker sets up its state")
    # a name of its own, so that it gets no fabric, and a port that no pair uses
    place = Place(work / "bake", MACHINES, PAIRS)
    node = Node("bake", 0)
    access.prepare(place, (node,))
    machine = Machine(place, node, accelerator, work)
    machine.make_disk()
    machine.start()
    try:
        machine.boot().wait_ready()
        done = access.run(place, node, ["bash", "-s"], stdin=BAKE, limit_s=120)
        wait_for(
            "image: the first boot's power off",
            lambda: machine.pid() is None,
            limit_s=POWER_OFF_LIMIT_S,
            evidence=lambda: f"{done.stderr.strip()}\n{machine.console_tail()}",
        )
    finally:
        machine.kill()
    subprocess.run(["qemu-img", "commit", "-q", str(machine.disk)], check=True, timeout=300)
    shutil.rmtree(place.root)
    shutil.rmtree(place.control_sockets, ignore_errors=True)
