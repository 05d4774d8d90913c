"""A Hugging Face cache as it is now: its snapshots' links, its refs, and who reads or writes it.

Reads only. Follows links step by step and never walks into them, so it lists a tree's own files only.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from host import dockerd
from hub.manifest import PART

REMOTE = ("nfs", "cifs", "smb", "fuse.sshfs", "9p")


class Hub(NamedTuple):
    path: str
    links: dict[str, set[str]]
    """The paths that a snapshot's links lead through, by snapshot, of every model."""
    containers: list[tuple[str, str]]
    """Name and command (with its environment, so never print it) of each running container that may read the cache."""


def read_hub(path: str) -> Hub:
    """Raises OSError if a part cannot be read, SystemExit if dockerd does not answer."""
    try:
        running = list(containers(path))
    except (dockerd.DockerError, OSError) as error:
        raise SystemExit(
            f"dockerd does not say which containers run ({dockerd.where()}: {error}), so revisions in use are "
            "unknown: look at `systemctl status docker`"
        ) from None
    return Hub(path, links_of(path), running)


def links_of(hub: str) -> dict[str, set[str]]:
    snapshots = [each for model in folders_in(hub) for each in folders_in(f"{model}/snapshots")]
    return {each: {hop for leaf in leaves(each) for hop in hops(leaf)} for each in snapshots}


def stop(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def leaves(folder: str) -> list[str]:
    """All files and links below a folder, none if it does not exist. Raises OSError if a part cannot be read."""
    leaves: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=stop):
        paths = [os.path.join(parent, name) for name in folders]
        leaves += [path for path in paths if os.path.islink(path)]
        leaves += [os.path.join(parent, name) for name in names]
    return leaves


def names_in(folder: str) -> list[str]:
    """Empty for a missing folder. Raises PermissionError for one that is closed to us."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def folders_in(folder: str) -> list[str]:
    """Paths of the real folders in a folder."""
    paths = [os.path.join(folder, name) for name in names_in(folder)]
    return [path for path in paths if stat.S_ISDIR(os.lstat(path).st_mode)]


def hops(link: str) -> Iterator[str]:
    """Each path that a link leads through, with the links of its folder resolved; the last one may be missing."""
    for _ in range(40):
        if not os.path.islink(link):
            return
        target = os.path.join(os.path.dirname(link), os.readlink(link))
        link = os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target))
        yield link


def containers(hub: str) -> Iterator[tuple[str, str]]:
    for entry in dockerd.get("/containers/json"):
        try:
            detail = dockerd.get(f"/containers/{entry['Id']}/json")
        except dockerd.DockerError as error:
            if error.status == 404:  # ended since it was listed
                continue
            raise
        config, mounts = detail["Config"], detail.get("Mounts") or []
        binds = [os.path.realpath(mount["Source"]) for mount in mounts if mount.get("Type") == "bind"]
        shares = any(os.path.commonpath([source, hub]) in (source, hub) for source in binds)
        # our rank that mounts the head's cache over NFS names the revision, but does not read this copy
        if shares or "spark.stack" not in (config.get("Labels") or {}):
            yield detail["Name"].lstrip("/"), json.dumps([config.get(key) for key in ("Entrypoint", "Cmd", "Env")])


def held(locks: str) -> str | None:
    """The first of a model's locks that another program holds: huggingface_hub takes one for each download."""
    for path in sorted(leaves(locks)):
        try:
            with open(path) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return path
    return None


def references(model: str) -> dict[str, str]:
    """Revision by name of the ref, such as refs/main."""
    refs = [path for path in leaves(f"{model}/refs") if os.path.isfile(path) and not path.endswith(PART)]
    return {os.path.relpath(path, model): Path(path).read_text(errors="replace").strip() for path in refs}


def refuse_remote(hub: str) -> None:
    """Exit if the hub is on another machine's disk, whose containers we cannot see."""
    device = os.stat(hub).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == number and after.startswith(REMOTE):
            kind, source = after.split()[:2]
            raise SystemExit(f"{hub} is on {source} ({kind}), another machine's disk: prune it there")
