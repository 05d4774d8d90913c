"""Put the files of a patch lock on this node, each verified by its sha256.

Inputs (JSON argument): PlaceInputs. In the environment: SPARK_PATCHES, the files as the head's step printed them or
as the control host read them from patches.folder; without it they are fetched. Output: a Placed.
Exit codes: 0 done; 1 refused, with every file that is not the lock's on stderr.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TypedDict

from host.console import say
from host.our_folder import folder_of
from patches.files import FOLDER, PatchError, PatchSource, checked, fetch, pack, problems, read, unpack, write


class PlaceInputs(TypedDict):
    stack: str
    lock: str
    """Twelve hex digits over the whole lock: the name of its folder."""
    source: PatchSource
    share: bool
    """Whether other nodes get the files from this one."""


class Placed(TypedDict):
    folder: str
    """Absolute path on the node."""
    files: str | None
    """All files as one text, for the nodes that fetch nothing."""


def folder(stack: str, lock: str) -> Path:
    return folder_of(stack) / FOLDER / lock


def missing(stack: str, lock: str, source: PatchSource) -> list[str]:
    """What is not in its place on this node, a line a file."""
    return problems(source["files"], read(folder(stack, lock), source["files"]))


def place(inputs: PlaceInputs, packed: str | None) -> Placed:
    """Raises PatchError."""
    source, target = inputs["source"], folder(inputs["stack"], inputs["lock"])
    try:
        contents = checked(source, read(target, source["files"]))
    except PatchError:
        if packed is None:
            say(f"patches: fetching {len(source['files'])} files of {source['repository']} at {source['commit'][:8]}")
        arrived = checked(source, fetch(source) if packed is None else unpack(packed))
        part = target.with_name(f"{target.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        write(part, arrived)
        # a rank that runs keeps the folder that it mounts, whatever has its name
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
        contents = checked(source, read(target, source["files"]))
    say(f"patches: {len(contents)} files are here, every sha256 is the lock's")
    return {"folder": str(target), "files": pack(contents) if inputs["share"] else None}


def main() -> None:
    try:
        print(json.dumps(place(json.loads(sys.argv[1]), os.environ.get("SPARK_PATCHES") or None)))
    except PatchError as error:
        raise SystemExit("\n".join(f"patches: {line}" for line in error.lines)) from None


if __name__ == "__main__":
    main()
