"""Read the end of every shard of a snapshot, in a container whose hub is an NFS mount.

Inputs (JSON argument): ReadInputs. Output: progress in lines that start with `nfs: `, at the end a ReadResult.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TypedDict

from hub.files import INDEX, PinnedRevision, gaps, snapshot_of


class ReadInputs(PinnedRevision):
    hub: str


class ReadResult(TypedDict):
    faults: list[str]
    """What is wrong, a line each."""
    shards: int
    """How many were read."""
    bytes: int
    """Size of those."""


MOUNTED = "nfs: mounted"
TELL_S = 5


def main() -> None:
    inputs: ReadInputs = json.loads(sys.argv[1])
    read, size, shards = 0, 0, []

    def tell() -> None:
        while True:
            time.sleep(TELL_S)
            wait = "" if read else ", a server that has just started may take 90 s"
            print(f"nfs: {read} of {inputs['shards']} shards read{wait}", flush=True)

    print(MOUNTED, flush=True)
    # a read can hang, so another thread reports progress
    threading.Thread(target=tell, daemon=True).start()
    snapshot = snapshot_of(Path(inputs["hub"]), inputs["repo"], inputs["revision"])
    try:
        faults = gaps(snapshot, inputs["shards"], inputs["encoding_file"])
        if not faults:
            shards = sorted(set(json.loads((snapshot / INDEX).read_text())["weight_map"].values()))
        for name in shards:
            with (snapshot / name).open("rb") as file:
                length = os.fstat(file.fileno()).st_size
                file.seek(-min(4096, length), os.SEEK_END)
                file.read()
            read += 1
            size += length
    except OSError as error:
        faults = [f"{error.filename or snapshot}: {error.strerror}"]
    result: ReadResult = {"faults": faults, "shards": read, "bytes": size}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
