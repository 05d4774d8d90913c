"""What NCCL and Gloo check of a node before the ranks can talk: variables, interfaces, HCAs and their GID rows.

The stand-in sends no data over RDMA. It reads the GID table and fails where NCCL would, in ibv_modify_qp: if the index
has no RoCE v2 row with an IPv4 address, or if the addresses of two ranks' rows share no subnet.
"""

import json
import os
import re
import resource
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

from .log import Log

V4_MAPPED = "0000:0000:0000:0000:0000:ffff:"
SELECTOR = re.compile(r"(=?)([\w.-]+(?::\d+)?(?:,[\w.-]+(?::\d+)?)*)")
MEMLOCK_NEEDED = 1 << 30
"""Bytes of pinned memory that registration needs. Containers get 64 KiB to 8 MiB by default."""


def system_root() -> Path:
    return Path(os.environ.get("LAB_SYSFS") or "/sys")


@dataclass(frozen=True)
class Port:
    """One port of one HCA, as sysfs shows it."""

    hca: str
    number: int
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.hca}:{self.number}"

    @property
    def usable(self) -> bool:
        state = read(self.folder / "state").partition(": ")[2]
        return state == "ACTIVE" and read(self.folder / "link_layer") in ("InfiniBand", "Ethernet")

    def gid(self, index: int) -> str:
        """The row's GID; empty for an index outside the table."""
        return read(self.folder / "gids" / str(index))

    def gid_type(self, index: int) -> str:
        """`RoCE v2` or `IB/RoCE v1`. Empty for an empty slot, whose file cannot be read."""
        return read(self.folder / "gid_attrs" / "types" / str(index))

    def ipv4(self, index: int) -> IPv4Address:
        """The IPv4 address of a routable row."""
        return IPv4Address(int(self.gid(index).removeprefix(V4_MAPPED).replace(":", ""), 16))

    def routable(self, index: int) -> bool:
        return self.gid_type(index) == "RoCE v2" and self.gid(index).startswith(V4_MAPPED)

    def first_routable(self) -> int | None:
        indexes = sorted(int(entry.name) for entry in (self.folder / "gids").glob("[0-9]*"))
        return next((index for index in indexes if self.routable(index)), None)


def read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def all_ports() -> list[Port]:
    folders = sorted((system_root() / "class" / "infiniband").glob("*/ports/[0-9]*"))
    return [Port(folder.parent.parent.name, int(folder.name), folder) for folder in folders]


def addresses() -> dict[str, list[IPv4Interface]]:
    """Each interface's IPv4 addresses with their prefixes, secondary ones too."""
    listing = subprocess.run(["ip", "-json", "address"], stdout=subprocess.PIPE, check=True).stdout
    return {
        link["ifname"]: [
            IPv4Interface(f"{row['local']}/{row['prefixlen']}") for row in link["addr_info"] if row["family"] == "inet"
        ]
        for link in json.loads(listing)
    }


def selects(selector: str, name: str, port: int = 1) -> bool:
    """Whether NCCL's `[=]name[:port],...` selects a port. After `=` whole names count, else prefixes.

    Raises RuntimeError for NCCL's other forms.
    """
    match = SELECTOR.fullmatch(selector)
    if not match:
        raise RuntimeError(f"{selector!r}: of NCCL's selectors the lab's stand-in reads only [=]name[:port],...")
    for member in match[2].split(","):
        device, _, number = member.partition(":")
        if number in ("", str(port)) and (name == device if match[1] else name.startswith(device)):
            return True
    return False


def selected_ports(environment: Mapping[str, str], ports: list[Port]) -> list[Port]:
    selector = environment.get("NCCL_IB_HCA")
    return [port for port in ports if port.usable and (not selector or selects(selector, port.hca, port.number))]


def refuse_empty_variables(environment: Mapping[str, str]) -> None:
    """Refuse what NCCL accepts: an empty variable hides /etc/nccl.conf, which nobody intends."""
    if empty := sorted(name for name, value in environment.items() if name.startswith("NCCL_") and not value.strip()):
        raise RuntimeError(
            f"{', '.join(empty)}: defined but empty, which hides /etc/nccl.conf; leave the variable out instead"
        )


def check_interfaces(environment: Mapping[str, str], host_ip: str) -> None:
    """Check Gloo's device and NCCL's bootstrap interface. Raises RuntimeError with their messages."""
    present = addresses()
    for variable in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        name = environment.get(variable)
        if name is not None and not present.get(name):
            raise RuntimeError(
                "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
                f"Unable to find address for: {name}"
            )
    selector = environment.get("NCCL_SOCKET_IFNAME")
    selected = {name for name in present if (selects(selector, name) if selector else not name.startswith("lo"))}
    chosen = {name: ips for name, ips in present.items() if ips and name in selected}
    if not chosen:
        raise Nccl("invalid usage", "bootstrap.cc:112", "Bootstrap : no socket interface found")
    if not any(host_ip == str(own.ip) for ips in chosen.values() for own in ips):
        listing = ", ".join(f"{name} {' '.join(map(str, ips))}" for name, ips in sorted(chosen.items()))
        raise Nccl(
            "unhandled system error",
            "misc/socket.cc:485",
            f"VLLM_HOST_IP {host_ip} is not on any of the interfaces used: {listing}",
        )


class Nccl(RuntimeError):
    """NCCL's error, with the warnings that NCCL prints before it."""

    def __init__(self, kind: str, where: str, *warnings: str) -> None:
        super().__init__(f"NCCL error: {kind} (run with NCCL_DEBUG=INFO for details)")
        self.where, self.warnings = where, warnings

    def print(self, log: Log, rank: int) -> None:
        host = f"{socket.gethostname()}:{os.getpid()}:{os.getpid() + 7}"
        for warning in self.warnings:
            log.raw(f"\n[{time.strftime('%Y-%m-%d %H:%M:%S')}] {host} [{rank}] {self.where} NCCL WARN {warning}")


Nccl.__name__ = Nccl.__qualname__ = "RuntimeError"
Nccl.__module__ = "builtins"


@dataclass(frozen=True)
class Row:
    """A port with the GID index and address that its queue pairs will use."""

    port: str
    index: int
    address: IPv4Address


def check_rdma(environment: Mapping[str, str]) -> list[Row]:
    """The rows of the selected ports; none without RDMA. Raises Nccl on a node where RDMA fails."""
    if environment.get("NCCL_IB_DISABLE") == "1":
        return []
    ports = selected_ports(environment, all_ports())
    if not os.environ.get("LAB_SYSFS"):
        if not any(Path("/dev/infiniband").glob("uverbs*")):
            ports = []
        elif 0 <= resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < MEMLOCK_NEEDED:
            raise Nccl(
                "unhandled system error",
                "misc/ibvwrap.cc:251",
                "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            )
    if not ports:
        if environment.get("NCCL_NET") == "IB":
            raise Nccl(
                "internal error", "net.cc:212", "NET/IB : No device found.", "Failed to initialize any NET plugin"
            )
        return []
    pinned = environment.get("NCCL_IB_GID_INDEX")
    chosen = []
    for port in ports:
        index = (port.first_routable() or 0) if pinned is None else int(pinned)
        if not port.routable(index):
            gid = port.gid(index) or "::"
            raise Nccl(
                "unhandled system error",
                "misc/ibvwrap.cc:329",
                f"Call to ibv_modify_qp failed with 61 No data available, on dev {port.name}, "
                f"curr state INIT, next state RTR, local GID index {index}, local GID {gid}, remote GID ::",
            )
        chosen.append(Row(port.name, index, port.ipv4(index)))
    return chosen


def check_paths(rows: list[Row], remote: Mapping[str, list[str]], environment: Mapping[str, str]) -> None:
    """Raise Nccl if another rank has a GID address whose subnet none of our rows is in.

    With subnet-aware routing NCCL pairs rows by subnet, so one address of a rank in a subnet of ours is enough.
    """
    own = [address for held in addresses().values() for address in held]
    aware = environment.get("NCCL_IB_SUBNET_AWARE_ROUTING") == "1"
    for rank, theirs in remote.items():
        reached = [any(reaches(row, IPv4Address(address), own) for row in rows) for address in theirs]
        for address, met in zip(theirs, reached, strict=True):
            if not rows or met or (aware and any(reached)):
                continue
            row = rows[0]
            raise Nccl(
                "unhandled system error",
                "misc/ibvwrap.cc:329",
                f"Call to ibv_modify_qp failed with 101 Network is unreachable, on dev {row.port}, curr state INIT, "
                f"next state RTR, local GID index {row.index}, local GID ::ffff:{row.address}, "
                f"remote GID ::ffff:{address} (rank {rank})",
            )


def reaches(row: Row, address: IPv4Address, own: list[IPv4Interface]) -> bool:
    """Whether the row's address is this machine's, with the other address in its subnet."""
    return any(mine.ip == row.address and address in mine.network for mine in own)
