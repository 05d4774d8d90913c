"""Extracts the uncompressed kernel from a Debian vmlinuz.

QEMU boots an ELF kernel directly (PVH), which saves an emulated machine the slow decompression at every boot.
Usage: vmlinux.py VMLINUZ VMLINUX. Exit 1 if no known compressor's payload is inside.
"""

import subprocess
import sys
from pathlib import Path

PAYLOADS = (
    (b"\xfd7zXZ\x00", ("xz", "-dc", "--single-stream")),
    (b"\x28\xb5\x2f\xfd", ("zstd", "-dc")),
)
ELF = b"\x7fELF"


def extract(image: bytes) -> bytes:
    """The ELF inside the bzImage `image`. Raises ValueError if there is none.

    The payload is followed by bytes of the loader, so the decompressor's complaint about them is expected.
    """
    for magic, command in PAYLOADS:
        start = image.find(magic)
        while start >= 0:
            kernel = subprocess.run(command, input=image[start:], capture_output=True, check=False).stdout
            if kernel.startswith(ELF):
                return kernel
            start = image.find(magic, start + 1)
    raise ValueError("no xz or zstd payload with an ELF kernel inside")


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    try:
        target.write_bytes(extract(source.read_bytes()))
    except ValueError as problem:
        sys.exit(f"vmlinux.py: {source}: {problem}, so QEMU cannot boot it directly")
