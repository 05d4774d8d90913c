"""The tree that a job works on: one revision in a hub cache, and how much of it is verified."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal, TypedDict

from download import hub_client
from download.job_status import Status
from hub.blob_hash import digest_of
from hub.files import gaps, snapshot_of
from hub.manifest import DAMAGED, PART, Entry, content_of, place, write_main
from hub.verified import VerifiedBlobs


class Work(TypedDict):
    """What a job is about."""

    role: Literal["fetch", "mirror"]
    repo: str
    revision: str
    shards: int
    encoding_file: str
    endpoint: str
    patience_s: float
    """How long a hub that does not answer is waited for."""
    address: str
    """This node's on the fabric."""
    peers: list[str]
    """fetch: addresses of the nodes that copy from this one."""
    image: str
    hub: str
    """Absolute path of the hub cache on the node."""


class JobInputs(Work):
    id: str
    source_job: str | None
    """mirror: the head's job that is copied from."""


class Failed(Exception):
    """The job cannot go on: found, why, way out."""


class Job:
    """One run: the tree of one revision, and how much of it is verified."""

    def __init__(self, inputs: JobInputs, hub: Path, status: Status) -> None:
        self.inputs, self.hub, self.status = inputs, hub, status
        self.snapshot = snapshot_of(hub, inputs["repo"], inputs["revision"])
        self.model = self.snapshot.parent.parent
        self.entries: list[Entry] = []
        self.verified: set[str] = set()
        self._moving: dict[str, int] = {}
        self._guard = threading.Lock()

    def open_tree(self) -> None:
        for folder in (self.model / "blobs", self.snapshot):
            folder.mkdir(parents=True, exist_ok=True)
        self.blobs = VerifiedBlobs(self.model)

    def moved(self, blob: str, count: int) -> None:
        """`count` more bytes of a blob were read or received; negative takes back."""
        with self._guard:
            self._moving[blob] = self._moving.get(blob, 0) + count

    def set_verified(self, entry: Entry, content: Path) -> None:
        """The entry's content was just hashed, or was before: link all names of it, remember it."""
        names = [each for each in self.entries if each.blob == entry.blob]
        for each in names:
            place(self.model, self.snapshot, each, content)
            # a plain file has become the blob
            content = content_of(self.model, self.snapshot, entry) or content
        if not self.blobs.holds(entry.blob, content):
            self.blobs.add(entry.blob, content)
        content.with_name(entry.blob + DAMAGED).unlink(missing_ok=True)
        with self._guard:
            self.verified.update(each.path for each in names)
            self._moving.pop(entry.blob, None)

    def publish(self, phase: str | None = None) -> None:
        with self._guard:
            verified = [entry for entry in self.entries if entry.path in self.verified]
            arrived = sum(entry.size for entry in verified) + sum(self._moving.values())
            arriving = {entry.blob for entry in self.entries} - {entry.blob for entry in verified}
        if self.inputs["role"] == "fetch":
            arrived += hub_client.partial_bytes(self.model, arriving)
        total = sum(entry.size for entry in self.entries)
        files, size = [len(verified), len(self.entries)], [min(arrived, total), total]
        self.status.publish(files=files, bytes=size, **({"phase": phase} if phase else {}))

    def trouble(self, words: str | None) -> None:
        """The hub is waited for, or answers again."""
        self.status.publish(trouble=words)

    def check(self, entry: Entry) -> Path | None:
        """The entry's content when it is here and right. A damaged one on the head is put aside for a new download."""
        content = content_of(self.model, self.snapshot, entry)
        if content is None:
            return None
        if self.blobs.holds(entry.blob, content):
            return content
        if content.stat().st_size == entry.size:
            found = digest_of(content, entry.blob, lambda count: self.moved(entry.blob, count))
            if found == entry.blob:
                return content
            self.moved(entry.blob, -entry.size)
        self.status.note(f"{entry.path} is damaged (its content is not what its hash says): it is fetched again")
        if self.inputs["role"] == "fetch":
            os.replace(content, content.with_name(entry.blob + DAMAGED))
        return None

    def finish(self) -> None:
        """What a whole tree ends with. Raises Failed when files of the index are missing all the same."""
        if missing := gaps(self.snapshot, self.inputs["shards"], self.inputs["encoding_file"]):
            raise Failed(f"{self.inputs['repo']} is not whole although all its files are here: {'; '.join(missing)}")
        if words := write_main(self.model, self.inputs["revision"], self.blobs):
            self.status.note(words)
        for path in self.model.glob(f"blobs/*{PART}"):
            path.unlink()
