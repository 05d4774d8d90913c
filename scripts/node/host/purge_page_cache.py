"""Free the page cache's memory just before the engine starts: CUDA on unified memory counts only free memory.

Inputs (JSON argument): PurgeInputs. Without root's rights it drops only the checkpoint's own files from the cache. Exit
code: 0; what could not be done is a warning on stderr, with numbers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

from host.as_root import NoRoot, RootError, run, way
from host.console import say
from hub.files import snapshot_of

MEMINFO = Path("/proc/meminfo")
SYNC_S = 300
# page cache alone, not the kernel's own tables
DROP = "echo 1 >/proc/sys/vm/drop_caches"


class PurgeInputs(TypedDict):
    stack: str
    image: str | None
    """For a container that runs as root; None: no such container."""
    python: str
    need_gib: float
    """What the engine will use."""
    hf_cache: str
    repo: str
    revision: str


def memory(meminfo: str) -> dict[str, float]:
    """Cached and free memory in GiB, one decimal. Raises KeyError if the text lacks one of them."""
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in meminfo.splitlines())}
    return {"cached_gib": round(kib["Cached"] / 2**20, 1), "free_gib": round(kib["MemFree"] / 2**20, 1)}


def drop_files(snapshot: Path) -> None:
    """Drop the snapshot's files from the page cache, except pages that are mapped."""
    for parent, _, names in os.walk(snapshot):
        for name in names:
            try:
                file = os.open(Path(parent, name), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def purge(inputs: PurgeInputs) -> str | None:
    """Drop what can be dropped; returns why that was not everything, None if it was."""
    try:
        # the kernel drops clean pages only
        subprocess.run(["sync"], timeout=SYNC_S, capture_output=True)
    except subprocess.TimeoutExpired:
        say(f"page cache: files are still being written to disk after {SYNC_S} s, unwritten pages stay")
    try:
        root = way(inputs["stack"], inputs["image"], inputs["python"])
        run(root, ["sh", "-c", DROP], timeout_s=120)
        return None
    except (NoRoot, RootError) as error:
        drop_files(snapshot_of(Path(inputs["hf_cache"]).expanduser() / "hub", inputs["repo"], inputs["revision"]))
        return str(error)


def a_rank_runs(stack: str) -> bool:
    """Whether the rank that is about to be replaced still holds the memory that the next one will get."""
    labels = ("--filter", f"label=spark.stack={stack}", "--filter", "label=spark.rank")
    try:
        listed = subprocess.run(["docker", "ps", "--quiet", *labels], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return bool(listed.stdout.strip())


def main() -> None:
    inputs: PurgeInputs = json.loads(sys.argv[1])
    before = memory(MEMINFO.read_text())
    refused = purge(inputs)
    after = memory(MEMINFO.read_text())
    cached, free, need = before["cached_gib"], after["free_gib"], inputs["need_gib"]
    say(f"page cache: {cached:.1f} GiB cached, free memory {before['free_gib']:.1f} -> {free:.1f} GiB")
    if refused:
        say(f"warning: only the checkpoint's own files left the page cache: {refused}")
    if free < need and not a_rank_runs(inputs["stack"]):
        way_out = f"run `sync; {DROP}` as root" if refused else "see what else holds memory (`ps aux --sort -rss`)"
        say(f"warning: the engine needs {need:.1f} GiB, but {free:.1f} GiB are free: {way_out}, or it may not start")


if __name__ == "__main__":
    main()
