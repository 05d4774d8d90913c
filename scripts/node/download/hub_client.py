"""The hub as the download sees it: the files of a revision, one at a time, and which failures are worth a retry.

Runs inside the runtime image and uses its huggingface_hub. That library's own download drops what has arrived of a file
with every error, and never reads again what it leaves behind when it is killed (`blobs/<etag>.<random>.incomplete`):
on a slow line, an hour for 3.3 GiB. And it names what it writes by the hub's own headers. So we receive each file in a
place of our own, named by the list, with the library's http_get, which can resume where the last attempt ended, also in
a later job.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

from hub.manifest import PART, PARTIAL, Entry

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
SILENT_S = 15.0
"""After this long without a byte a person is told: huggingface_hub waits and asks again without a word."""
OTHER_SIZE = "Consistency check"
"""How huggingface_hub's message begins when a file has another size than listed."""
NO_SUCH_RANGE = 416


class HubError(Exception):
    """The hub does not give what the stack file asks for; the message says what it said, and the way out."""


class Waits(logging.Handler):
    """huggingface_hub waits inside a call when the hub asks for it, and tells only its log for how long."""

    def __init__(self, on_wait: Callable[[float], None]) -> None:
        super().__init__(logging.WARNING)
        self._on_wait = on_wait

    def emit(self, record: logging.LogRecord) -> None:
        """What `on_wait` raises ends the call before it waits."""
        if match := re.search(r"Waiting ([\d.]+)s before retry", record.getMessage()):
            self._on_wait(float(match.group(1)))


def partial_files(model: Path) -> Iterator[tuple[str, Path]]:
    """Blob name and path of every download that was begun and not finished."""
    with os.scandir(model / "blobs") as entries:
        for entry in entries:
            if entry.name.endswith(PARTIAL):
                yield entry.name.partition(".")[0], Path(entry.path)


def partial_bytes(model: Path, blobs: Set[str]) -> int:
    """Bytes on disk of unfinished downloads of these blobs."""
    total = 0
    for blob, path in partial_files(model):
        with contextlib.suppress(FileNotFoundError):  # renamed when complete
            total += path.stat().st_blocks * 512 if blob in blobs else 0
    return total


def remove_partial(hub: Path, model: Path) -> None:
    """Remove huggingface_hub's unfinished files, except those of a running download, which holds the blob's lock."""
    for blob, path in list(partial_files(model)):
        if path.name.endswith(PART):
            continue
        lock = hub / ".locks" / model.name / f"{blob}.lock"
        with contextlib.ExitStack() as stack:
            if lock.is_file():
                file = stack.enter_context(lock.open("a"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
            path.unlink()


class Hub:
    """One revision of one repository. The token, if any, goes into requests and nowhere else.

    `on_trouble` gets the reason while the hub does not answer, and None when it answers again.
    """

    def __init__(
        self, repo: str, revision: str, token: str | None, patience_s: float, on_trouble: Callable[[str | None], None]
    ) -> None:
        self.repo, self.revision, self.patience_s = repo, revision, patience_s
        self._on_trouble = on_trouble
        self._call = threading.local()
        """trouble: how a thread's present call tells of it."""
        self._token: str | bool = token or False  # False: not the token of the user's own login either
        self.endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        logger = logging.getLogger("huggingface_hub")
        # of one process that has one Hub
        logger.handlers = [Waits(self._asked_to_wait)]
        logger.propagate = False

    def _asked_to_wait(self, seconds: float) -> None:
        """Raises HubError where that is longer than we wait for a hub."""
        reason = f"it is busy and asks to wait {seconds:.0f} s"
        if seconds > self.patience_s:
            raise HubError(
                f"{self.endpoint}: {reason}, which is longer than checkpoint.hub_patience_s ({self.patience_s:g}): run "
                "pulumi up again later, it resumes with what is already on disk"
            )
        self._call.trouble(reason)

    def listing(self, *, patient: bool = True) -> list[tuple[str, str, int]]:
        """Path, blob and size of every file; one try if not `patient`. Raises HubError."""
        from huggingface_hub import HfApi

        def ask() -> list[tuple[str, str, int]]:
            rows = HfApi(token=self._token).list_repo_tree(self.repo, revision=self.revision, recursive=True)
            files = [row for row in rows if hasattr(row, "blob_id")]
            return [
                (row.path, row.lfs.sha256 if row.lfs else row.blob_id, row.lfs.size if row.lfs else row.size)
                for row in files
            ]

        files: list[tuple[str, str, int]] = self._patiently(
            "the list of files", ask, patience_s=self.patience_s if patient else 0
        )
        return files

    def download(self, entry: Entry, blob: Path) -> None:
        """Put one file at its place in the cache, without the snapshot's link to it. The caller checks its hash.

        Raises HubError, or OSError when this node cannot keep it.
        """
        part = part_of(blob)
        self._patiently(
            entry.path, lambda: self._receive(entry, blob), lambda: part.stat().st_size if part.exists() else 0
        )

    def _receive(self, entry: Entry, blob: Path) -> None:
        """Receive a file from where an earlier attempt ended."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        part = part_of(blob)
        url = hf_hub_url(self.repo, entry.path, revision=self.revision)
        headers = build_hf_headers(token=self._token)
        try:
            with part.open("ab") as file:
                http_get(url, file, resume_size=file.tell(), headers=headers, expected_size=entry.size)
        except Exception as error:
            # not the beginning of this file, or it takes the space that something else needs
            if OTHER_SIZE in str(error) or status_of(error) == NO_SUCH_RANGE or disk_is_full(error):
                part.unlink(missing_ok=True)
            raise
        os.replace(part, blob)

    def _patiently(
        self, what: str, ask: Any, arrived: Callable[[], int] = lambda: 0, *, patience_s: float | None = None
    ) -> Any:
        """The answer, asked for again while the hub is merely out of reach, for `patience_s` in all.

        Whenever more bytes have arrived, as on a line that keeps breaking, that time starts over.
        """
        patience_s = self.patience_s if patience_s is None else patience_s
        since, pause, wrong_sizes, most = time.monotonic(), FIRST_PAUSE_S, 0, arrived()

        troubled = False

        def trouble(reason: str) -> None:
            nonlocal troubled
            troubled = True
            self._on_trouble(reason)

        def silent() -> None:
            if arrived() <= most:
                trouble(f"no answer for {SILENT_S:g} s")

        self._call.trouble = trouble
        while True:
            watch = threading.Timer(SILENT_S, silent)
            watch.daemon = True
            watch.start()
            try:
                answer = ask()
                if troubled:
                    self._on_trouble(None)
                return answer
            except HubError:
                raise
            except Exception as error:
                reason = without_queries((str(error).splitlines() or ["no message"])[0])
                if final := self._final(error, what, reason):
                    raise HubError(final) from None
                if of_this_node(error):
                    raise
                wrong_sizes += OTHER_SIZE in reason
                if wrong_sizes > 1:
                    raise HubError(
                        f"{self.endpoint} sends {what} in another size than it lists ({reason}), twice: "
                        "is there a proxy in between, or is somebody changing the repository?"
                    ) from None
                if (size := arrived()) > most:
                    since, pause, most = time.monotonic(), FIRST_PAUSE_S, size
                told = retry_after(error)
                asks = f", and asks to wait {told:.0f} s" if told else ""
                if time.monotonic() - since + told > patience_s:
                    raise HubError(
                        f"{what} of {self.repo} could not be downloaded from {self.endpoint} within "
                        f"{patience_s:.0f} s: {type(error).__name__}: {reason}{asks}: "
                        "is this node on the internet? The next pulumi up resumes with what is already on disk"
                    ) from None
                trouble(f"{type(error).__name__}: {reason}{asks}")
            finally:
                watch.cancel()
            time.sleep(max(pause, told))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _final(self, error: Exception, what: str, reason: str) -> str | None:
        """What to tell a person when asking again cannot help; None when it can."""
        from huggingface_hub import errors

        status, code = status_of(error), header_of(error, "X-Error-Code")
        if isinstance(error, errors.LocalEntryNotFoundError):
            return None  # how huggingface_hub says that the hub is out of reach
        missing = isinstance(error, errors.RepositoryNotFoundError) and not isinstance(error, errors.GatedRepoError)
        if code == "RepoNotFound" or (missing and not code):
            # the hub does not tell a stranger whether a repository is missing or private, so its status is often 401
            return (
                f"{self.endpoint} has no repository {self.repo} for this account (status {status}, {reason}): compare "
                "checkpoint.repo with the repository's page; for a private one set its account's token "
                "(pulumi config set --secret hf_token ...)"
            )
        if isinstance(error, errors.GatedRepoError) or code == "GatedRepo" or status in (401, 403):
            return (
                f"{self.endpoint} refuses access to {self.repo} (status {status}): accept its licence at "
                f"{self.endpoint}/{self.repo} and set the token of that account "
                "(pulumi config set --secret hf_token ...)"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return (
                f"{self.endpoint} has no revision {self.revision} of {self.repo} ({reason}): "
                "compare checkpoint.repo and checkpoint.revision with the repository's page"
            )
        if isinstance(error, errors.EntryNotFoundError) or status == 404:
            return (
                f"{self.endpoint} lists {what} of {self.repo} but does not have it ({reason}): "
                "was the revision removed?"
            )
        return None


def without_queries(text: str) -> str:
    """The same with URLs cut at their query: a store's signed URL lets everybody read who has it."""
    return re.sub(r"(https?://[^\s?]+)\?[^\s'\")]+", r"\1", text)


def part_of(blob: Path) -> Path:
    """Where a large file arrives."""
    return blob.with_name(f"{blob.name}{PART}")


def status_of(error: Exception) -> int | None:
    """The HTTP status behind one of huggingface_hub's errors, if there is one."""
    status: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return status


def header_of(error: Exception, name: str) -> str:
    """A header of the answer behind one of huggingface_hub's errors; empty if there is none."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    return str(headers.get(name) or "") if headers else ""


def retry_after(error: Exception) -> float:
    """Seconds that the hub asks to wait; 0 if it does not. A date counts as none: our own pauses do."""
    text = header_of(error, "Retry-After")
    return float(text) if text.isascii() and text.isdigit() else 0.0


def disk_is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def of_this_node(error: Exception) -> bool:
    """Whether a file or the disk is the cause, not the network, so that asking again cannot help."""
    return disk_is_full(error) or (isinstance(error, OSError) and (error.errno == errno.EIO or bool(error.filename)))
