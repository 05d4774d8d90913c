"""The tree that a job works on: one revision in a hub cache, and how much of it is verified."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal

from download import hub_client
from download.job_status import Status
from host.console import first_of
from hub.blob_hash import digest_of
from hub.files import PinnedRevision, gaps, snapshot_of
from hub.manifest import DAMAGED, PART, Entry, content_of, others, place, put_aside, write_main
from hub.verified import VerifiedBlobs


class Work(PinnedRevision):
    """What a node has to do for its checkpoint. A job that does the same is joined, one with other work is ended."""

    role: Literal["fetch", "mirror"]
    endpoint: str
    patience_s: float
    """How long to wait for a hub that does not answer."""
    image: str
    fabric_ips: list[str]
    """This node's: fetch: all that others copy to it through; mirror: the one that faces the head."""
    peer_fabric_ips: list[str]
    """fetch: those of the nodes that copy from this one."""
    head_fabric_ip: str | None
    """mirror: where to copy from."""


class JobInputs(Work):
    hub: str
    """Absolute path of the hub cache on the node."""
    id: str
    source_job: str | None
    """mirror: the head's job, to copy from."""


class Failed(Exception):
    """The job cannot continue; the message says what was found, why it stops the job, and the way out."""


class Job:
    """One run on the tree of one revision."""

    def __init__(self, inputs: JobInputs, hub: Path, status: Status) -> None:
        self.inputs, self.hub, self.status = inputs, hub, status
        self.snapshot = snapshot_of(hub, inputs["repo"], inputs["revision"])
        self.model = self.snapshot.parent.parent
        self.entries: list[Entry] = []
        self.list_is_the_hubs = True
        """False where the entries are only what lies there."""
        self.verified: set[str] = set()
        self._moving: dict[str, int] = {}
        self._guard = threading.Lock()

    def open_tree(self) -> None:
        for folder in (self.model / "blobs", self.snapshot):
            folder.mkdir(parents=True, exist_ok=True)
        self.blobs = VerifiedBlobs(self.model)

    def moved(self, blob: str, count: int) -> None:
        """`count` more bytes of a blob were read or received; a negative count takes back."""
        with self._guard:
            self._moving[blob] = self._moving.get(blob, 0) + count

    def set_verified(self, entry: Entry, content: Path) -> None:
        """Record that the entry's content has the right hash, and link every path of that content to it."""
        same = [each for each in self.entries if each.blob == entry.blob]
        for each in same:
            path = self.snapshot / each.path
            plain = path.is_file() and not path.is_symlink() and not path.samefile(content)
            if plain and digest_of(path, each.blob) != each.blob:
                self.keep(path)
            place(self.model, self.snapshot, each, content)
            # a plain file has become the blob
            content = content_of(self.model, self.snapshot, entry) or content
        if not self.blobs.holds(entry.blob, content):
            self.blobs.add(entry.blob, content)
        content.with_name(entry.blob + DAMAGED).unlink(missing_ok=True)
        with self._guard:
            self.verified.update(each.path for each in same)
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

    def trouble(self, reason: str | None) -> None:
        """The hub does not answer, for this reason; None: it answers again."""
        self.status.publish(trouble=reason)

    def keep(self, path: Path) -> None:
        """A plain file with another content than the checkpoint's is somebody's edit."""
        kept = put_aside(path)
        name = path.relative_to(self.snapshot)
        self.status.note(f"{name} was not the checkpoint's (did somebody edit it?): it is now {kept.name}")

    def check(self, entry: Entry) -> Path | None:
        """The entry's content if it is on disk with the right hash. On the head a damaged file is put aside."""
        content = content_of(self.model, self.snapshot, entry)
        if content is None:
            return None
        if self.blobs.holds(entry.blob, content):
            return content
        if content.stat().st_size == entry.size:
            if digest_of(content, entry.blob, lambda count: self.moved(entry.blob, count)) == entry.blob:
                return content
            self.moved(entry.blob, -entry.size)
        if content.name != entry.blob:
            self.keep(self.snapshot / entry.path)
            return None
        self.status.note(f"{entry.path} is damaged (its content does not match its hash): fetching it again")
        if self.inputs["role"] == "fetch":
            os.replace(content, content.with_name(entry.blob + DAMAGED))
        return None

    def finish(self) -> None:
        """Keep the list, write refs/main, remove leftovers. Raises Failed when a file of the index is missing."""
        if missing := gaps(self.snapshot, self.inputs["shards"], self.inputs["encoding_file"]):
            repo = self.inputs["repo"]
            raise Failed(f"{repo} is incomplete although every file that it lists is verified: {'; '.join(missing)}")
        if self.list_is_the_hubs:
            self.blobs.keep_list(self.snapshot.name, [(each.path, each.blob, each.size) for each in self.entries])
        if left := others(self.snapshot, self.entries):
            self.status.note(f"not of the checkpoint, so left as they are: {first_of(left)}")
        if note := write_main(self.model, self.inputs["revision"], self.blobs):
            self.status.note(note)
        for path in self.model.glob(f"blobs/*{PART}"):
            path.unlink()
