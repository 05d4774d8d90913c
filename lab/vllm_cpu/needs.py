"""What `make test-engine` needs of this host, and one refusal that lists all that is missing."""

from __future__ import annotations

import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from lab.place import cache, shared
from lab.report import LabError

BUILD_GIB, RUN_GIB, MEMORY_GIB = 10, 9, 6
"""Disk for building the image, disk for a pair that runs it, and memory for both ranks and the lab."""

WORDS = (
    f"needs {BUILD_GIB} GiB of free disk to build (1 GiB stays in the cache folder), {RUN_GIB} GiB in .lab to run,"
    f" {MEMORY_GIB} GiB of free memory, and an x86_64 processor with AVX2; on 2 processors it takes 6 minutes to build,"
    " once, and 11 minutes to run"
)


@dataclass(frozen=True)
class Host:
    """What this host has. Disk and memory are free GiB; `build_gib` is None if there is nothing to build."""

    machine: str
    has_avx2: bool
    memory_gib: float
    run_gib: float
    build_gib: float | None


def missing(host: Host) -> list[str]:
    """What this host lacks, a line each, with the way out where there is one."""
    lines = []
    if host.machine != "x86_64" or not host.has_avx2:
        avx2 = "with" if host.has_avx2 else "without"
        lines.append(f"the processor is {host.machine} {avx2} AVX2, and vLLM's build needs x86_64 with it")
    if host.memory_gib < MEMORY_GIB:
        lines.append(f"{host.memory_gib:.1f} GiB of memory are free, of {MEMORY_GIB}: end other programs")
    if host.run_gib < RUN_GIB:
        lines.append(f"{shared()} has {host.run_gib:.1f} GiB of free disk, of {RUN_GIB}: make room")
    if host.build_gib is not None and host.build_gib < BUILD_GIB:
        lines.append(
            f"{cache()} or /tmp has {host.build_gib:.1f} GiB of free disk, of {BUILD_GIB}: make room, or set"
            " SPARK_STACK_CACHE to a folder on another disk"
        )
    return lines


def free_gib(folder: Path) -> float:
    """Free disk where the folder is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free / 2**30


def check(*, is_built: bool) -> None:
    """Raises LabError with everything that this host lacks."""
    [available] = re.findall(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    host = Host(
        machine=platform.machine(),
        has_avx2=" avx2 " in Path("/proc/cpuinfo").read_text(),
        memory_gib=int(available) / 2**20,
        run_gib=free_gib(shared()),
        build_gib=None if is_built else min(free_gib(cache()), free_gib(Path("/tmp"))),
    )
    if lines := missing(host):
        raise LabError("this host cannot run the real engine:\n" + "\n".join(f"  {line}" for line in lines))
