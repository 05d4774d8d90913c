"""The hub as the download sees it: the files of a revision, one at a time, and what may be tried again.

Runs inside the runtime image, whose huggingface_hub does the work; what that leaves behind when it is killed
(`blobs/<etag>.<random>.incomplete`, which it never reads again) is removed here before the next download.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

from checkpoint_manifest import INCOMPLETE

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class HubError(Exception):
    """The hub does not give what the stack file asks for: what it said, and the way out."""


def partial_files(model: Path) -> Iterator[tuple[str, Path]]:
    """Blob name and path of everything that huggingface_hub has begun and not finished."""
    with os.scandir(model / "blobs") as entries:
        for entry in entries:
            if entry.name.endswith(INCOMPLETE):
                yield entry.name.partition(".")[0], Path(entry.path)


def partial_bytes(model: Path, blobs: Set[str]) -> int:
    """Bytes on disk of downloads under way of these blobs."""
    total = 0
    for blob, path in partial_files(model):
        with contextlib.suppress(FileNotFoundError):  # renamed when complete
            total += path.stat().st_blocks * 512 if blob in blobs else 0
    return total


def remove_partial(hub: Path, model: Path) -> int:
    """Remove what an ended download left behind, and return its bytes; one that still runs holds the blob's lock."""
    freed = 0
    for blob, path in list(partial_files(model)):
        lock = hub / ".locks" / model.name / f"{blob}.lock"
        with contextlib.ExitStack() as held:
            if lock.is_file():
                file = held.enter_context(lock.open("a"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
            freed += path.stat().st_size
            path.unlink()
    return freed


class Hub:
    """One revision of one repository. The token, if any, goes into requests and nowhere else.

    `on_trouble` gets the hub's words while it is waited for, None when it answers again.
    """

    def __init__(
        self, repo: str, revision: str, token: str | None, patience_s: float, on_trouble: Callable[[str | None], None]
    ) -> None:
        self.repo, self.revision, self.patience_s = repo, revision, patience_s
        self._on_trouble = on_trouble
        self._token: str | bool = token or False  # False: not the one that a user's own login left
        self.endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")

    def listing(self) -> list[tuple[str, str, int]]:
        """Path, blob and size of every file. Raises HubError."""
        from huggingface_hub import HfApi

        def ask() -> list[tuple[str, str, int]]:
            rows = HfApi(token=self._token).list_repo_tree(self.repo, revision=self.revision, recursive=True)
            files = [row for row in rows if hasattr(row, "blob_id")]
            return [
                (row.path, row.lfs.sha256 if row.lfs else row.blob_id, row.lfs.size if row.lfs else row.size)
                for row in files
            ]

        found: list[tuple[str, str, int]] = self._patiently("the list of files", ask)
        return found

    def download(self, path: str) -> Path:
        """One file into the cache. Raises HubError, or OSError when the disk is full."""
        from huggingface_hub import hf_hub_download

        def ask() -> Path:
            return Path(hf_hub_download(self.repo, path, revision=self.revision, token=self._token))

        found: Path = self._patiently(path, ask)
        return found

    def _patiently(self, what: str, ask: Any) -> Any:
        """The answer, asked for again while the hub is merely out of reach, for `patience_s` of waiting in all."""
        waited, pause, wrong_sizes = 0.0, FIRST_PAUSE_S, 0
        while True:
            try:
                answer = ask()
                if waited:
                    self._on_trouble(None)
                return answer
            except Exception as error:
                words = (str(error).splitlines() or ["no words"])[0]
                if final := self._final(error, what, words):
                    raise HubError(final) from None
                if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                    raise
                wrong_sizes += "Consistency check" in words
                if wrong_sizes > 1:
                    raise HubError(
                        f"{self.endpoint} sends {what} in another size than it lists ({words}): it was tried twice; "
                        "is a proxy between, or is the repository being changed?"
                    ) from None
                if waited >= self.patience_s:
                    raise HubError(
                        f"{what} of {self.repo} could not be downloaded from {self.endpoint} within "
                        f"{self.patience_s:.0f} s of waiting: {type(error).__name__}: {words}: "
                        "is this node on the internet? The next pulumi up goes on with what is here"
                    ) from None
                self._on_trouble(f"{type(error).__name__}: {words}")
            time.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, LONGEST_PAUSE_S)

    def _final(self, error: Exception, what: str, words: str) -> str | None:
        """What to tell a person when asking again cannot help; None when it can."""
        from huggingface_hub import errors

        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.GatedRepoError) or status in (401, 403):
            return (
                f"{self.endpoint} does not give out {self.repo} (status {status}): accept its licence at "
                f"{self.endpoint}/{self.repo} and set the token of that account "
                "(pulumi config set --secret hf_token ...)"
            )
        if isinstance(error, errors.LocalEntryNotFoundError):
            return None  # how huggingface_hub says that the hub is out of reach
        if isinstance(error, (errors.RevisionNotFoundError, errors.RepositoryNotFoundError)):
            return (
                f"{self.endpoint} has no revision {self.revision} of {self.repo} ({words}): "
                "compare checkpoint.repo and checkpoint.revision with the repository's page"
            )
        if isinstance(error, errors.EntryNotFoundError) or status == 404:
            return (
                f"{self.endpoint} lists {what} of {self.repo} and does not have it ({words}): was the revision removed?"
            )
        return None
