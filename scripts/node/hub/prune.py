"""List what a node's Hugging Face cache need not keep of the configured models, or remove what a list just showed.

Inputs (JSON argument): PruneInputs. Output: list prints a Listing, remove prints a Removed; bytes are bytes on disk.
Exit codes: 0 done; 1 refused or failed, the reason on stderr.

It removes nothing outside hub/models--<configured> and its locks, never follows a link to its target, and keeps a blob
while any snapshot of any model links to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

from hub.files import folder_name
from hub.lock import locked
from hub.manifest import DAMAGED, HASH, INCOMPLETE, PART
from hub.tree import (
    Hub,
    folders_in,
    held,
    leaves,
    names_in,
    read_hub,
    references,
    refuse_remote,
)
from hub.verified import NAME as VERIFIED
from hub.verified import VerifiedBlobs

LEFT_OVER = (INCOMPLETE, PART, DAMAGED)
ABOUT = ("refs", "trees", ".no_exist")
"""Folders of a model that hold notes on its revisions, not their files."""


class Kept(TypedDict):
    """Something that stays."""

    model: str
    what: str
    why: str
    bytes: int


class Row(Kept):
    """Something removable."""

    state: str
    """A hash that changes when one of its files does."""


class Expected(TypedDict, total=False):
    expect: list[Row]
    """remove: the candidates that a list just showed."""


class PruneInputs(Expected):
    action: Literal["list", "remove"]
    hf_cache: str
    models: list[str]
    """Repositories; others are not touched."""
    keep: dict[str, dict[str, str]]
    """By repository: the stack files that name a revision, by revision."""
    unneeded: dict[str, list[str]]
    """By repository: revisions that this node reads from the head."""


class Listing(TypedDict):
    hub: str
    free: int
    busy: bool
    """Whether a checkpoint job runs on the cache."""
    candidates: list[Row]
    kept: list[Kept]
    others: int
    """How many other models are in the cache."""


class Removed(TypedDict):
    removed: int
    free: int


class Candidate(NamedTuple):
    """Removable files and links, in the order of their removal, and folders to remove if they are empty then."""

    model: str
    what: str
    why: str
    paths: list[str]
    folders: list[str]

    def row(self) -> Row:
        freed, digest = 0, hashlib.sha256()
        for path in sorted(self.paths):
            status = os.lstat(path)
            # a file with another hard link keeps its bytes
            freed += on_disk(path) if status.st_nlink == 1 else 0
            digest.update(f"{path!r} {status.st_size} {status.st_mtime_ns} {status.st_ino}\n".encode())
        state = digest.hexdigest()[:16]
        return {"model": self.model, "what": self.what, "why": self.why, "bytes": freed, "state": state}


def on_disk(path: str) -> int:
    """Bytes of a regular file; 0 for anything else, and for a missing file."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return 0
    return status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0


def kept_for(hub: Hub, repo: str, model: str, keep: dict[str, str]) -> dict[str, str]:
    """Why to keep each revision that must stay; the first reason of several."""
    reasons = {revision: f"named by {files}" for revision, files in keep.items()}
    refs, on_disk = references(model), {os.path.basename(path) for path in folders_in(f"{model}/snapshots")}
    for name, command in hub.containers:
        used = {revision for revision in on_disk if revision in command}
        if not used and (repo in command or folder_name(repo) in command):
            used = set(refs.values())  # without a revision it follows a ref
        for revision in used:
            reasons.setdefault(revision, f"container {name} uses it")
    own = VerifiedBlobs(Path(model)).main
    for name, revision in refs.items():
        if (name, revision) != ("refs/main", own):
            reasons.setdefault(revision, f"{name}, which we did not write, points to it")
    return reasons


def revisions(
    hub: Hub, repo: str, model: str, reasons: dict[str, str], unneeded: list[str]
) -> tuple[list[Candidate], list[Kept]]:
    """Removable snapshots, each with the blobs that no other one links to, and those that stay."""
    candidates: list[Candidate] = []
    kept: list[Kept] = []
    snapshots = folders_in(f"{model}/snapshots")
    going = {path for path in snapshots if os.path.basename(path) not in reasons}
    needed = {hop for snapshot, hops in hub.links.items() if snapshot not in going for hop in hops}
    for snapshot in snapshots:
        revision = os.path.basename(snapshot)
        blobs = {path for path in hub.links[snapshot] if os.path.dirname(path) == f"{model}/blobs"}
        if snapshot not in going:
            size = sum(map(on_disk, {*blobs, *leaves(snapshot)}))
            kept.append(Kept(model=repo, what=f"revision {revision[:8]}", why=reasons[revision], bytes=size))
            continue
        why = "no stack file names it, and no container uses it"
        if revision in unneeded:
            why = "a copy of its own: this node reads the revision from the head (checkpoint.mode: nfs)"
        # huggingface_hub's notes on a revision: the files that it has, and files that it lacks
        tree, absent = f"{model}/trees/{revision}.json", f"{model}/.no_exist/{revision}"
        notes = [*leaves(absent), *([tree] if os.path.lexists(tree) else [])]
        refs = [f"{model}/{ref}" for ref, target in references(model).items() if target == revision]
        # links before their targets, so that an interrupted removal leaves no dangling link
        paths = [*leaves(snapshot), *notes, *refs]
        paths += sorted(path for path in blobs - needed if os.path.lexists(path))
        needed |= blobs  # a blob that two of them share goes with the first
        candidates.append(Candidate(repo, f"revision {revision[:8]}", why, paths, [snapshot, absent]))
    return candidates, kept


def broken_off(hub: Hub, repo: str, model: str) -> list[Candidate]:
    """What downloads and copies left behind and nothing links to."""
    blobs = [f"{model}/blobs/{name}" for name in names_in(f"{model}/blobs")]
    linked = {hop for hops in hub.links.values() for hop in hops}
    left = [path for path in blobs if path.endswith(LEFT_OVER)]
    orphans = [path for path in blobs if HASH.fullmatch(os.path.basename(path)) and path not in linked]
    return [
        Candidate(repo, f"{what}: {len(paths)}", why, paths, [])
        for paths, what, why in (
            (left, "left-over files", "begun by a download or copy that broke off"),
            (orphans, "unlinked blobs", "no snapshot links to them"),
        )
        if paths
    ]


def plan(hub: Hub, repo: str, keep: dict[str, str], unneeded: list[str]) -> tuple[list[Candidate], list[Kept]]:
    """What of one model is removable, and rows on what stays."""
    model, locks = f"{hub.path}/{folder_name(repo)}", f"{hub.path}/.locks/{folder_name(repo)}"

    def all_of_it(why: str) -> list[Kept]:
        return [Kept(model=repo, what="all of it", why=why, bytes=0)]

    parts = [model, f"{hub.path}/.locks", locks]
    parts += [f"{model}/{part}" for part in ("blobs", "snapshots", *ABOUT)]
    if linked := [part for part in parts if os.path.islink(part)]:
        return [], all_of_it(f"{linked[0]} is a link: what lies behind it is not touched")
    if not os.path.isdir(model):
        return [], []
    if lock := held(locks):
        return [], all_of_it(f"a program may be downloading into it: {lock} is held, or closed to us")
    candidates, kept = revisions(hub, repo, model, kept_for(hub, repo, model, keep), unneeded)
    candidates += broken_off(hub, repo, model)
    rest = set(leaves(model)) - {path for candidate in candidates for path in candidate.paths}
    about_it = (*(f"{model}/{part}/" for part in ABOUT), f"{model}/{VERIFIED}")
    if not kept and (foreign := sorted(path for path in rest if not path.startswith(about_it))):
        kept.append(Kept(model=repo, what="its folder", why=f"{foreign[0]} is neither ours nor the hub's", bytes=0))
    elif not kept:
        paths = sorted([*rest, *leaves(locks)])
        candidates.append(Candidate(repo, "its folder", "nothing else is left in it", paths, [model, locks]))
    for path in sorted(path for candidate in candidates for path in candidate.paths):
        if os.path.isdir(path) and not os.path.islink(path):
            raise SystemExit(f"{path} is a folder where a file is expected: nothing was removed, look at it yourself")
    return candidates, kept


def remove(hub: str, candidates: list[Candidate]) -> None:
    paths = [path for candidate in candidates for path in candidate.paths]
    roots = [folder for candidate in candidates for folder in candidate.folders]
    changed = {os.path.dirname(path) for path in [*paths, *roots]}
    if closed := sorted(path for path in changed if os.path.isdir(path) and not os.access(path, os.W_OK | os.X_OK)):
        raise SystemExit(
            f"{closed[0]} is closed to this user (owner: uid {os.stat(closed[0]).st_uid}), so nothing was removed: "
            f"sudo chown -R {os.getuid()}:{os.getgid()} {hub}, or let its owner prune"
        )
    for path in paths:
        os.unlink(path)
    # only now: if this breaks off, a ref that is still there must still be recorded as ours
    for repo in {candidate.model for candidate in candidates}:
        model = f"{hub}/{folder_name(repo)}"
        gone = {os.path.basename(path) for path in paths if os.path.dirname(path) == f"{model}/blobs"}
        VerifiedBlobs(Path(model)).forget(gone)
    for root in roots:
        for parent, _, _ in os.walk(root, topdown=False):
            with contextlib.suppress(OSError):  # not empty: somebody added a file
                os.rmdir(parent)


def run(inputs: PruneInputs, hub: str) -> Listing | Removed:
    removing = inputs["action"] == "remove"
    with locked(hub) as free:
        if removing and not free:
            raise SystemExit(f"a checkpoint job runs on {hub}: nothing was removed, wait until it ends, list again")
        tree = read_hub(hub)
        keep, unneeded = inputs["keep"], inputs["unneeded"]
        planned = [plan(tree, repo, keep.get(repo, {}), unneeded.get(repo, [])) for repo in inputs["models"]]
        candidates = [candidate for removable, _ in planned for candidate in removable]
        rows = [candidate.row() for candidate in candidates]
        if removing and rows != inputs.get("expect"):
            raise SystemExit(f"{hub} changed since it was listed: nothing was removed, list again")
        if removing:
            remove(hub, candidates)
            return {"removed": sum(row["bytes"] for row in rows), "free": shutil.disk_usage(hub).free}
    configured = {folder_name(repo) for repo in inputs["models"]}
    others = [name for name in names_in(hub) if name.startswith("models--") and name not in configured]
    kept = [row for _, rows in planned for row in rows]
    return {
        "hub": hub,
        "free": shutil.disk_usage(hub).free,
        "busy": not free,
        "candidates": rows,
        "kept": kept,
        "others": len(others),
    }


def main() -> None:
    inputs: PruneInputs = json.loads(sys.argv[1])
    hub = os.path.realpath(os.path.join(os.path.expanduser(inputs["hf_cache"]), "hub"))
    try:
        if not os.path.isdir(hub):
            raise SystemExit(f"there is no {hub}: nothing was ever downloaded to it, or its disk is not mounted")
        refuse_remote(hub)
        print(json.dumps(run(inputs, hub)))
    except OSError as error:
        raise SystemExit(
            f"{error.filename}: {error.strerror}: the cache changed while it was read, or this user may not read all "
            "of it: list again, and look at its owner"
        ) from None


if __name__ == "__main__":
    main()
