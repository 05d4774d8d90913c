"""Make or remove the stack's own folder on a node.

Inputs (JSON argument): FolderInputs. Output: make prints a Folder; remove prints nothing.
Exit codes: 0 done; 1 refused or failed, the reason on stderr.

make refuses a new folder while containers of the stack exist: another state manages them, or their state was lost.
remove also removes left-over containers with the stack's label, and checks that nothing of ours is left. Neither
touches images or the hub cache.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, TypedDict

from host import remove_trees
from host.console import say
from loader import text_of

MARKER = ".spark-stack"


class FolderInputs(TypedDict):
    action: Literal["make", "remove"]
    stack: str
    hf_cache: str
    new: bool
    """Whether the state has no folder yet."""


class Folder(TypedDict):
    folder: str
    """Absolute path of our folder."""
    hub: str
    """Absolute path of the hub cache."""


def folder_of(stack: str) -> Path:
    return Path.home() / ".local" / "share" / "spark-stack" / stack


def is_ours(folder: Path, stack: str) -> bool:
    marker = folder / MARKER
    return marker.is_file() and marker.read_text().strip() == stack


def make(stack: str, hf_cache: str, *, new: bool) -> Folder:
    folder = folder_of(stack)
    if new and is_ours(folder, stack) and (containers := left_over(stack)):
        raise SystemExit(
            f"{len(containers)} container(s) of stack {stack} are on this node, but this state does not know them: "
            "another state manages this pair, or its state was lost. Use that state, or remove them: "
            f"docker rm -f {' '.join(identity[:12] for identity in containers)}"
        )
    if folder.exists() and any(folder.iterdir()) and not is_ours(folder, stack):
        raise SystemExit(
            f"{folder} holds files and has no marker of stack {stack}, so it is not ours to use: move it away"
        )
    # closed to the node's other users, since a rank's /tmp is open to all in its container
    for name, mode in (("", 0o700), ("cache", 0o755), ("tmp", 0o1777), ("secrets", 0o700)):
        path = folder / name
        path.mkdir(parents=True, exist_ok=True)
        if path.stat().st_uid == os.getuid():  # a rank, as root, may own its folder by now
            path.chmod(mode)
    (folder / MARKER).write_text(stack + "\n")
    hub = Path(hf_cache).expanduser() / "hub"
    try:
        hub.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(
            f"the hub cache {hub} cannot be made: {error}: is its disk mounted, and who owns its parent?"
        ) from None
    return {"folder": str(folder), "hub": str(hub.resolve())}


def left_over(stack: str) -> list[str]:
    """Ids of all containers with the stack's label, running or not."""
    listed = docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label=spark.stack={stack}")
    return listed.stdout.split()


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise SystemExit("docker is not on the PATH of an SSH session on this node") from None
    if done.returncode:
        raise SystemExit(f"docker {arguments[0]} failed: {done.stderr.strip()}")
    return done


def remove(stack: str) -> None:
    folder = folder_of(stack)
    if not folder.exists():
        # also the first half of a repair, beside ranks that the state knows
        say(f"{folder} is already gone")
        return
    if not is_ours(folder, stack):
        raise SystemExit(f"{folder} lost its marker of stack {stack}: nothing was removed, look at it yourself")
    if containers := left_over(stack):
        say(f"removing {len(containers)} left-over container(s) of stack {stack}")
        docker("rm", "--force", "--volumes", *containers)
    if volumes := docker("volume", "ls", "--quiet", "--filter", f"label=spark.stack={stack}").stdout.split():
        # a rank's NFS mount, left by a removal that was cut
        docker("volume", "rm", *volumes)
    empty(folder)
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # another stack has a folder beside it
        folder.parent.rmdir()
    if folder.exists() or left_over(stack):
        raise SystemExit(
            f"{folder} or a container of stack {stack} is still there after its removal: run destroy again"
        )
    # else a container removed seconds before a power cut can come back: the daemon's files are not on disk yet
    os.sync()


def empty(folder: Path) -> None:
    """Remove root's files with a container of the image whose ranks wrote them."""
    if not any(path.stat().st_uid != os.getuid() for path in folder.rglob("*") if not path.is_symlink()):
        return
    image = (folder / "image").read_text().strip() if (folder / "image").is_file() else None
    if image is None:
        raise SystemExit(f"{folder} holds files of root and records no image: remove it with sudo rm -r {folder}")
    names = [f"/ours/{path.name}" for path in folder.iterdir() if path.name not in (MARKER, "image")]
    run = ["run", "--rm", "--network", "none", "--volume", f"{folder}:/ours", "--entrypoint", "python3", image]
    docker(*run, "-c", text_of(remove_trees.__name__), *names)


def main() -> None:
    inputs: FolderInputs = json.loads(sys.argv[1])
    if inputs["action"] == "make":
        print(json.dumps(make(inputs["stack"], inputs["hf_cache"], new=inputs["new"])))
    else:
        remove(inputs["stack"])


if __name__ == "__main__":
    main()
