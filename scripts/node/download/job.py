"""The long work on a checkpoint, inside a container of the runtime image that outlives the session that started it.

fetch (head): download what is missing of one revision with huggingface_hub, verify every blob by its hash, and offer
each to the peers as soon as it is verified. mirror (other nodes): copy from the head what is missing, while it arrives
there. Both end with every file of the revision a link to a verified blob, and refs/main written.

Inputs: /job/inputs.json (tree.JobInputs); /job/secret.json (Secret), read once and removed. huggingface_hub's variables
are in the environment.
Output: /job/status.json (job_status.JobStatus); /job/source.json (0600: Offer) while the head offers.
Exit codes: 0 verified; 1 not, the cause in status.json.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypedDict

from download import hub_client
from download.job_status import Status
from download.tree import Failed, Job, JobInputs
from hub.files import gaps
from hub.lock import locked
from hub.manifest import Entry, ManifestError, checked, of_snapshot, one_of_each
from mirror.copy import Blob, Copy, MirrorError, connect
from mirror.source import Source

FILES_AT_ONCE = 8
STREAMS = 8
"""Connections of one mirror. A stream hashes what it receives, so they scale with processors."""
GRACE_S, QUIET_S, OFFER_S = 20, 600, 6 * 3600
"""How long a head that failed, and one that is whole, waits for peers that do not come; and for one that never ends."""


class Offer(TypedDict):
    """Where the other nodes copy from, and the token that lets them."""

    job: str
    port: int
    token: str


class Secret(TypedDict):
    hf_token: str | None
    address: str | None
    """mirror: the head's on the fabric."""
    offer: Offer | None
    """mirror: the head's."""


class Manifest(TypedDict):
    """What the head announces to the mirrors."""

    repo: str
    revision: str
    files: list[tuple[str, str, int]]
    """Path, blob and bytes of each."""


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
    """The head's copy, each blob offered as soon as it is verified."""
    inputs = job.inputs
    hub_client.remove_partial(job.hub, job.model)
    known = of_snapshot(job.snapshot) if not gaps(job.snapshot, inputs["shards"], inputs["encoding_file"]) else None
    hub = hub_client.Hub(inputs["repo"], inputs["revision"], token, inputs["patience_s"], job.trouble)
    # a whole tree of links tells its own hashes: proving it needs no hub
    job.entries = known or checked(hub.listing())
    if source:
        rows = [(entry.path, entry.blob, entry.size) for entry in job.entries]
        manifest: Manifest = {"repo": inputs["repo"], "revision": inputs["revision"], "files": rows}
        source.announce(manifest)

    def one(entry: Entry) -> None:
        content = job.check(entry)
        for _ in range(2):
            if content is not None:
                break
            hub.download(entry, job.model / "blobs" / entry.blob)
            content = job.check(entry)
        if content is None:
            raise Failed(
                f"{entry.path} arrived twice from {hub.endpoint} with another content than its hash {entry.blob[:12]} "
                "says: something between damages it, or this node's memory or disk does (`dmesg`)"
            )
        job.set_verified(entry, content)
        if source:
            source.offer(entry.blob, (job.snapshot / entry.path).resolve())

    job.publish("downloads" if known is None else "verifies")
    # the small files first: a wrong revision or a closed repository shows at once
    at_once(job, sorted(one_of_each(job.entries), key=lambda entry: entry.size > 2**20), one)
    job.finish()


def mirror(job: Job, address: str, offer: Offer) -> None:
    """This node's copy, from the head."""
    job.publish("waits for the head's list of files")
    try:
        with connect(address, offer["port"], offer["token"], own_address=job.inputs["address"]) as head:
            manifest: Manifest = head.document(limit_s=1800)
            if (manifest["repo"], manifest["revision"]) != (job.inputs["repo"], job.inputs["revision"]):
                raise Failed(f"the head offers {manifest['repo']} at {manifest['revision']}: run pulumi up again")
            job.entries = checked(manifest["files"])
            missing: dict[str, Entry] = {}
            guard = threading.Lock()

            def one(entry: Entry) -> None:
                content = job.check(entry)
                if content is not None:
                    job.set_verified(entry, content)
                else:
                    with guard:
                        missing[entry.blob] = entry

            job.publish("verifies")
            at_once(job, one_of_each(job.entries), one)
            copy_missing(job, head, missing)
            job.finish()
            head.finished()
    except MirrorError as error:
        raise Failed(str(error)) from None


def copy_missing(job: Job, head: Copy, missing: dict[str, Entry]) -> None:
    done = threading.Event()

    def publish() -> None:
        while not done.wait(1):
            job.publish()

    def arrived(blob: Blob) -> None:
        job.moved("on the way", -blob.size)
        job.set_verified(missing[blob.name], blob.target)

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
    expected = isinstance(error, (Failed, hub_client.HubError, ManifestError, OSError))
    return str(error) if expected else f"{type(error).__name__}: {error}"


def run(folder: Path, hub: Path, inputs: JobInputs, status: Status) -> None:
    secret_file = folder / "secret.json"
    secret: Secret = json.loads(secret_file.read_text())
    secret_file.unlink()
    job = Job(inputs, hub, status)
    peers = set(inputs["peers"])
    token = secrets.token_hex(32)
    offered = folder / "source.json"
    with contextlib.ExitStack() as open_now:
        source = open_now.enter_context(Source(inputs["address"], sorted(peers), token)) if peers else None
        if source:
            offer: Offer = {"job": inputs["id"], "port": source.port, "token": token}
            with open(os.open(offered, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(offer, file)
            open_now.callback(offered.unlink, missing_ok=True)
        try:
            with locked(hub, lambda: status.publish(phase="waits for another job on this cache")):
                job.open_tree()
                if inputs["role"] == "fetch":
                    fetch(job, secret["hf_token"], source)
                elif secret["address"] and secret["offer"]:
                    mirror(job, secret["address"], secret["offer"])
                else:
                    raise Failed("the head offers nothing to copy: run pulumi up again")
        except Exception as error:
            words = words_of(error, hub)
            status.publish(state="failed", phase="failed", error=words)
            if source:
                source.fail(f"the head's own copy failed: {words}")
                until_heard(source)
            raise
        job.publish("verified")
        status.publish(state="done")
        if source:
            offer_until_taken(source, peers, status)


def main() -> None:
    folder, hub = Path(os.environ.get("SPARK_JOB", "/job")), Path(os.environ["HF_HUB_CACHE"])
    inputs: JobInputs = json.loads((folder / "inputs.json").read_text())
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
