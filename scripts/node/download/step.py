"""Begin the job on this node's checkpoint, or follow it: the part that lives as long as an SSH session.

The job itself (download.job) runs in a container of its own, so a cut session or Ctrl-C ends only this step, and the
next run finds the job and watches it. After a reboot the container is gone; a new job resumes with what is on disk.

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
from typing import Literal, TypedDict, cast

from download import job as job_module
from download import job_status
from download.job import Offer, Secret
from download.job_status import JobStatus
from download.tree import JobInputs, Work
from host import chown_trees
from host.console import first_of, say, utc_now
from host.our_folder import docker, folder_of
from hub.files import gaps, snapshot_of
from hub.manifest import files_of, unverified
from loader import payload, text_of

CACHE = "/cache/huggingface"
OUTPUT = "output"
PROGRESS_S = 5.0
SILENT_S = 30.0
START_S = 120
END_S = 60


class StepInputs(Work):
    action: Literal["begin", "follow"]
    """Begin the job, or join the running one, and return; or follow it until this node is verified."""
    python: str
    hf_cache: str
    stack: str


class Begun(TypedDict):
    job: str
    """Its id."""
    offer: Offer | None
    """On a head that has peers: how the other nodes reach it. A secret."""


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


def snapshot_in(inputs: StepInputs) -> Path:
    return snapshot_of(hub_of(inputs), inputs["repo"], inputs["revision"])


class Container:
    """The job's container on this node, and its folder."""

    def __init__(self, inputs: StepInputs) -> None:
        self.inputs = inputs
        self.name = f"spark-{inputs['stack']}-checkpoint"
        self.folder = folder_of(inputs["stack"]) / "job"
        # mirror: what the head's step printed
        self.source: Begun | None = json.loads(os.environ.get("SPARK_SOURCE") or "null")

    def is_running(self) -> bool:
        labels = ("--filter", f"label=spark.stack={self.inputs['stack']}", "--filter", "label=spark.job=checkpoint")
        return bool(docker("ps", "--quiet", *labels).stdout.split())

    def inputs_for(self, identity: str) -> JobInputs:
        """What a job of this id gets."""
        work = {key: value for key, value in self.inputs.items() if key in Work.__annotations__}
        # a mirror copies from one job of the head, as long as that job offers
        source_job = self.source["job"] if self.source else None
        return cast(JobInputs, {**work, "hub": str(hub_of(self.inputs)), "id": identity, "source_job": source_job})

    def job_inputs(self) -> JobInputs | None:
        """Those of the last job."""
        try:
            inputs: JobInputs = json.loads((self.folder / "inputs.json").read_text())
        except (OSError, ValueError):
            return None
        return inputs

    def status(self) -> JobStatus | None:
        return job_status.read(self.folder / "status.json")

    def last_words(self) -> str:
        """What a job printed that could not write its status; empty if nothing."""
        try:
            lines = (self.folder / OUTPUT).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "; ".join([line.strip() for line in lines if line.strip()][-3:])

    def begin_or_join(self) -> None:
        if self.is_running():
            job, status = self.job_inputs(), self.status()
            state = status["state"] if status else None
            # a job that is done still offers its files to the peers, but not a file that was lost since
            over = state == "failed" or (state == "done" and fault(self.inputs) is not None)
            if job and not over and job == self.inputs_for(job["id"]):
                say("checkpoint: a job is already running: watching it")
                return
            if not over:
                say("checkpoint: ending a running job that has other settings")
        self.end()
        self.begin()

    def end(self) -> None:
        """Remove the job's container, also one that never started or is already being removed."""
        end = time.monotonic() + END_S
        while docker("ps", "--all", "--quiet", "--filter", f"name=^/{self.name}$").stdout.split():
            if time.monotonic() > end:
                raise SystemExit(f"container {self.name} cannot be removed: look at it with docker inspect {self.name}")
            subprocess.run(["docker", "rm", "--force", self.name], capture_output=True, timeout=END_S)
            time.sleep(0.2)

    def begin(self) -> None:
        inputs, hub = self.inputs, hub_of(self.inputs)
        # else dockerd would make it, as root
        hub.mkdir(parents=True, exist_ok=True)
        take_over(hub, inputs)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o700)
        (self.folder / "job.py").write_text(payload(job_module.__name__))
        (self.folder / "inputs.json").write_text(json.dumps(self.inputs_for(secrets.token_hex(6))))
        secret: Secret = {
            "hf_token": os.environ.get("HF_TOKEN") or None,
            "offer": self.source["offer"] if self.source else None,
        }
        with open(os.open(self.folder / "secret.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(secret, file)
        argv = ["run", "--detach", "--rm", "--name", self.name, "--network", "host"]
        for label in (f"spark.stack={inputs['stack']}", "spark.job=checkpoint"):
            argv += ["--label", label]
        # as the user who owns the cache, so that nothing in it belongs to root
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
            # a Python that cannot start has no other place for its words
            argv += ["--entrypoint", "sh", inputs["image"], "-c", f'exec "$0" "$@" >/job/{OUTPUT} 2>&1']
            docker(*argv, inputs["python"], "/job/job.py")
        finally:
            if not self.is_running():
                (self.folder / "secret.json").unlink(missing_ok=True)


def take_over(hub: Path, inputs: StepInputs) -> None:
    """Give files of this model that belong to another user, as other tools' containers leave them, to this one."""
    model = snapshot_in(inputs).parent.parent
    folders = [folder for folder in (model, hub / ".locks" / model.name) if folder.is_dir()]
    foreign = [
        path
        for folder in folders
        for path in (folder, *(Path(parent, name) for parent, dirs, files in os.walk(folder) for name in dirs + files))
        if path.lstat().st_uid != os.getuid()
    ]
    if not foreign:
        return
    say(f"checkpoint: {len(foreign)} files of {model.name} belong to another user: giving them to this one")
    mounts = [argument for folder in folders for argument in ("--volume", f"{folder}:{folder}")]
    run = ["run", "--rm", "--user", "0:0", "--network", "none", *mounts, "--entrypoint", inputs["python"]]
    owner = (str(os.getuid()), str(os.getgid()))
    docker(*run, inputs["image"], "-c", text_of(chown_trees.__name__), *owner, *map(str, folders))


def begin(inputs: StepInputs) -> Begun:
    """Begin the job or join it; on a head with peers, wait until it serves them."""
    container = Container(inputs)
    container.begin_or_join()
    if not inputs["peer_fabric_ips"]:
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
        if not container.is_running():
            said = container.last_words() or "without a word: run pulumi up again"
            raise SystemExit(f"the checkpoint job ended: {said}")
        time.sleep(0.3)
    raise SystemExit(
        f"the checkpoint job did not start serving the other nodes within {START_S} s: is the node overloaded?"
    )


def fault(inputs: StepInputs) -> str | None:
    """Why this node's checkpoint is not verified; None when it is."""
    snapshot = snapshot_in(inputs)
    return first_of(gaps(snapshot, inputs["shards"], inputs["encoding_file"]) or unverified(snapshot))


def follow(inputs: StepInputs) -> Verified:
    """Show the job's progress until this node's checkpoint is verified."""
    container = Container(inputs)
    shown, shown_at, notes = "", 0.0, 0
    while True:
        alive = container.is_running()
        status = container.status()  # after `alive`: a job that ended in between has written it
        for note in status["notes"][notes:] if status else []:
            say(f"checkpoint: {note}")
            notes += 1
        if status and status["state"] == "failed":
            # another stack's job, or a person, may have repaired since what this stack's last job failed at
            if fault(inputs):
                raise SystemExit(status["error"])
            status = None
            break
        if status and status["state"] == "done":
            break
        if not alive:
            if not fault(inputs):
                break
            if said := container.last_words():
                raise SystemExit(f"the checkpoint job ended: {said}")
            raise SystemExit(
                "the checkpoint job is gone and left no result (was it removed, or the node restarted?): run pulumi up "
                "again, it resumes with what is already on disk"
            )
        now = time.monotonic()
        text = job_status.line(status) if status else "checkpoint: starting"
        if now - shown_at >= (PROGRESS_S if text != shown else SILENT_S):
            say(text)
            shown, shown_at = text, now
        time.sleep(0.5)
    if status:
        say(job_status.line({**status, "rate": 0}))
    if why := fault(inputs):
        raise SystemExit(f"{inputs['repo']} is not verified on this node: {why}: run pulumi up again")
    snapshot = snapshot_in(inputs)
    sizes = [path.stat().st_size for path, _ in files_of(snapshot)]
    return {"snapshot": str(snapshot), "bytes": sum(sizes), "files": len(sizes), "verified_at": utc_now()}


def main() -> None:
    inputs: StepInputs = json.loads(sys.argv[1])
    print(json.dumps(begin(inputs) if inputs["action"] == "begin" else follow(inputs)))


if __name__ == "__main__":
    main()
