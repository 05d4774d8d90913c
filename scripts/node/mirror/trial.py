"""The mirror on files made up for a measurement, one of its ends a process. scripts/bench_mirror runs it.

Inputs (JSON argument): role make | source | copy, folder.
  make     files, bytes (of all): random files, each named by its sha256
  source   address, peers, token: serves the folder's files until a peer has them all
  copy     address, own_address, port, token, streams, verify: copies them all into the folder
Output: make nothing; source {"port": n} as soon as it listens; source and copy end with {"peak_kib": n}, their memory.
Exit codes: 0 done; 1 failed, the cause on stderr.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from mirror.copy import Blob, MirrorError, connect
from mirror.source import Source

LIMIT_S = 600
PIECE_BYTES = 1 << 20


def make(folder: Path, files: int, size: int) -> None:
    for _ in range(files):
        part, digest, left = folder / "part", hashlib.sha256(), size // files
        with part.open("wb") as file:
            while left:
                piece = os.urandom(min(left, PIECE_BYTES))
                digest.update(piece)
                file.write(piece)
                left -= len(piece)
        part.rename(folder / digest.hexdigest())


def serve(folder: Path, address: str, peers: list[str], token: str) -> None:
    with Source(address, peers, token) as source:
        files = {path.name: path.stat().st_size for path in folder.iterdir()}
        for name in files:
            source.offer(name, folder / name)
        source.announce(files)
        print(json.dumps({"port": source.port}), flush=True)
        until = time.monotonic() + LIMIT_S
        while not source.finished():
            if time.monotonic() > until:
                raise SystemExit(f"no peer finished within {LIMIT_S} s")
            time.sleep(0.01)


def copy(folder: Path, inputs: dict[str, Any]) -> None:
    with connect(inputs["address"], inputs["port"], inputs["token"], own_address=inputs["own_address"]) as copied:
        blobs = [Blob(name, size, folder / name) for name, size in copied.document(LIMIT_S).items()]
        copied.fetch(blobs, streams=inputs["streams"], verify=inputs["verify"], limit_s=LIMIT_S)
        copied.finished()


def peak_kib() -> int:
    """The most memory that this process has had resident."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def main() -> None:
    inputs = json.loads(sys.argv[1])
    folder = Path(inputs["folder"])
    if inputs["role"] == "make":
        make(folder, inputs["files"], inputs["bytes"])
        return
    try:
        if inputs["role"] == "source":
            serve(folder, inputs["address"], inputs["peers"], inputs["token"])
        else:
            copy(folder, inputs)
    except (MirrorError, OSError) as error:
        raise SystemExit(str(error)) from None
    print(json.dumps({"peak_kib": peak_kib()}), flush=True)


if __name__ == "__main__":
    main()
