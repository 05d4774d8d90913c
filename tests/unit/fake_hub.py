"""A `huggingface_hub` that serves one revision from memory, with the failures of the real one."""

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.snapshots import REPO, REVISION, blob_of, contents, put


class Response:
    def __init__(self, status: int) -> None:
        self.status_code = status


class HubHTTPError(OSError):
    def __init__(self, words: str, status: int) -> None:
        super().__init__(words)
        self.response = Response(status)


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
    """`files` are what the hub lists; `sent` says what arrives instead, `before` may raise at each request."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.files = contents()
        self.sent: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.tokens: set[Any] = set()
        self.before: Callable[[str], None] = lambda path: None
        self.errors = types.ModuleType("huggingface_hub.errors")
        for name in ("GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"):
            setattr(self.errors, name, type(name, (HubHTTPError,), {}))
        entry: type = self.errors.EntryNotFoundError
        self.errors.LocalEntryNotFoundError = type("LocalEntryNotFoundError", (entry,), {})  # type: ignore[attr-defined]

    def listing(self, token: Any, repo: str, revision: str) -> list[object]:
        self.tokens.add(token)
        self.before("")
        assert (repo, revision) == (REPO, REVISION)
        return [Folder(), *(File(path, content) for path, content in self.files.items())]

    def download(self, repo: str, path: str, *, revision: str, token: Any) -> str:
        self.tokens.add(token)
        self.asked.append(path)
        self.before(path)
        content = self.sent.get(path, self.files[path])
        link = self.cache / "models--owner--name" / "snapshots" / revision / path
        blob = self.cache / "models--owner--name" / "blobs" / blob_of(path, self.files[path])
        # as the real one: what is there is not fetched again
        if not blob.exists():
            link.unlink(missing_ok=True)
            put(self.cache, path, self.files[path]).write_bytes(content)
        return str(link)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        module = types.ModuleType("huggingface_hub")

        class HfApi:
            def __init__(api, token: Any) -> None:
                api.token = token

            def list_repo_tree(api, repo: str, *, revision: str, recursive: bool) -> list[object]:
                return self.listing(api.token, repo, revision)

        module.HfApi, module.hf_hub_download = HfApi, self.download  # type: ignore[attr-defined]
        module.errors = self.errors  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "huggingface_hub", module)
        patch.setitem(sys.modules, "huggingface_hub.errors", self.errors)
