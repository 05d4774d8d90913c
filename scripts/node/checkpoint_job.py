"""The long work on a checkpoint, inside a container of the runtime image that outlives the session that started it.

fetch (head): download what is missing of one revision with huggingface_hub, prove every blob by its hash, and offer
each to the peers as soon as it is proven. mirror (other nodes): copy from the head what is missing, while it arrives
there. Both end with every file of the revision a link to a proven blob, and refs/main written.

Inputs: /job/inputs.json (id, role, repo, revision, shards, encoding_file, address, peers), /job/secret.json, read once
and removed (hf_token; source: address, port, token). Variables of huggingface_hub are in the environment.
Output: /job/status.json; /job/source.json (0600: port, token) while the head offers.
Exit codes: 0 whole; 1 not, the cause in status.json.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import checkpoint_hub
from blob_hash import digest_of
from checkpoint_files import gaps, snapshot_of
from checkpoint_manifest import DAMAGED, PART, Entry, ManifestError, checked, content_of, of_snapshot, place, write_main
from checkpoint_stamp import Stamp
from job_status import Status
from mirror_copy import Blob, MirrorError, connect
from mirror_source import Source

FILES_AT_ONCE = 8
STREAMS = 8
"""Connections of one mirror. A stream hashes what it receives, so they scale with processors."""
GRACE_S, QUIET_S, OFFER_S = 20, 600, 6 * 3600
"""How long a head that failed, and one that is whole, waits for peers that do not come; and for one that never ends."""


class Failed(Exception):
    """The job cannot go on: found, why, way out."""


@contextlib.contextmanager
def lock(hub: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """The cache for one job alone: two stacks that share it must not fetch everything twice."""
    folder = os.open(hub, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


class Job:
    """One run: the tree of one revision, and how much of it is proven."""

    def __init__(self, inputs: dict[str, Any], hub: Path, status: Status) -> None:
        self.inputs, self.hub, self.status = inputs, hub, status
        self.snapshot = snapshot_of(hub, inputs["repo"], inputs["revision"])
        self.model = self.snapshot.parent.parent
        self.entries: list[Entry] = []
        self.proven: set[str] = set()
        self._moving: dict[str, int] = {}
        self._guard = threading.Lock()

    def open_tree(self) -> None:
        for folder in (self.model / "blobs", self.snapshot):
            folder.mkdir(parents=True, exist_ok=True)
        self.stamp = Stamp(self.model)

    def moved(self, blob: str, count: int) -> None:
        """`count` more bytes of a blob were read or received; negative takes back."""
        with self._guard:
            self._moving[blob] = self._moving.get(blob, 0) + count

    def whole(self, entry: Entry, content: Path) -> None:
        """This content was just hashed, or its stamp holds: link it, remember it."""
        place(self.model, self.snapshot, entry, content)
        content = content_of(self.model, self.snapshot, entry) or content
        if not self.stamp.holds(entry.blob, content):
            self.stamp.add(entry.blob, content)
        content.with_name(entry.blob + DAMAGED).unlink(missing_ok=True)
        with self._guard:
            self.proven.add(entry.path)
            self._moving.pop(entry.blob, None)

    def publish(self, phase: str | None = None) -> None:
        with self._guard:
            here = sum(entry.size for entry in self.entries if entry.path in self.proven) + sum(self._moving.values())
            arriving = {entry.blob for entry in self.entries} - {
                entry.blob for entry in self.entries if entry.path in self.proven
            }
        if self.inputs["role"] == "fetch":
            here += checkpoint_hub.partial_bytes(self.model, arriving)
        total = sum(entry.size for entry in self.entries)
        changes: dict[str, Any] = {"files": [len(self.proven), len(self.entries)], "bytes": [min(here, total), total]}
        self.status.publish(**changes, **({"phase": phase} if phase else {}))

    def trouble(self, words: str | None) -> None:
        """The hub is waited for, or answers again."""
        self.status.publish(trouble=words)

    def check(self, entry: Entry) -> Path | None:
        """The entry's content when it is here and right. A damaged one on the head is put aside for a new download."""
        content = content_of(self.model, self.snapshot, entry)
        if content is None:
            return None
        if self.stamp.holds(entry.blob, content):
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
        if words := write_main(self.model, self.inputs["revision"], self.stamp):
            self.status.note(words)
        for path in self.model.glob(f"blobs/*{PART}"):
            path.unlink()


def at_once(job: Job, entries: list[Entry], do: Callable[[Entry], None]) -> None:
    """`do` for all entries, several at once. The first failure stops those that have not begun, and is raised."""
    pool = ThreadPoolExecutor(FILES_AT_ONCE)
    tasks = [pool.submit(do, entry) for entry in entries]
    try:
        while not all(task.done() for task in tasks):
            for task in wait(tasks, timeout=1, return_when=FIRST_EXCEPTION).done:
                task.result()
            job.publish()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for task in tasks:
        task.result()


def fetch(job: Job, token: str | None, source: Source | None) -> None:
    """The head's copy, each blob offered as soon as it is proven."""
    inputs = job.inputs
    checkpoint_hub.remove_partial(job.hub, job.model)
    known = of_snapshot(job.snapshot) if not gaps(job.snapshot, inputs["shards"], inputs["encoding_file"]) else None
    hub = checkpoint_hub.Hub(inputs["repo"], inputs["revision"], token, inputs["patience_s"], job.trouble)
    # a whole tree of links tells its own hashes: proving it needs no hub
    job.entries = known or checked(hub.listing())
    if source:
        rows = [[entry.path, entry.blob, entry.size] for entry in job.entries]
        source.announce({"repo": inputs["repo"], "revision": inputs["revision"], "files": rows})

    def one(entry: Entry) -> None:
        content = job.check(entry)
        for _ in range(2):
            if content is not None:
                break
            hub.download(entry.path)
            content = job.check(entry)
        if content is None:
            raise Failed(
                f"{entry.path} arrived twice from {hub.endpoint} with another content than its hash {entry.blob[:12]} "
                "says: something between damages it, or this node's memory or disk does (`dmesg`)"
            )
        job.whole(entry, content)
        if source:
            source.offer(entry.blob, (job.snapshot / entry.path).resolve())

    job.publish("downloads" if known is None else "verifies")
    # the small files first: a wrong revision or a closed repository shows at once
    at_once(job, sorted(job.entries, key=lambda entry: entry.size > 2**20), one)
    job.finish()


def mirror(job: Job, source: dict[str, Any], own_address: str) -> None:
    """This node's copy, from the head."""
    job.publish("waits for the head's list of files")
    try:
        with connect(source["address"], source["port"], source["token"], own_address=own_address) as head:
            found = head.document(limit_s=1800)
            if (found["repo"], found["revision"]) != (job.inputs["repo"], job.inputs["revision"]):
                raise Failed(f"the head offers {found['repo']} at {found['revision']}: run pulumi up again")
            job.entries = checked(found["files"])
            missing: dict[str, Entry] = {}
            guard = threading.Lock()

            def one(entry: Entry) -> None:
                content = job.check(entry)
                if content is not None:
                    job.whole(entry, content)
                else:
                    with guard:
                        missing[entry.blob] = entry

            job.publish("verifies")
            at_once(job, job.entries, one)
            copy_missing(job, head, missing)
            job.finish()
            head.finished()
    except MirrorError as error:
        raise Failed(str(error)) from None


def copy_missing(job: Job, head: Any, missing: dict[str, Entry]) -> None:
    done = threading.Event()

    def publish() -> None:
        while not done.wait(1):
            job.publish()

    def arrived(blob: Blob) -> None:
        job.moved("on the way", -blob.size)
        # several names may share one blob
        for entry in job.entries:
            if entry.blob == blob.name:
                job.whole(entry, blob.target)

    blobs = [Blob(name, entry.size, job.model / "blobs" / name) for name, entry in missing.items()]
    job.publish("mirrors")
    reporter = threading.Thread(target=publish, daemon=True)
    reporter.start()
    try:
        head.fetch(blobs, streams=STREAMS, on_bytes=lambda count: job.moved("on the way", count), on_whole=arrived)
    finally:
        done.set()
        reporter.join()


def offer_until_taken(source: Source, peers: set[str], status: Status) -> None:
    """A whole head stays until its peers have everything, or have long been silent."""
    end = time.monotonic() + OFFER_S
    while not peers <= source.finished() and source.quiet_s() < QUIET_S and time.monotonic() < end:
        time.sleep(0.5)
    if left := sorted(peers - source.finished()):
        status.note(f"{', '.join(left)} did not say that it has everything: the next pulumi up offers again")


def until_heard(source: Source) -> None:
    """A moment for the peers, whose jobs may only just be starting, to get the words."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < GRACE_S and not 0 < source.quiet_s() < waited:
        time.sleep(0.2)


def words_of(error: BaseException, hub: Path) -> str:
    """What a person is told about the end of a job."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        disk = os.statvfs(hub)
        free = disk.f_bavail * disk.f_frsize / 2**30
        return f"no space left on the disk of the cache ({free:.1f} GiB free): make room, then run pulumi up again"
    expected = isinstance(error, (Failed, checkpoint_hub.HubError, ManifestError, OSError))
    return str(error) if expected else f"{type(error).__name__}: {error}"


def run(folder: Path, hub: Path, inputs: dict[str, Any], status: Status) -> None:
    secret_file = folder / "secret.json"
    secret = json.loads(secret_file.read_text())
    secret_file.unlink()
    job = Job(inputs, hub, status)
    peers = set(inputs["peers"])
    token = secrets.token_hex(32)
    offered = folder / "source.json"
    with contextlib.ExitStack() as open_now:
        source = open_now.enter_context(Source(inputs["address"], sorted(peers), token)) if peers else None
        if source:
            with open(os.open(offered, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump({"id": inputs["id"], "port": source.port, "token": token}, file)
            open_now.callback(offered.unlink, missing_ok=True)
        try:
            with lock(hub, lambda: status.publish(phase="waits for another job on this cache")):
                job.open_tree()
                if inputs["role"] == "fetch":
                    fetch(job, secret.get("hf_token"), source)
                else:
                    mirror(job, secret["source"], inputs["address"])
        except Exception as error:
            words = words_of(error, hub)
            status.publish(state="failed", phase="failed", error=words)
            if source:
                source.fail(f"the head's own copy failed: {words}")
                until_heard(source)
            raise
        job.publish("whole")
        status.publish(state="done")
        if source:
            offer_until_taken(source, peers, status)


def main() -> None:
    folder, hub = Path(os.environ.get("SPARK_JOB", "/job")), Path(os.environ["HF_HUB_CACHE"])
    inputs = json.loads((folder / "inputs.json").read_text())
    status = Status(folder / "status.json", inputs["id"])
    status.publish()
    try:
        run(folder, hub, inputs, status)
    except Exception as error:
        # what failed before there was a tree to work on is said here
        status.publish(state="failed", phase="failed", error=words_of(error, hub))
        # threads in the middle of a download would hold up the exit
        os._exit(1)


if __name__ == "__main__":
    main()
