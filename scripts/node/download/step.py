"""Begin the job on this node's checkpoint, or follow it: the part that lives as long as an SSH session.

The job itself (download.job) runs in a container of its own, so a cut session or Ctrl-C only ends this, and the
next run finds the job and goes on watching. After a reboot there is no container; a new job goes on with what is here.

Inputs (JSON argument): StepInputs. Secrets in the environment of begin: HF_TOKEN (fetch; may be empty), SPARK_SOURCE
(mirror: what begin printed on the head). Output: begin prints a Begun; follow a Verified. Progress on stderr.
Exit codes: 0 done; 1 failed, the cause on stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, TypedDict

from download import job as job_module
from download import job_status
from download.job import Offer, Secret
from download.job_status import JobStatus
from download.tree import JobInputs, Work
from host import chown_trees
from host.console import say, utc_now
from host.our_folder import docker, folder_of
from hub.files import gaps, snapshot_of
from hub.manifest import unverified
from loader import payload, text_of

CACHE = "/cache/huggingface"
PROGRESS_S = 5.0
SILENT_S = 30.0
START_S = 120
END_S = 60


class StepInputs(TypedDict):
    action: Literal["begin", "follow"]
    """Begin the job, or join what runs, and return; or follow it until this node is verified."""
    role: Literal["fetch", "mirror"]
    repo: str
    revision: str
    shards: int
    encoding_file: str
    endpoint: str
    patience_s: float
    image: str
    python: str
    hf_cache: str
    stack: str
    address: str
    peers: list[str]
    source_address: str | None
    """mirror: the head's on the fabric."""


class Begun(TypedDict):
    job: str
    """Its id."""
    offer: Offer | None
    """On a head that has peers: what the other nodes copy with. A secret."""


class Verified(TypedDict):
    """A checkpoint on this node, every file's content hashed and found right."""

    snapshot: str
    """Its path on the node."""
    bytes: int
    """Size of all its files."""
    files: int
    verified_at: str
    """When this step found it verified: ISO 8601, UTC."""


def hub_of(inputs: StepInputs) -> Path:
    return (Path(inputs["hf_cache"]).expanduser() / "hub").resolve()


def work_of(inputs: StepInputs) -> Work:
    """What a job is about: one that runs with the same is joined, with another is ended."""
    return {
        "role": inputs["role"],
        "repo": inputs["repo"],
        "revision": inputs["revision"],
        "shards": inputs["shards"],
        "encoding_file": inputs["encoding_file"],
        "endpoint": inputs["endpoint"],
        "patience_s": inputs["patience_s"],
        "address": inputs["address"],
        "peers": inputs["peers"],
        "image": inputs["image"],
        "hub": str(hub_of(inputs)),
    }


class Container:
    """The job's container on this node, and its folder."""

    def __init__(self, inputs: StepInputs) -> None:
        self.inputs = inputs
        self.name = f"spark-{inputs['stack']}-checkpoint"
        self.folder = folder_of(inputs["stack"]) / "job"
        # what the head's step printed
        self.source: Begun | None = json.loads(os.environ.get("SPARK_SOURCE") or "null")

    def runs(self) -> bool:
        labels = ("--filter", f"label=spark.stack={self.inputs['stack']}", "--filter", "label=spark.job=checkpoint")
        return bool(docker("ps", "--quiet", *labels).stdout.split())

    def job_inputs(self) -> JobInputs | None:
        """Those of the last job."""
        try:
            inputs: JobInputs = json.loads((self.folder / "inputs.json").read_text())
        except (OSError, ValueError):
            return None
        return inputs

    def status(self) -> JobStatus | None:
        return job_status.read(self.folder / "status.json")

    def begin_or_join(self) -> None:
        if self.runs():
            job, status = self.job_inputs(), self.status()
            state = status["state"] if status else None
            # one that is done offers what it has to the peers, which a file lost since is no part of
            over = state == "failed" or (state == "done" and fault(self.inputs) is not None)
            if job and not over and {**job, **work_of(self.inputs), "source_job": self.source_job()} == job:
                say("checkpoint: a job is at it already: watching it")
                return
            if not over:
                say("checkpoint: ending the job that was begun with other settings")
        self.end()
        self.begin()

    def end(self) -> None:
        """No container has the job's name any more, be it running, never started, or on its way out."""
        end = time.monotonic() + END_S
        while docker("ps", "--all", "--quiet", "--filter", f"name=^/{self.name}$").stdout.split():
            if time.monotonic() > end:
                raise SystemExit(f"container {self.name} cannot be removed: look at it with docker inspect {self.name}")
            subprocess.run(["docker", "rm", "--force", self.name], capture_output=True, timeout=END_S)
            time.sleep(0.2)

    def source_job(self) -> str | None:
        """mirror: the head's job, as long as it offers; one that copies from another is begun again."""
        return self.source["job"] if self.source else None

    def begin(self) -> None:
        inputs, hub = self.inputs, hub_of(self.inputs)
        # dockerd would make it itself, as root
        hub.mkdir(parents=True, exist_ok=True)
        take_over(hub, inputs)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o700)
        (self.folder / "job.py").write_text(payload(job_module.__name__))
        document: JobInputs = {**work_of(inputs), "id": secrets.token_hex(6), "source_job": self.source_job()}
        (self.folder / "inputs.json").write_text(json.dumps(document))
        secret: Secret = {
            "hf_token": os.environ.get("HF_TOKEN") or None,
            "address": inputs["source_address"],
            "offer": self.source["offer"] if self.source else None,
        }
        with open(os.open(self.folder / "secret.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(secret, file)
        argv = ["run", "--detach", "--rm", "--name", self.name, "--network", "host"]
        for label in (f"spark.stack={inputs['stack']}", "spark.job=checkpoint"):
            argv += ["--label", label]
        # as the user whose cache it is, so that nothing of it belongs to root
        argv += ["--user", f"{os.getuid()}:{os.getgid()}"]
        argv += ["--volume", f"{hub}:{CACHE}/hub", "--volume", f"{self.folder}:/job"]
        for variable in (
            "HOME=/tmp",
            "HF_HOME=/tmp/huggingface",
            f"HF_HUB_CACHE={CACHE}/hub",
            f"HF_ENDPOINT={inputs['endpoint']}",
            "HF_HUB_OFFLINE=0",
            "HF_HUB_DISABLE_XET=1",
            "HF_HUB_DISABLE_PROGRESS_BARS=1",
            "HF_HUB_DISABLE_TELEMETRY=1",
            "HF_HUB_DOWNLOAD_TIMEOUT=120",
            "HF_HUB_ETAG_TIMEOUT=30",
        ):
            argv += ["--env", variable]
        try:
            docker(*argv, "--entrypoint", inputs["python"], inputs["image"], "/job/job.py")
        finally:
            if not self.runs():
                (self.folder / "secret.json").unlink(missing_ok=True)


def take_over(hub: Path, inputs: StepInputs) -> None:
    """Give files of this model that belong to root, as other tools' containers leave them, to the cache's user."""
    snapshot = snapshot_of(hub, inputs["repo"], inputs["revision"])
    model = snapshot.parent.parent
    folders = [folder for folder in (model, hub / ".locks" / model.name) if folder.is_dir()]
    foreign = [
        path
        for folder in folders
        for path in (folder, *(Path(parent, name) for parent, dirs, files in os.walk(folder) for name in dirs + files))
        if path.lstat().st_uid != os.getuid()
    ]
    if not foreign:
        return
    say(f"checkpoint: {len(foreign)} files of {model.name} belong to another user: they are given to this one")
    mounts = [word for folder in folders for word in ("--volume", f"{folder}:{folder}")]
    run = ["run", "--rm", "--user", "0:0", "--network", "none", *mounts, "--entrypoint", inputs["python"]]
    owner = (str(os.getuid()), str(os.getgid()))
    docker(*run, inputs["image"], "-c", text_of(chown_trees.__name__), *owner, *map(str, folders))


def begin(inputs: StepInputs) -> Begun:
    """The job, and what the other nodes copy with when there are any."""
    container = Container(inputs)
    container.begin_or_join()
    if not inputs["peers"]:
        job_inputs = container.job_inputs()
        return {"job": job_inputs["id"] if job_inputs else "", "offer": None}
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):  # not written yet
            offer: Offer = json.loads((container.folder / "source.json").read_text())
            return {"job": offer["job"], "offer": offer}
        status = container.status()
        if status and status["state"] == "failed":
            raise SystemExit(f"the checkpoint job ended: {status['error']}")
        if not container.runs():
            raise SystemExit("the checkpoint job ended before it said a word: run pulumi up again")
        time.sleep(0.3)
    raise SystemExit(
        f"the checkpoint job did not start serving the other nodes within {START_S} s: is the node overloaded?"
    )


def fault(inputs: StepInputs) -> str | None:
    """What keeps this node's checkpoint from being verified; None when nothing does."""
    snapshot = snapshot_of(hub_of(inputs), inputs["repo"], inputs["revision"])
    found = gaps(snapshot, inputs["shards"], inputs["encoding_file"]) or unverified(snapshot)
    return f"{found[0]}{f' and {len(found) - 1} more' if found[1:] else ''}" if found else None


def follow(inputs: StepInputs) -> Verified:
    """Show the job's progress until this node is whole."""
    container = Container(inputs)
    shown, shown_at, notes = "", 0.0, 0
    while True:
        alive = container.runs()
        status = container.status()  # after `alive`: a job that ended in between has said so
        for note in status["notes"][notes:] if status else []:
            say(f"checkpoint: {note}")
            notes += 1
        if status and status["state"] == "failed":
            # another stack's job, or a hand, may have mended since what this one's last job failed at
            if fault(inputs):
                raise SystemExit(status["error"])
            status = None
            break
        if status and status["state"] == "done":
            break
        if not alive:
            if not fault(inputs):
                break
            raise SystemExit(
                "the checkpoint job is gone and left no result (was it removed, or the node restarted?): run pulumi up "
                "again, it goes on with what is here"
            )
        now = time.monotonic()
        text = job_status.line(status) if status else "checkpoint: starting"
        if now - shown_at >= (PROGRESS_S if text != shown else SILENT_S):
            say(text)
            shown, shown_at = text, now
        time.sleep(0.5)
    if status:
        say(job_status.line({**status, "rate": 0}))
    if found := fault(inputs):
        raise SystemExit(f"{inputs['repo']} is not whole on this node: {found}: run pulumi up again")
    snapshot = snapshot_of(hub_of(inputs), inputs["repo"], inputs["revision"])
    sizes = [path.stat().st_size for path in snapshot.rglob("*") if path.is_file()]
    return {"snapshot": str(snapshot), "bytes": sum(sizes), "files": len(sizes), "verified_at": utc_now()}


def main() -> None:
    inputs: StepInputs = json.loads(sys.argv[1])
    print(json.dumps(begin(inputs) if inputs["action"] == "begin" else follow(inputs)))


if __name__ == "__main__":
    main()
