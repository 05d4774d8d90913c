"""Run a program of the host in the host's own mounts, from a privileged container that shares its processes.

Arguments: the program and its arguments. It travels alone, so it imports no module of ours. Exit codes: the program's.
"""

import ctypes
import os
import sys

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> None:
    # os.setns came with Python 3.12, so this asks the C library
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0):
        sys.exit(f"the host's mounts cannot be entered: {os.strerror(ctypes.get_errno())}")
    os.chdir("/")
    os.execvpe(sys.argv[1], sys.argv[1:], {"PATH": PATH, "LC_ALL": "C"})


if __name__ == "__main__":
    main()
