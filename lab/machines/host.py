"""What machines need from the control host: programs, free ports, and the fastest accelerator that works."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

from lab.report import LabError

PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "cpio": "cpio",
    "xz": "xz-utils",
    "zstd": "zstd",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "rsync": "rsync",
}
"""The Debian package of each program."""

SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

KVM_GET_API_VERSION = 0xAE00
KVM_CREATE_VM = 0xAE01
KVM_CREATE_VCPU = 0xAE41
KVM_API = 12

TIME_FACTOR = {"kvm": 1.0, "tcg": 4.0}
"""How much longer a wait may take, by accelerator."""


def on_path(program: str) -> str | None:
    """The path of `program`. Looks in /sbin too, which a user's PATH leaves out."""
    return shutil.which(program, path=SEARCH_PATH)


def missing_packages(which: Callable[[str], str | None] = on_path, *, root: bool | None = None) -> list[str]:
    """The Debian packages whose programs are missing. `root`: whether root runs the lab; default: this process."""
    programs = dict(PROGRAMS)
    if not (os.getuid() == 0 if root is None else root):
        # without root, the image's root file system is made in a user namespace
        programs["newuidmap"] = "uidmap"
    return sorted({package for program, package in programs.items() if which(program) is None})


def require_programs() -> None:
    """Raise one LabError that lists all missing packages."""
    missing = missing_packages()
    if missing:
        raise LabError(
            f"the lab needs {len(missing)} Debian package(s) that are not installed: {' '.join(missing)}\n"
            f"  way out: make setup, or as root: apt-get install --no-install-recommends {' '.join(missing)}"
        )


def virtualizes(cpuinfo: str) -> bool:
    """Whether the CPU that /proc/cpuinfo describes runs guests in hardware.

    A software KVM (pvm, in some micro-VMs) passes every ioctl but runs only kernels that were built for it.
    """
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split()
    return "vmx" in flags or "svm" in flags


def kvm_works(device: str = "/dev/kvm", cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether a virtual machine with a CPU can be made. That the device opens does not prove it."""
    if not virtualizes(cpuinfo.read_text()):
        return False
    handles: list[int] = []
    try:
        handles.append(os.open(device, os.O_RDWR | os.O_CLOEXEC))
        if fcntl.ioctl(handles[0], KVM_GET_API_VERSION, 0) != KVM_API:
            return False
        handles.append(fcntl.ioctl(handles[0], KVM_CREATE_VM, 0))
        handles.append(fcntl.ioctl(handles[1], KVM_CREATE_VCPU, 0))
        return True
    except OSError:
        return False
    finally:
        for handle in reversed(handles):
            os.close(handle)


@cache
def qemu_version() -> str:
    """QEMU's version line; empty if there is no QEMU."""
    try:
        done = subprocess.run(
            ["qemu-system-x86_64", "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return ""
    return done.stdout.partition("\n")[0]


def accelerator() -> str:
    """`kvm` or `tcg`, as `$LAB_ACCEL` says if it is set. Raises LabError if that one is not available."""
    asked = os.environ.get("LAB_ACCEL", "")
    if asked not in ("", *TIME_FACTOR):
        raise LabError(f"LAB_ACCEL is {asked!r}: it may be {' or '.join(TIME_FACTOR)}")
    if asked == "tcg":
        return "tcg"
    if kvm_works():
        return "kvm"
    if asked == "kvm":
        raise LabError("LAB_ACCEL is kvm, but KVM runs no virtual machine here: unset it, and the lab emulates (tcg)")
    return "tcg"


def is_taken(port: int) -> bool:
    """Whether something already listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        # bind as QEMU does, so that connections of a machine that just ended do not count
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
