"""The long work on a checkpoint, inside a container of the runtime image that outlives the session that started it.

fetch (head): download what is missing of one revision with huggingface_hub, verify every blob by its hash, and offer
each to the peers as soon as it is verified. mirror (other nodes): copy what is missing from the head, while it arrives
there. In the end every file of the revision is a link to a verified blob, and refs/main is written.

Inputs: /job/inputs.json (tree.JobInputs); /job/secret.json (Secret), read once and removed. The environment holds
huggingface_hub's variables.
Output: /job/status.json (job_status.JobStatus); /job/source.json (0600: Offer) while the head offers.
Exit codes: 0 verified; 1 failed, the cause in status.json.
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
from hub.manifest import Entry, ManifestError, checked, listed, of_snapshot, one_of_each
from mirror.fetch import Blob, Fetch
from mirror.head import Head, MirrorError
from mirror.source import Source

FILES_AT_ONCE = 8
STREAMS = 8
"""Connections of one mirror. A stream hashes what it receives, so they scale with processors."""
GRACE_S, QUIET_S, OFFER_S = 20, 600, 6 * 3600
"""How long a head waits for its peers: after it failed; when it is verified and none is connected; at the most."""


class Offer(TypedDict):
    """The head's port for the other nodes, and the token that admits them."""

    job: str
    port: int
    token: str


class Secret(TypedDict):
    hf_token: str | None
    offer: Offer | None
    """mirror: the head's."""


class Manifest(TypedDict):
    """What the head announces to the mirrors."""

    repo: str
    revision: str
    files: list[tuple[str, str, int]]
    """Path, blob and bytes of each."""
    list_is_the_hubs: bool


def at_once(job: Job, entries: list[Entry], do: Callable[[Entry], None]) -> None:
    """Call `do` for all entries, several at once. The first failure is raised, and nothing more is begun."""
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
    """The head's copy; offers each blob as soon as it is verified."""
    inputs = job.inputs
    hub_client.remove_partial(job.hub, job.model)
    complete = not gaps(job.snapshot, inputs["shards"], inputs["encoding_file"])
    hub = hub_client.Hub(inputs["repo"], inputs["revision"], token, inputs["patience_s"], job.trouble)
    job.entries = listed(job.snapshot) or list_of(job, hub, of_snapshot(job.snapshot) if complete else None)
    if source:
        rows = [(entry.path, entry.blob, entry.size) for entry in job.entries]
        source.announce(
            Manifest(
                repo=inputs["repo"],
                revision=inputs["revision"],
                files=rows,
                list_is_the_hubs=job.list_is_the_hubs,
            )
        )

    def fetch_one(entry: Entry) -> None:
        content = job.check(entry)
        for _ in range(2):
            if content is not None:
                break
            hub.download(entry, job.model / "blobs" / entry.blob)
            content = job.check(entry)
        if content is None:
            raise Failed(
                f"{entry.path} arrived twice from {hub.endpoint} with content that does not match its hash "
                f"{entry.blob[:12]}: something in between damages it, or this node's memory or disk (see `dmesg`)"
            )
        job.set_verified(entry, content)
        if source:
            source.offer(entry.blob, (job.snapshot / entry.path).resolve())

    job.publish("verifying" if complete else "downloading")
    # small files first, so that a wrong revision or a closed repository shows at once
    at_once(job, sorted(one_of_each(job.entries), key=lambda entry: entry.size > 2**20), fetch_one)
    job.finish()


def list_of(job: Job, hub: hub_client.Hub, on_disk: list[Entry] | None) -> list[Entry]:
    """The hub's list. Where it gives none, and the index's files are all here, as many as their links tell."""
    try:
        return checked(hub.listing(patient=on_disk is None))
    except hub_client.HubError as error:
        if on_disk is None:
            raise
        job.status.note(f"verifying what is on the disk, without the hub's list of files: {error}")
        job.list_is_the_hubs = False
        return on_disk


def mirror(job: Job, head_fabric_ip: str, offer: Offer) -> None:
    """This node's copy, from the head."""
    job.publish("waiting for the head's list of files")
    [own] = job.inputs["fabric_ips"]
    try:
        with Head(head_fabric_ip, offer["port"], offer["token"], own_fabric_ip=own) as head:
            manifest: Manifest = head.document(limit_s=1800)
            if (manifest["repo"], manifest["revision"]) != (job.inputs["repo"], job.inputs["revision"]):
                raise Failed(
                    f"the head offers {manifest['repo']} at {manifest['revision']}, not what this node needs: "
                    "run pulumi up again"
                )
            job.entries = checked(manifest["files"])
            job.list_is_the_hubs = manifest["list_is_the_hubs"]
            missing: dict[str, Entry] = {}
            guard = threading.Lock()

            def check_one(entry: Entry) -> None:
                content = job.check(entry)
                if content is not None:
                    job.set_verified(entry, content)
                else:
                    with guard:
                        missing[entry.blob] = entry

            job.publish("verifying")
            at_once(job, one_of_each(job.entries), check_one)
            copy_missing(job, head, missing)
            job.finish()
            head.finished()
    except MirrorError as error:
        raise Failed(str(error)) from None


def copy_missing(job: Job, head: Head, missing: dict[str, Entry]) -> None:
    done = threading.Event()

    def publish() -> None:
        while not done.wait(1):
            job.publish()

    def arrived(blob: Blob) -> None:
        job.moved("on the way", -blob.size)
        job.set_verified(missing[blob.name], blob.target)

    blobs = [Blob(name, entry.size, job.model / "blobs" / name) for name, entry in missing.items()]
    job.publish("mirroring")
    reporter = threading.Thread(target=publish, daemon=True)
    reporter.start()
    try:
        Fetch(head, blobs, on_bytes=lambda count: job.moved("on the way", count), on_verified=arrived).run(STREAMS)
    finally:
        done.set()
        reporter.join()


def offer_until_taken(source: Source, peers: set[str], status: Status) -> None:
    """Stay until the peers have everything, or have been silent for long."""
    end = time.monotonic() + OFFER_S
    while not peers <= source.finished() and source.quiet_s() < QUIET_S and time.monotonic() < end:
        time.sleep(0.5)
    if left := sorted(peers - source.finished()):
        status.note(f"{', '.join(left)} did not confirm a complete copy: the next pulumi up offers it again")


def wait_until_told(source: Source) -> None:
    """Give the peers, whose jobs may only just be starting, a moment to read why the head failed."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < GRACE_S and not 0 < source.quiet_s() < waited:
        time.sleep(0.2)


def explained(error: BaseException, hub: Path) -> str:
    """Why a job failed, for a person."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        disk = os.statvfs(hub)
        free = disk.f_bavail * disk.f_frsize / 2**30
        return f"no space left on the disk of the cache ({free:.1f} GiB free): make room, then run pulumi up again"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}: mend this on the node, then run pulumi up again"
    expected = isinstance(error, (Failed, hub_client.HubError, ManifestError, OSError))
    return str(error) if expected else f"{type(error).__name__}: {error}"


def run(folder: Path, hub: Path, inputs: JobInputs, status: Status) -> None:
    secret_file = folder / "secret.json"
    secret: Secret = json.loads(secret_file.read_text())
    secret_file.unlink()
    job = Job(inputs, hub, status)
    peers = set(inputs["peer_fabric_ips"])
    token = secrets.token_hex(32)
    offered = folder / "source.json"
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(Source(inputs["fabric_ips"], sorted(peers), token)) if peers else None
        if source:
            offer: Offer = {"job": inputs["id"], "port": source.port, "token": token}
            with open(os.open(offered, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(offer, file)
            stack.callback(offered.unlink, missing_ok=True)
        try:
            with locked(hub, lambda: status.publish(phase="waiting for another job on this cache")):
                job.open_tree()
                if inputs["role"] == "fetch":
                    fetch(job, secret["hf_token"], source)
                elif inputs["head_fabric_ip"] and secret["offer"]:
                    mirror(job, inputs["head_fabric_ip"], secret["offer"])
                else:
                    raise Failed("the head offers nothing to copy: run pulumi up again")
        except Exception as error:
            reason = explained(error, hub)
            status.publish(state="failed", phase="failed", error=reason)
            if source:
                source.fail(f"the head's own copy failed: {reason}")
                wait_until_told(source)
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
        # also what failed before there was a tree to work on
        status.publish(state="failed", phase="failed", error=explained(error, hub))
        # threads in the middle of a download would hold up the exit
        os._exit(1)


if __name__ == "__main__":
    main()
