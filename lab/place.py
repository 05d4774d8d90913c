"""Where one pair of the lab keeps its files, and the addresses of its nodes and of the control host."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SERVICES = CHECKOUT / "lab" / "services"
NODE_ROOT = CHECKOUT / "lab" / "node" / "root"
"""Files that both kinds of nodes carry."""

CONTAINERS, MACHINES = "containers", "machines"
KINDS = (CONTAINERS, MACHINES)

PAIRS = 16
"""How many pairs fit side by side: each has a /28 of 10.0.2.0/24."""


@dataclass(frozen=True)
class Node:
    """One node of the pair. `rank` as in the cluster."""

    name: str
    rank: int
    in_ring: bool = False

    @property
    def alias(self) -> str:
        """The node's host name in the lab's ssh_config."""
        return f"lab-{self.name}"

    def mac(self, port: int) -> str:
        """MAC of a network device: port 0 is management, 1 and 2 are the fabric's twins."""
        return f"52:54:00:1a:{self.rank + 1:02x}:{port:02x}"


HEAD = Node("head", 0)
WORKER = Node("worker", 1)
NODES = (HEAD, WORKER)
RING = tuple(Node(name, rank, in_ring=True) for rank, name in enumerate(("head", "worker", "worker2")))
"""Three node-containers, each with a link to each other one."""


def peer(node: Node) -> Node:
    """The node at the other end of the cable."""
    return WORKER if node is HEAD else HEAD


@dataclass(frozen=True)
class Place:
    """One pair: its folder (`root`, absolute), its kind of nodes, and its number among the pairs side by side."""

    root: Path
    kind: str = CONTAINERS
    number: int = 0
    ring: bool = False

    @property
    def nodes(self) -> tuple[Node, ...]:
        return RING if self.ring else NODES

    @classmethod
    def of_environment(cls) -> Place:
        """The place in `$SPARK_LAB`, else `.lab/` of the checkout, with the kind and number of its first `up`."""
        return cls(Path(os.environ.get("SPARK_LAB") or CHECKOUT / ".lab").absolute()).as_made()

    def as_made(self) -> Place:
        """This place with the kind and number that its `up` wrote down; unchanged before the first `up`."""
        try:
            made = json.loads((self.root / "lab.json").read_text())
        except FileNotFoundError:
            return self
        return replace(self, kind=made["nodes"], number=made["pair"], ring=made.get("ring", False))

    def write_down(self) -> None:
        """Keep kind and number for later commands, and the folder for `make clean`, which takes all pairs down."""
        for folder in (self.root, shared() / "places"):
            folder.mkdir(parents=True, exist_ok=True)
        (shared() / "places" / self.identity).write_text(f"{self.root}\n")
        made = {"nodes": self.kind, "pair": self.number, "ring": self.ring}
        part = self.root / f"lab.json.{os.getpid()}"
        part.write_text(json.dumps(made) + "\n")
        # whole, since a guard of this pair may be reading it
        part.replace(self.root / "lab.json")

    @property
    def identity(self) -> str:
        """Eight hex digits, different for each lab on this host: part of every name and label outside the folder."""
        return hashlib.sha256(bytes(self.root)).hexdigest()[:8]

    @property
    def control(self) -> str:
        """The address at which the nodes reach the control host's registry and hub."""
        return f"10.0.2.{self._network + 2}"

    @property
    def services_address(self) -> str:
        """Where registry and hub listen. QEMU's user network forwards `control` to the loopback interface."""
        return "127.0.0.1" if self.kind == MACHINES else self.control

    @property
    def subnet(self) -> str:
        """The management network of a pair of node-containers."""
        return f"10.0.2.{self._network}/28"

    def ssh_address(self, node: Node) -> tuple[str, int]:
        """Host and port of the node's sshd, as the control host reaches it."""
        if self.kind == MACHINES:
            return "127.0.0.1", 2201 + node.rank + 10 * self.number
        return f"10.0.2.{self._network + 5 + node.rank}", 22

    @property
    def _network(self) -> int:
        return 0 if self.kind == MACHINES else 16 * self.number

    @property
    def ssh_config(self) -> Path:
        return self.root / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.root / "known_hosts"

    @property
    def key(self) -> Path:
        """The private key that logs in to both nodes as spark and as root; all pairs of the checkout share it."""
        return shared() / "id_lab"

    @property
    def keys(self) -> Path:
        """The folder of the nodes' own keys."""
        return shared() / "keys"

    @property
    def faults(self) -> Path:
        return self.root / "faults.json"

    @property
    def cable(self) -> Path:
        """A file that exists while the fabric's cable is out."""
        return self.root / "cable-out"

    @property
    def control_sockets(self) -> Path:
        """The folder of ssh's multiplexing sockets, outside `root`: a unix socket's path has at most 107 bytes."""
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        folder = Path(runtime if runtime and os.access(runtime, os.W_OK) else "/tmp")
        return folder / f"spark-lab-{os.getuid()}-{self.identity}"


def shared() -> Path:
    """The folder that all pairs of this checkout share: keys, the registry's images, the lab's own Docker daemon."""
    return Path(os.environ.get("SPARK_LAB_SHARED") or CHECKOUT / ".lab").absolute()


def cache() -> Path:
    """The folder of what is costly to build, shared by all checkouts of a user."""
    explicit = os.environ.get("SPARK_STACK_CACHE")
    if explicit:
        return Path(explicit).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "spark-stack"
