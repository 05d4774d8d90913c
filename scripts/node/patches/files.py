"""The files of a patch lock: fetched by commit, judged by their content, carried as one text.

Nothing of them is ours: a lock names each file with its sha256, and only that content is ever used.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import TypedDict

MOST_BYTES = 1 << 20
"""Most that one file may have; the recipe's largest has 26 KB."""
FETCH_S = 20
AT_ONCE = 8
FOLDER = "patches"
"""In the stack's folder on a node: one folder for each lock."""


class PatchSource(TypedDict):
    endpoint: str
    """Where files of a repository are read as <endpoint>/<repository>/<commit>/<folder>/<file>."""
    repository: str
    commit: str
    folder: str
    """Of the repository, with all the files."""
    files: dict[str, str]
    """Path in that folder -> sha256."""


class PatchError(Exception):
    """Files that cannot be used; `lines` name each with what was found, and the way out."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = list(lines)


def problems(files: Mapping[str, str], contents: Mapping[str, bytes | str]) -> list[str]:
    """What keeps these contents from being the lock's, a line a file; one that is a text says why it is not there."""
    lines = []
    for path, wanted in sorted(files.items()):
        content = contents.get(path, "is missing")
        if isinstance(content, str):
            lines.append(f"{path} {content}")
        elif (actual := sha256(content).hexdigest()) != wanted:
            lines.append(f"{path} has sha256 {actual}, the lock says {wanted}")
    return lines


def read(folder: Path, files: Mapping[str, str]) -> dict[str, bytes | str]:
    """The files in a folder."""

    def one(path: str) -> bytes | str:
        try:
            return (folder / path).read_bytes()
        except OSError as error:
            return f"cannot be read in {folder}: {error.strerror}"

    return {path: one(path) for path in files}


def write(folder: Path, contents: Mapping[str, bytes]) -> None:
    for path, content in contents.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def fetch(source: PatchSource) -> dict[str, bytes | str]:
    """The files of one commit, from the network."""
    base = "/".join([source["endpoint"].rstrip("/"), source["repository"], source["commit"], source["folder"]])

    def one(path: str) -> bytes | str:
        try:
            with urllib.request.urlopen(f"{base}/{path}", timeout=FETCH_S) as answer:
                content: bytes = answer.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            return f"cannot be fetched: {base} answers {error.code}"
        except (OSError, ValueError) as error:
            return f"cannot be fetched from {base}: {getattr(error, 'reason', None) or error}"
        return content if len(content) <= MOST_BYTES else f"has more than {MOST_BYTES} bytes at {base}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(source["files"], pool.map(one, source["files"]), strict=True))


def way_out(source: PatchSource) -> str:
    return (
        f"these files of {source['repository']} at {source['commit'][:8]} cannot be used: read them from a copy "
        "(patches.folder), make a lock of what another commit holds (scripts/spark patches lock), or leave patches out "
        "by name (patches.skip)"
    )


def checked(source: PatchSource, contents: Mapping[str, bytes | str]) -> dict[str, bytes]:
    """The contents, all of them the lock's. Raises PatchError."""
    if lines := problems(source["files"], contents):
        raise PatchError([*lines, way_out(source)])
    return {path: content for path, content in contents.items() if isinstance(content, bytes)}


def pack(contents: Mapping[str, bytes]) -> str:
    """Files as one text."""
    rows = {path: content.decode("latin-1") for path, content in sorted(contents.items())}
    return base64.b64encode(zlib.compress(json.dumps(rows).encode(), 9)).decode()


def unpack(packed: str) -> dict[str, bytes]:
    rows: dict[str, str] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return {path: content.encode("latin-1") for path, content in rows.items()}
