"""RankSpec: the whole of one rank's container as plain data, and the hash over all ranks.

Whatever reaches the container is a field here, so whatever changes the container changes the hash. A secret's value is
not: it is a file on the node, and the spec has the mount of its folder.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal


@dataclass(frozen=True)
class Upload:
    """A file written into the container before it starts."""

    path: str
    content: str


@dataclass(frozen=True)
class Volume:
    """An anonymous volume that is created and removed with the container."""

    driver: str
    options: Mapping[str, str]
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Mount:
    type: Literal["bind", "volume"]
    target: str
    source: str | None = None
    """Path on the node, relative to the stack's folder there; that of the hub cache is as in the stack file."""
    read_only: bool | None = None
    volume: Volume | None = None


@dataclass(frozen=True)
class Ulimit:
    name: str
    soft: int
    hard: int


@dataclass(frozen=True)
class HealthCheck:
    """Durations are as Docker prints them, or every refresh would show a difference."""

    tests: tuple[str, ...]
    interval: str
    timeout: str
    start_period: str
    retries: int


@dataclass(frozen=True)
class RankSpec:
    """One rank's container, as far as settings alone decide it; the defaults are what every rank has."""

    name: str
    image: str
    """repository@sha256:digest."""
    entrypoint: tuple[str, ...]
    argv: tuple[str, ...]
    """The engine's command, which the entrypoint finally executes."""
    env: Mapping[str, str]
    """Without a pinned GID index, which only the node's lookup provides."""
    uploads: tuple[Upload, ...]
    mounts: tuple[Mount, ...]
    labels: Mapping[str, str]
    health_check: HealthCheck | None
    devices: tuple[str, ...] = ("/dev/infiniband",)
    gpus: str = "all"
    network_mode: str = "host"
    ipc_mode: str = "host"
    """With the host's IPC, a shm_size would have no effect, so none is declared."""
    ulimits: tuple[Ulimit, ...] = (Ulimit("memlock", -1, -1), Ulimit("stack", 67108864, 67108864))
    restart: str = "no"
    """dockerd cannot restore a pair, and a crash loop uses up unified memory."""
    must_run: bool = True
    """Whether a container that does not run counts as missing, to be created again."""
    stop_grace_s: int = 20
    """Seconds from SIGTERM to SIGKILL: a serving worker of the real engine takes 12 s to end."""
    log_driver: str = "json-file"
    log_options: Mapping[str, str] = field(default_factory=lambda: {"max-size": "50m", "max-file": "3"})


def container_name(stack: str, rank: int) -> str:
    return f"spark-{stack}-rank{rank}"


def spec_hash(specs: Sequence[RankSpec]) -> str:
    """Twelve hex digits over all ranks, in rank order: when they change, the pair is replaced."""
    text = json.dumps(specs, default=vars, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:12]
