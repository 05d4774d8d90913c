"""Where the lab keeps its things, and the numbers that both of its machines agree on."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
IMAGE_SOURCE = CHECKOUT / "lab" / "image"
SERVICES = CHECKOUT / "lab" / "services"

API_PORT = 8888
"""The head's API in the machine."""

PORT_SHIFT = int(os.environ.get("LAB_PORT_SHIFT") or 0)
"""Added to the lab's ports on 127.0.0.1, for a second lab beside the first; it uses the first one's services."""

MEMORY_MIB = 4096
CPUS = 2


@dataclass(frozen=True)
class Node:
    """One machine of the pair. `rank` as in the cluster; `ssh_port` on 127.0.0.1 of the control host."""

    name: str
    rank: int
    ssh_port: int

    @property
    def alias(self) -> str:
        """Its host name in the lab's ssh_config."""
        return f"lab-{self.name}"

    def mac(self, port: int) -> str:
        """MAC of a network device: port 0 is management, 1 and 2 are the fabric's twins."""
        return f"52:54:00:1a:{self.rank + 1:02x}:{port:02x}"

    @property
    def forwards(self) -> dict[int, int]:
        """Ports of 127.0.0.1 on the control host, each with the machine's port behind it."""
        return {self.ssh_port: 22} | ({API_PORT + PORT_SHIFT: API_PORT} if self.name == "head" else {})


HEAD = Node("head", 0, 2201 + PORT_SHIFT)
WORKER = Node("worker", 1, 2202 + PORT_SHIFT)
NODES = (HEAD, WORKER)


def peer(node: Node) -> Node:
    """The machine at the other end of the cable."""
    return WORKER if node is HEAD else HEAD


@dataclass(frozen=True)
class Place:
    """The folder of one running lab. `root` is absolute."""

    root: Path

    @classmethod
    def of_environment(cls) -> Place:
        """`$SPARK_LAB`, else `.lab/` of the checkout."""
        return cls(Path(os.environ.get("SPARK_LAB") or CHECKOUT / ".lab").absolute())

    @property
    def ssh_config(self) -> Path:
        return self.root / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.root / "known_hosts"

    @property
    def key(self) -> Path:
        """Private key that opens both machines, for spark and for root."""
        return self.root / "id_lab"

    @property
    def keys(self) -> Path:
        """Folder of the machines' own keys."""
        return self.root / "keys"

    @property
    def faults(self) -> Path:
        return self.root / "faults.json"

    @property
    def cable(self) -> Path:
        """Exists while the fabric's cable is out."""
        return self.root / "cable-out"

    @property
    def control_sockets(self) -> Path:
        """Folder of ssh's multiplexing sockets, outside `root`: a unix socket's path ends at 107 bytes."""
        name = f"spark-lab-{os.getuid()}-{hashlib.sha256(bytes(self.root)).hexdigest()[:8]}"
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        return Path(runtime if runtime and os.access(runtime, os.W_OK) else "/tmp") / name

    def console(self, node: Node) -> Path:
        return self.root / f"{node.name}.console"


def cache() -> Path:
    """What is costly to make and shared by all checkouts of a user."""
    explicit = os.environ.get("SPARK_STACK_CACHE")
    if explicit:
        return Path(explicit).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "spark-stack"
