"""What was read from each node: facts.gather's document as typed data. Nothing here judges: preflight.py does."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from components.generation import LiveRank
from gid.lookup import Resolution, resolve
from gid.table import Table

BEGIN, END = "---spark-facts---", "---end---"


class Facts(BaseModel):
    """A part of the document; a node may know more than we ask for."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Problem(Facts):
    probe: str
    error: str


class MemoryFacts(Facts):
    """Lines of /proc/meminfo, in kB."""

    MemTotal: int = 0
    MemFree: int = 0
    MemAvailable: int = 0
    CmaTotal: int | None = None
    CmaFree: int | None = None


class DockerFacts(Facts):
    status: str
    """ok, missing, denied or down."""
    detail: str | None = None
    version: str | None = None
    api_version: str | None = None
    storage_driver: str | None = None


class ContainerFacts(Facts):
    id: str
    name: str
    labels: dict[str, str] = {}
    running: bool
    exit_code: int | None = None
    oom_killed: bool = False
    error: str | None = None
    gpu: bool = False
    vllm: bool = False


class ImageFacts(Facts):
    present: bool
    architecture: str | None = None
    env: list[str] = []
    """Names of variables that the image bakes in and that would steer the fabric."""


class ListenerFacts(Facts):
    port: int
    address: str
    pid: int | None = None
    process: str | None = None
    container: str | None = None
    """Name of the container that holds the port, if one does."""


class GpuApp(Facts):
    pid: int
    name: str
    used_mib: int | None = None
    container: str | None = None


class GpuFacts(Facts):
    name: str | None = None
    driver: str | None = None
    apps: list[GpuApp] = []


class DiskFacts(Facts):
    path: str
    free_bytes: int
    anchor: str = ""
    writable: bool = True
    unwritable: str | None = None
    """The first folder that a download would be refused in."""
    device: int | None = None


class Disks(Facts):
    hf_cache: DiskFacts | None = None
    docker_root: DiskFacts | None = None


class HubError(Facts):
    """What the hub said to somebody without a token."""

    status: int | None = None
    """HTTP status; None when it could not be reached."""
    words: str = ""


class CheckpointFacts(Facts):
    gaps: list[str] = []
    """What is missing of the configured revision, or not proven by its hash, a line each; empty when it is whole."""
    bytes_present: int = 0
    revisions: list[str] = []
    """All revisions of the model that are here."""
    outside: str | None = None
    """Where the model's folder really is, when a link leads out of the cache."""
    hub_error: HubError | None = None
    here: dict[str, int] = {}
    """Bytes by path inside the snapshot, by blob, and by what is under way; only where something is missing."""
    listing: list[tuple[str, str, int]] | None = None
    """Path, blob and bytes of every file of the revision, as the head has it or its hub told; None elsewhere."""
    missing_bytes: int | None = None
    """What this node lacks of the listing; None while there is none. See with_missing."""


class JobFacts(Facts):
    """The last words of the last job on this node's checkpoint."""

    id: str
    state: str
    """running, done or failed; a job that was killed is running for ever, see NodeFacts.job_runs."""


class NfsFacts(Facts):
    refused: str | None = None
    """Why the head's NFS server takes no connection from this node; None when it does."""


class NodeFacts(Facts):
    """One node's document."""

    read_at: str | None = None
    """When it was made, UTC by the node's clock."""
    hostname: str | None = None
    boot_id: str | None = None
    kernel: str | None = None
    machine: str | None = None
    os: str | None = None
    kho_off: bool | None = None
    home: str | None = None
    user: str | None = None
    sudo_n: bool | None = None
    memory: MemoryFacts | None = None
    docker: DockerFacts | None = None
    containers: list[ContainerFacts] | None = None
    image: ImageFacts | None = None
    listeners: list[ListenerFacts] | None = None
    gpu: GpuFacts | None = None
    disk: Disks | None = None
    checkpoint: CheckpointFacts | None = None
    job: JobFacts | None = None
    nfs: NfsFacts | None = None
    earlyoom: bool | None = None
    folder: bool | None = None
    """Whether our folder is there, with its mark; None when that could not be read."""
    problems: list[Problem] = []
    table: dict[str, Any] = {}
    """GID tables and interfaces, in the shape that gid.lookup decides on."""

    def resolution(self, fabric_ip: str, selector: str | None, gid_index: str | int) -> Resolution:
        """The node's HCAs and index from these facts. Raises gid.members.Refusal with the table."""
        table: Table = self.table  # type: ignore[assignment]
        return resolve(table, fabric_ip, selector, gid_index)

    def live_rank(self, stack: str, rank: int, role: str) -> LiveRank | None:
        """The container of one rank of a stack, found by its labels."""
        labels = {"spark.stack": stack, "spark.rank": str(rank)}
        for container in self.containers or []:
            if labels.items() <= container.labels.items():
                return LiveRank(
                    role=role,
                    running=container.running,
                    generation=container.labels.get("spark.generation"),
                    spec=container.labels.get("spark.spec"),
                    exit_code=container.exit_code,
                    oom_killed=container.oom_killed,
                    error=container.error or "",
                )
        return None

    def image_gap(self) -> str | None:
        """Why the image must be pulled, and its folder of kernels made, in words; None when both are there."""
        return self.folder_gap() or (None if self.image and self.image.present else "the image is missing")

    def folder_gap(self) -> str | None:
        # a repair removes first what is there: what nobody could read must not be repaired
        return "our folder is missing" if self.folder is False else None

    def job_runs(self, stack: str) -> bool:
        """Whether a job of this stack is at the checkpoint now; one that only tells others how it ended is not."""
        labels = {"spark.stack": stack, "spark.job": "checkpoint"}
        alive = any(labels.items() <= found.labels.items() and found.running for found in self.containers or [])
        # no words yet: it is just starting
        return alive and (self.job is None or self.job.state == "running")

    def checkpoint_gap(self) -> str | None:
        """Why the checkpoint must be fetched, in words; None when it is whole."""
        if self.checkpoint is None:
            return "the cache could not be read"
        gaps = self.checkpoint.gaps
        return f"{gaps[0]}{f' and {len(gaps) - 1} more' if gaps[1:] else ''}" if gaps else None


def parse(text: str) -> NodeFacts:
    """The document between the marker lines. Raises ValueError for anything else."""
    begin, end = text.find(BEGIN), text.rfind(END)
    if begin < 0 or end < begin:
        raise ValueError(f"no document between {BEGIN} and {END}")
    document = json.loads(text[begin + len(BEGIN) : end])
    return NodeFacts.model_validate({**document, "table": {key: document.get(key) for key in ("hcas", "interfaces")}})


def with_missing(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """The same facts, with each node's missing bytes counted by the head's listing."""
    head = nodes[0].checkpoint
    if head is None or head.listing is None:
        return list(nodes)
    wanted = {blob: (path, size) for path, blob, size in head.listing}
    found = []
    for node in nodes:
        if node.checkpoint and node.checkpoint.gaps:
            here = node.checkpoint.here
            lacks = {blob for blob, (path, size) in wanted.items() if size not in (here.get(blob), here.get(path))}
            # a download that was cut is begun anew in the room that it takes
            partial = sum(size for name, size in here.items() if name not in wanted and name.partition(".")[0] in lacks)
            missing = max(0, sum(wanted[blob][1] for blob in lacks) - partial)
            node = node.model_copy(update={"checkpoint": node.checkpoint.model_copy(update={"missing_bytes": missing})})
        found.append(node)
    return found
