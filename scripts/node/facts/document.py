"""The facts document: what facts.gather gets asked and prints on a node, and the control host reads. Pure data.

None: could not be read, or does not apply. Standard library only, Python 3.10.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from gid.table import Address, Port
from patches.files import PatchSource

BEGIN, END = "---spark-facts---", "---end---"

Kind = TypeVar("Kind")


class FactsInputs(TypedDict, total=False):
    """What to read on one node; a key that is left out, or null, is not read."""

    stack: str
    hf_cache: str
    """Default ~/.cache/huggingface."""
    repo: str
    revision: str
    shards: int
    """How many the revision's index names."""
    encoding_file: str
    endpoint: str | None
    """The hub to ask if the revision is not verified; None on a node that downloads nothing."""
    image: str
    """repository@sha256:digest"""
    ports: list[int]
    head_fabric_ip: str | None
    """Of the head, where this node reads from its NFS server."""
    exports: bool
    """Whether this node is the head that the others read from."""
    patches: PatchInputs | None


class PatchInputs(TypedDict):
    lock: str
    source: PatchSource
    fetches: bool
    """Whether this node is the one that fetches what is missing."""


@dataclass(frozen=True)
class Problem:
    probe: str
    error: str


@dataclass(frozen=True)
class MemoryFacts:
    """Lines of /proc/meminfo, in kB; None if this kernel has none."""

    MemTotal: int | None = None
    MemAvailable: int | None = None
    CmaTotal: int | None = None
    CmaFree: int | None = None


@dataclass(frozen=True)
class LinkFacts:
    """A netdev; None is what its kernel does not tell."""

    mtu: int | None = None
    width: int | None = None
    """Lanes of the PCIe link behind it, now."""
    most_width: int | None = None


@dataclass(frozen=True)
class DockerFacts:
    status: str
    """ok, missing, denied or down."""
    detail: str | None = None
    version: str | None = None
    api_version: str | None = None
    root_dir: str | None = None
    storage_driver: str | None = None
    cli: bool = True
    """Whether the program `docker` is on the PATH of an SSH session."""
    elsewhere: str | None = None
    """What sends that program to another daemon than this one, if anything does."""


@dataclass(frozen=True)
class ContainerFacts:
    id: str
    name: str
    running: bool
    labels: dict[str, str] = field(default_factory=dict)
    """Only those that begin with spark."""
    exit_code: int | None = None
    oom_killed: bool = False
    error: str | None = None
    gpu: bool = False
    vllm: bool = False


@dataclass(frozen=True)
class ImageFacts:
    present: bool
    architecture: str | None = None
    env: list[str] = field(default_factory=list)
    """Names of the image's variables that would steer the fabric."""


@dataclass(frozen=True)
class ListenerFacts:
    """Who listens on a port; pid and process are None if we may not look at that user's processes."""

    port: int
    address: str
    pid: int | None = None
    process: str | None = None
    container: str | None = None
    """Name of the container that holds the port, if any."""


@dataclass(frozen=True)
class GpuApp:
    pid: int
    name: str
    used_mib: int | None = None
    """None on unified memory, which hides it."""
    container: str | None = None


@dataclass(frozen=True)
class GpuFacts:
    driver: str | None = None
    apps: list[GpuApp] = field(default_factory=list)
    """The processes that hold its memory."""


@dataclass(frozen=True)
class DiskFacts:
    path: str
    free_bytes: int
    unwritable: str | None = None
    """The first folder that a download could not write to."""


@dataclass(frozen=True)
class Disks:
    hf_cache: DiskFacts | None = None
    docker_root: DiskFacts | None = None


@dataclass(frozen=True)
class HubError:
    """What the hub answered to a request without a token."""

    status: int | None = None
    """HTTP status; None when it could not be reached."""
    message: str = ""
    code: str = ""
    """Its own word for it, such as RepoNotFound, where the status says 401 for several things."""


@dataclass(frozen=True)
class CheckpointFacts:
    gaps: list[str] = field(default_factory=list)
    """What is missing of the revision, or not verified, a line each."""
    bytes_present: int = 0
    revisions: list[str] = field(default_factory=list)
    """Of this model on this node."""
    outside: str | None = None
    """The model's real folder, if a link leads out of the cache, which no container can follow."""
    hub_error: HubError | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes by path inside the snapshot, by blob, and by unfinished download; only if something is missing."""
    listing: list[tuple[str, str, int]] | None = None
    """Path, blob and bytes of every file of the revision, from the head's disk or its hub; None on other nodes."""
    missing_bytes: int | None = None
    """What this node lacks of the head's listing; the control host counts it. None without a listing."""


@dataclass(frozen=True)
class JobFacts:
    """How the last job on this node's checkpoint ended."""

    id: str
    state: str
    """running, done or failed; a job that was killed stays running."""


@dataclass(frozen=True)
class NfsFacts:
    refused: str | None = None
    """Why the head's NFS server takes no connection from this node; None when it does, and on the head."""
    tools: bool = True
    """Whether the head has Debian's NFS server, which exports its cache."""


@dataclass(frozen=True)
class PatchFacts:
    missing: list[str] = field(default_factory=list)
    """What is not in its place here, a line a file."""
    problems: list[str] = field(default_factory=list)
    """Why it cannot be fetched either, a line a file; empty on a node that fetches nothing."""


@dataclass(frozen=True)
class Facts:
    """One node's document."""

    read_at: str | None = None
    """UTC by the node's clock."""
    boot_id: str | None = None
    kernel: str | None = None
    machine: str | None = None
    os: str | None = None
    kho_off: bool | None = None
    user: str | None = None
    memory: MemoryFacts | None = None
    interfaces: dict[str, list[Address]] | None = None
    hcas: list[Port] | None = None
    links: dict[str, LinkFacts] | None = None
    """By netdev."""
    docker: DockerFacts | None = None
    containers: list[ContainerFacts] | None = None
    image: ImageFacts | None = None
    listeners: list[ListenerFacts] | None = None
    gpu: GpuFacts | None = None
    disk: Disks | None = None
    checkpoint: CheckpointFacts | None = None
    job: JobFacts | None = None
    nfs: NfsFacts | None = None
    patches: PatchFacts | None = None
    folder: bool | None = None
    """Whether the stack's folder exists, with its marker."""
    earlyoom: bool | None = None
    problems: list[Problem] = field(default_factory=list)


def printed(facts: Facts) -> str:
    """The document between its marker lines, one key a line, so that no line gets too long for a line-wise reader."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in asdict(facts).items())
    return f"{BEGIN}\n{{\n{lines}\n}}\n{END}"


def parsed(text: str, kind: type[Kind]) -> Kind:
    """The document between the marker lines, as Facts or a class of it. Raises ValueError for anything else."""
    begin, end = text.find(BEGIN), text.rfind(END)
    if begin < 0 or end < begin:
        raise ValueError(f"no document between {BEGIN} and {END}")
    try:
        document: Kind = typed(kind, json.loads(text[begin + len(BEGIN) : end]))
    except (AttributeError, TypeError) as error:
        raise ValueError(str(error)) from None
    return document


def typed(kind: Any, value: Any) -> Any:
    """A JSON value as a type of this module; leaves out keys that the class does not have."""
    if isinstance(kind, type) and is_dataclass(kind):
        types = hints(kind)
        return kind(
            **{each.name: typed(types[each.name], value[each.name]) for each in fields(kind) if each.name in value}
        )
    if type(None) in get_args(kind):
        return None if value is None else typed(get_args(kind)[0], value)
    if get_origin(kind) is dict:
        return {key: typed(get_args(kind)[1], each) for key, each in value.items()}
    return [typed(get_args(kind)[0], each) for each in value] if get_origin(kind) is list else value


@cache
def hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
