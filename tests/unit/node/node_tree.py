"""Builds the sysfs of a Spark in a test's folder, from the GID tables that people have reported."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gid import sysfs
from gid.lookup import Refusal, Resolution, resolve
from gid.table import EMPTY_GID, Table

V1, V2 = "IB/RoCE v1", "RoCE v2"
GLOBAL_V6 = "2001:0db8:0000:0000:0000:0000:0000:0001"
LINK_LOCAL = "fe80:0000:0000:0000:0640:c9ff:fe8c:0001"
HEAD, WORKER = "198.51.100.1", "198.51.100.2"
NETDEV, TWIN_NETDEV = "enp1s0f1np1", "enP2p1s0f1np1"
HCA, TWIN = "rocep1s0f1", "roceP2p1s0f1"
TWIN_IP = "203.0.113.1"

Rows = dict[int, tuple[str, str]]
"""GID and type by index; an index up to the last that is not a key is an empty slot."""


def gid_of(ip: str) -> str:
    """The IPv4-mapped GID as the kernel writes it."""
    a, b, c, d = (int(part) for part in ip.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def both(index: int, gid: str) -> Rows:
    """An address' two rows as the kernel adds them, v1 first."""
    return {index: (gid, V1), index + 1: (gid, V2)}


LOCAL = both(0, LINK_LOCAL)
T_HEAD: Rows = {**LOCAL, **both(2, gid_of(HEAD))}
T_SHIFT: Rows = {**LOCAL, **both(4, gid_of(WORKER))}
T_HOLE: Rows = {**LOCAL, 2: (gid_of(HEAD), V1), 4: (gid_of(HEAD), V2)}
T_V6: Rows = {**LOCAL, **both(2, GLOBAL_V6), **both(4, gid_of(HEAD))}
T_NOIP: Rows = dict(LOCAL)
T_TWIN: Rows = {**LOCAL, 5: (gid_of(TWIN_IP), V1), 6: (gid_of(TWIN_IP), V2)}
"""The twin's usable index, 6, is none of T_HEAD's."""
TWIN_ROWS: Rows = {**LOCAL, **both(2, gid_of(TWIN_IP))}
T_FOREIGN: Rows = {**LOCAL, **both(2, gid_of("203.0.113.7"))}


@dataclass
class Hca:
    """One HCA with one port. `state` or `link_layer` None: the file cannot be read."""

    rows: Rows
    netdev: str = NETDEV
    addresses: list[str] = field(default_factory=lambda: [f"{HEAD}/24"])
    state: str | None = "4: ACTIVE"
    link_layer: str | None = "Ethernet"
    slots: int = 6
    pci: str | None = None


def write(path: Path, text: str | None) -> None:
    """A sysfs file; one that refuses the read, as an empty slot's type does, is a folder: open works and read fails."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
    if text is None:
        path.mkdir()
    else:
        path.write_text(text + "\n")


def build(root: Path, hcas: dict[str, Hca], other_netdevs: dict[str, list[str]] | None = None) -> dict[str, str]:
    """Write the tree below `root`; returns the environment that makes the scripts read it."""
    addresses = {"lo": ["127.0.0.1/8"], **(other_netdevs or {})}
    for name, hca in hcas.items():
        addresses[hca.netdev] = hca.addresses
        device = root / "class/infiniband" / name
        port = device / "ports/1"
        write(port / "state", hca.state)
        write(port / "link_layer", hca.link_layer)
        for index in range(max([hca.slots, *(index + 1 for index in hca.rows)])):
            gid, kind = hca.rows.get(index, (EMPTY_GID, None))
            write(port / f"gids/{index}", gid)
            write(port / f"gid_attrs/types/{index}", kind)
            write(port / f"gid_attrs/ndevs/{index}", hca.netdev if kind else None)
        if hca.pci:
            function = root / "devices" / hca.pci
            write(function / "current_link_width", "4")
            (device / "device").symlink_to(function)
    for number, (name, _) in enumerate(addresses.items(), 1):
        write(root / f"class/net/{name}/ifindex", str(number))
    return {"SPARK_SYSFS": str(root), "SPARK_ADDRESSES": json.dumps(addresses)}


def pair(rows: Rows, twin_rows: Rows, *twin_addresses: str, **twin: str | None) -> dict[str, Hca]:
    """A QSFP port's two HCAs: the fabric's, and its twin with addresses of its own."""
    return {HCA: Hca(rows), TWIN: Hca(twin_rows, TWIN_NETDEV, list(twin_addresses), **twin)}  # type: ignore[arg-type]


class Node:
    """A fixture tree that the modules of this process read."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.monkeypatch = monkeypatch
        self.times = 0

    def table(self, hcas: dict[str, Hca], others: dict[str, list[str]] | None = None) -> Table:
        self.times += 1
        for key, value in build(self.root / str(self.times), hcas, others).items():
            self.monkeypatch.setenv(key, value)
        return sysfs.read_table()

    def resolve(
        self, hcas: dict[str, Hca], selector: str | None = None, gid_index: str | int = "resolve", ip: str = HEAD
    ) -> Resolution:
        return resolve(self.table(hcas), ip, selector, gid_index)

    def refusal(self, hcas: dict[str, Hca], selector: str | None = None, gid_index: str | int = "resolve") -> Refusal:
        with pytest.raises(Refusal) as caught:
            self.resolve(hcas, selector, gid_index)
        return caught.value
