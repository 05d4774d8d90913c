"""The patches of a rank's start, in order, between prompt encoder and engine. Fails closed.

A patch is somebody else's program that edits the image's vLLM in this container. Each is verified by its sha256, runs
with a limit, and the first that fails ends the start. What it touched must compile afterwards.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TypedDict

MOUNT = Path("/opt/dspark-patches")
"""Where the recipe has them; the patched vision model imports from there for as long as the engine runs."""
BROKEN = Path("/opt/spark/patching")
"""There while patches run: a container in which they broke off is half patched and must not start again."""
LAST_LINES = 8


class PatchStep(TypedDict):
    name: str
    file: str
    """Below MOUNT."""
    run: str
    """python3 or bash."""
    arguments: list[str]
    sha256: dict[str, str]
    """Of the file and of those that it needs beside it, by path below MOUNT."""


class PatchFailed(Exception):
    """The start must end; `code` is the patch's own exit code, or 1."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def apply(
    patches: list[PatchStep],
    root: Path,
    limit_s: float,
    env: dict[str, str],
    say: Callable[[str], None],
    mount: Path = MOUNT,
    broken: Path = BROKEN,
) -> None:
    """Run every patch on the tree at `root`, each for at most `limit_s`. Raises PatchFailed."""
    if broken.exists():
        raise PatchFailed(
            f"an earlier start of this container broke off at patch {broken.read_text()}, so its vLLM is half patched: "
            "it needs a new container, which pulumi up makes"
        )
    verify(patches, mount)
    files = list(root.rglob("*.py"))
    before = first = states(files)
    for number, patch in enumerate(patches, 1):
        label = f"patch {number} of {len(patches)} {patch['name']}"
        broken.write_text(patch["name"])
        run(patch, label, limit_s, env, mount)
        after = states(files)
        say(f"{label}: {'applied' if after != before else 'skipped, nothing to change'}")
        before = after
    # listed once more, for a file that a patch has added
    last = states(list(root.rglob("*.py")))
    compiles(sorted(path for path in last if last[path] != first.get(path)))
    broken.unlink(missing_ok=True)


def verify(patches: list[PatchStep], mount: Path) -> None:
    for patch in patches:
        for path, wanted in patch["sha256"].items():
            try:
                actual = sha256((mount / path).read_bytes()).hexdigest()
            except OSError as error:
                raise PatchFailed(f"patch {patch['name']}: {mount / path} cannot be read: {error.strerror}") from None
            if actual != wanted:
                raise PatchFailed(
                    f"patch {patch['name']}: {mount / path} has sha256 {actual}, the lock says {wanted}: "
                    "pulumi up puts the right one there"
                )


def run(patch: PatchStep, label: str, limit_s: float, env: dict[str, str], mount: Path) -> None:
    interpreter = sys.executable if patch["run"] == "python3" else patch["run"]
    argv = [interpreter, str(mount / patch["file"]), *patch["arguments"]]
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s
        )
    except subprocess.TimeoutExpired as late:
        said = last_lines(late.stdout or b"")
        raise PatchFailed(f"{label} did not end within {limit_s:.0f} s{said}") from None
    except OSError as error:
        raise PatchFailed(f"{label} cannot run: {argv[0]}: {error.strerror}") from None
    if done.returncode:
        code = done.returncode
        ended = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        raise PatchFailed(
            f"{label} {ended}{last_lines(done.stdout)}\nIt does not suit this image: compare the image's digest with "
            f"the lock's, or leave the patch out (patches.skip: [{patch['name']}])",
            max(code, 1),
        )


def last_lines(output: bytes) -> str:
    lines = [line.rstrip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return ":\n" + "\n".join(f"  {line}" for line in lines[-LAST_LINES:]) if lines else " and said nothing"


def states(files: list[Path]) -> dict[Path, tuple[int, int]]:
    """What changes with a file's content, of those that are there."""
    found = {}
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found[path] = (status.st_mtime_ns, status.st_size)
    return found


def compiles(files: list[Path]) -> None:
    for path in files:
        try:
            compile(path.read_bytes(), str(path), "exec")
        except (SyntaxError, ValueError) as error:
            raise PatchFailed(f"{path} does not compile after the patches: {error}") from None
