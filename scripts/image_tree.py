"""A private copy of the image's Python tree, at the image's own path, for trying startup patches without the image.

The patches name absolute paths, so the copy is bound there in a mount namespace of its own: nothing of this machine
changes. It needs Linux and root, or user namespaces with overlayfs (kernel 5.11).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "node"))

from patches.files import write
from rank.patch_steps import MOUNT, PatchFailed, PatchStep, apply

ROOT = Path("/usr/local/lib/python3.12/dist-packages/vllm")
"""Where the pinned image has vLLM, and where every patch of the recipe looks for it."""
ENCODER = "tokenizers/deepseek_v4_encoding.py"
"""The prompt encoder in that tree, which a start replaces by the checkpoint's."""
ENTER = f"""set -e
scratch=$1 tree=$2 files=$3; shift 3
mount -t tmpfs tmpfs "$scratch"
for folder in /usr/local/lib /opt; do
  mkdir -p "$scratch$folder/upper" "$scratch$folder/work"
  mount -t overlay overlay -o "lowerdir=$folder,upperdir=$scratch$folder/upper,workdir=$scratch$folder/work" "$folder"
done
mkdir -p {ROOT} {MOUNT}
mount --bind "$tree" {ROOT}
mount --bind "$files" {MOUNT}
exec "$@"
"""


class TreeError(Exception):
    """The patches could not be tried; the text says why."""


def copy_of(tree: Path, folder: Path) -> Path:
    """The Python files of `tree`, a folder that holds vllm/ or is it, in `folder`."""
    source = tree / "vllm" if (tree / "vllm").is_dir() else tree
    if not (source / "version.py").is_file() and not (source / "__init__.py").is_file():
        raise TreeError(f"{tree} holds no vllm/ with Python files: unpack the wheel of the image's version there")
    target = folder / "vllm"
    shutil.copytree(source, target, ignore=lambda _, names: [name for name in names if name.endswith(".so")])
    return target


def run_patches(tree: Path, patches: list[PatchStep], contents: Mapping[str, bytes], limit_s: float) -> int:
    """Run the patches on `tree`, which they change, as a rank's start does; 0, or the code of the one that failed."""
    with tempfile.TemporaryDirectory() as name:
        scratch, files = Path(name, "scratch"), Path(name, "patches")
        scratch.mkdir()
        write(files, contents)
        alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        here = [sys.executable, __file__, json.dumps(patches), str(limit_s), str(Path(name, "patching"))]
        argv = [*alone, "sh", "-c", ENTER, "sh", str(scratch), str(tree), str(files), *here]
        try:
            return subprocess.run(argv).returncode
        except FileNotFoundError as error:
            raise TreeError(f"{error.filename} is missing: it comes with util-linux") from None


def main(arguments: list[str]) -> int:
    """Inside the namespace."""
    patches, limit_s, broken = arguments
    try:
        apply(json.loads(patches), ROOT, float(limit_s), dict(os.environ), print, broken=Path(broken))
    except PatchFailed as failed:
        print(f"error: {failed}")
        return failed.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
