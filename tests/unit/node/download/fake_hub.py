"""A `huggingface_hub` that serves one revision from memory, with the failures of the real one."""

import sys
import types
from collections.abc import Callable
from typing import Any, BinaryIO

import pytest

from tests.unit.node.snapshots import REPO, REVISION, blob_of, contents


class Response:
    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status_code, self.headers = status, headers


class HubHTTPError(OSError):
    def __init__(self, message: str, status: int, **headers: str) -> None:
        super().__init__(message)
        self.response = Response(status, {name.replace("_", "-"): text for name, text in headers.items()})


class Lfs:
    def __init__(self, sha256: str, size: int) -> None:
        self.sha256, self.size = sha256, size


class File:
    def __init__(self, path: str, content: bytes) -> None:
        self.path, self.size = path, len(content)
        self.blob_id = blob_of(path if not path.endswith(".safetensors") else "pointer", content)
        self.lfs = Lfs(blob_of(path, content), len(content)) if path.endswith(".safetensors") else None


class Folder:
    path = "encoding"


class FakeHub:
    """`files` are what the hub lists; `sent` says what arrives instead, `before` may raise at each request.

    `breaks_at` has connections of one file end after so many bytes, one each; `received` tells path and bytes of each
    that brought any.
    """

    def __init__(self) -> None:
        self.files = contents()
        self.sent: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.breaks_at: dict[str, list[int]] = {}
        self.received: list[tuple[str, int]] = []
        self.tokens: set[Any] = set()
        self.before: Callable[[str], None] = lambda path: None
        self.errors = types.ModuleType("huggingface_hub.errors")
        for name in ("RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"):
            setattr(self.errors, name, type(name, (HubHTTPError,), {}))
        # as the real one
        self.errors.GatedRepoError = type("GatedRepoError", (self.errors.RepositoryNotFoundError,), {})  # type: ignore[attr-defined]
        entry: type = self.errors.EntryNotFoundError
        self.errors.LocalEntryNotFoundError = type("LocalEntryNotFoundError", (entry,), {})  # type: ignore[attr-defined]

    def listing(self, token: Any, repo: str, revision: str) -> list[object]:
        self.tokens.add(token)
        self.before("")
        assert (repo, revision) == (REPO, REVISION)
        return [Folder(), *(File(path, content) for path, content in self.files.items())]

    def http_get(
        self, url: str, temp_file: BinaryIO, *, resume_size: int, headers: dict[str, Any], expected_size: int
    ) -> None:
        path = url.removeprefix(f"https://huggingface.co/{REPO}/resolve/{REVISION}/")
        self.tokens.add(headers["token"])
        if resume_size == expected_size:
            return
        self.asked.append(path)
        self.before(path)
        content = self.sent.get(path, self.files[path])
        if resume_size >= len(content):
            raise HubHTTPError("Requested Range Not Satisfiable", 416)
        breaks = self.breaks_at.get(path, [])
        arrived = content[resume_size : breaks.pop(0) if breaks else None]
        temp_file.write(arrived)
        self.received.append((path, len(arrived)))
        if (size := resume_size + len(arrived)) < len(content):
            raise ConnectionResetError("Connection reset by peer")
        if size != expected_size:
            raise OSError(f"Consistency check failed: file should be of size {expected_size} but has size {size}")

    def install(self, patch: pytest.MonkeyPatch) -> None:
        module = types.ModuleType("huggingface_hub")

        class HfApi:
            def __init__(api, token: Any) -> None:
                api.token = token

            def list_repo_tree(api, repo: str, *, revision: str, recursive: bool) -> list[object]:
                return self.listing(api.token, repo, revision)

        module.HfApi = HfApi  # type: ignore[attr-defined]
        module.errors = self.errors  # type: ignore[attr-defined]
        module.hf_hub_url = "https://huggingface.co/{}/resolve/{revision}/{}".format  # type: ignore[attr-defined]
        downloads, utils = (types.ModuleType(f"huggingface_hub.{name}") for name in ("file_download", "utils"))
        downloads.http_get, utils.build_hf_headers = self.http_get, dict  # type: ignore[attr-defined]
        for each in (module, self.errors, downloads, utils):
            patch.setitem(sys.modules, each.__name__, each)
