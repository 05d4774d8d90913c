"""A Hugging Face cache to prune: models with blobs, snapshots and refs as huggingface_hub lays them out."""

import hashlib
import json
import os
from pathlib import Path

REPO, OTHER = "owner/name", "someone/else"
OLD, NEW = "3c5ed1f0a94b27d86ef1a0b9c2d4e87f5a6b0c13", "b2f0447c61e9d85a3d0c7be15f1962a84cd3707e"
BLOCK = 8192
"""Bytes of a blob: whole blocks of every file system, so that its size on disk is its size."""


def folder(hub: Path, repo: str = REPO) -> Path:
    return hub / f"models--{repo.replace('/', '--')}"


def blob(hub: Path, text: str, repo: str = REPO) -> Path:
    """A blob of that content, made when it is not there."""
    content = text.encode().ljust(BLOCK, b".")
    path = folder(hub, repo) / "blobs" / hashlib.sha256(content).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with path.open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())  # some file systems allocate late
    return path


def link(hub: Path, revision: str, name: str, target: Path, repo: str = REPO) -> Path:
    path = folder(hub, repo) / "snapshots" / revision / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
    return path


def snapshot(hub: Path, revision: str, texts: dict[str, str], repo: str = REPO) -> Path:
    """A revision whose files have these contents."""
    for name, text in texts.items():
        link(hub, revision, name, blob(hub, text, repo), repo)
    return folder(hub, repo) / "snapshots" / revision


def ref(hub: Path, revision: str, name: str = "main", repo: str = REPO) -> Path:
    path = folder(hub, repo) / "refs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(revision)
    return path


def note_verified(hub: Path, main: str | None = None, repo: str = REPO) -> Path:
    """Our list of verified blobs, as after every blob was verified."""
    verified = {}
    for path in (folder(hub, repo) / "blobs").iterdir():
        status = path.stat()
        verified[path.name] = [status.st_size, status.st_mtime_ns, status.st_ino]
    path = folder(hub, repo) / ".spark-stack.json"
    path.write_text(json.dumps({"verified": verified, **({"main": main} if main else {})}))
    return path


def lock(hub: Path, name: str, repo: str = REPO) -> Path:
    """A lock file as huggingface_hub leaves it, held by nobody."""
    path = hub / ".locks" / folder(hub, repo).name / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def tree(path: Path) -> dict[str, object]:
    """Everything below a folder: a link's target, or a file's content and time."""
    entries: dict[str, object] = {}
    for each in sorted(path.rglob("*")):
        name = str(each.relative_to(path))
        if each.is_symlink():
            entries[name] = os.readlink(each)
        elif each.is_file():
            entries[name] = (each.read_bytes(), each.stat().st_mtime_ns)
        else:
            entries[name] = "folder"
    return entries
