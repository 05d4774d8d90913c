"""Reads the HCAs and interfaces of the machine it runs on into a gid.table.Table.

Reads only, and judges nothing. Runs on a node and inside the runtime image: standard library only, Python 3.10, no
`ip`, no `show_gids`. Inputs for tests: SPARK_SYSFS (a folder in place of /sys) and SPARK_ADDRESSES (JSON, netdev to
["ip/prefix"], in place of the kernel's answer).
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator

from gid.table import ACTIVE, EMPTY_GID, Address, Port, Row, Table


def sysfs_root() -> str:
    """The sysfs of this machine, or the tree a test put in its place."""
    return os.environ.get("SPARK_SYSFS", "/sys")


def read_text(path: str) -> str | None:
    """The file's text, stripped; None if it cannot be read. sysfs refuses many reads, such as an empty slot's type."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 4096).decode("utf-8", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)


def names_in(path: str) -> list[str]:
    """Sorted names in a folder; none if it does not exist."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The (type, payload) pairs of one netlink datagram."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, offset)
        if length < 16:
            return
        yield kind, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3


def _kernel_addresses() -> dict[int, list[Address]]:
    """IPv4 addresses by interface number, from a netlink dump (rtnetlink(7): RTM_GETADDR, struct ifaddrmsg)."""
    addresses: dict[int, list[Address]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(5)
        kernel.send(struct.pack("=IHHIIBBBBI", 24, 22, 0x301, 1, 0, socket.AF_INET, 0, 0, 0, 0))
        while True:
            for kind, payload in _messages(kernel.recv(1 << 16)):
                if kind == 3:
                    return addresses
                if kind == 2:
                    raise OSError(-struct.unpack_from("=i", payload)[0], "netlink refused to list the addresses")
                _, prefix, _, _, number = struct.unpack_from("=BBBBI", payload)
                attributes: dict[int, bytes] = {}
                offset = 8
                while offset + 4 <= len(payload):
                    size, attribute = struct.unpack_from("=HH", payload, offset)
                    if size < 4:
                        break
                    attributes[attribute] = payload[offset + 4 : offset + size]
                    offset += (size + 3) & ~3
                # IFA_LOCAL is our end; on a point-to-point link IFA_ADDRESS is the peer's.
                packed = attributes.get(2) or attributes.get(1)
                if packed and len(packed) == 4:
                    ip = socket.inet_ntop(socket.AF_INET, packed)
                    addresses.setdefault(number, []).append({"ip": ip, "prefix": prefix})


def read_interfaces() -> dict[str, list[Address]]:
    """The IPv4 addresses of every netdev. OSError when the kernel does not list them."""
    net = f"{sysfs_root()}/class/net"
    given: dict[str, list[str]] | None = json.loads(os.environ.get("SPARK_ADDRESSES", "null"))
    by_number = _kernel_addresses() if given is None else {}
    interfaces: dict[str, list[Address]] = {}
    for name in names_in(net):
        number = read_text(f"{net}/{name}/ifindex")
        if number is None:
            continue
        if given is None:
            interfaces[name] = by_number.get(int(number), [])
        else:
            pairs = [text.split("/") for text in given.get(name, [])]
            interfaces[name] = [{"ip": ip, "prefix": int(prefix)} for ip, prefix in pairs]
    return interfaces


def _numbers_in(path: str) -> list[int]:
    return sorted(int(name) for name in names_in(path) if name.isdecimal())


def _read_rows(port: str) -> list[Row]:
    """The filled slots under one port's folder, by index as a number."""
    rows: list[Row] = []
    for index in _numbers_in(f"{port}/gids"):
        gid = read_text(f"{port}/gids/{index}")
        if gid and gid != EMPTY_GID:
            kind, ndev = (read_text(f"{port}/gid_attrs/{attribute}/{index}") for attribute in ("types", "ndevs"))
            rows.append({"index": index, "gid": gid, "type": kind, "ndev": ndev})
    return rows


def _netdev_of(device: str, port: int) -> str | None:
    """A port's netdev: what one of its first GIDs names, else a soft HCA's `parent`, else the function's only one."""
    for index in range(8):
        if named := read_text(f"{device}/ports/{port}/gid_attrs/ndevs/{index}"):
            return named
    nets = names_in(f"{device}/device/net")
    return read_text(f"{device}/parent") or (nets[0] if len(nets) == 1 else None)


def _pci_of(device: str) -> str | None:
    """Address of the PCIe function behind an HCA, or None for a soft one."""
    function = f"{device}/device"
    is_pci = read_text(f"{function}/current_link_width") is not None
    return os.path.basename(os.path.realpath(function)) if is_pci else None


def read_hcas() -> list[Port]:
    """Every HCA port of this machine, by name and port, each ACTIVE one with its rows."""
    root = f"{sysfs_root()}/class/infiniband"
    ports: list[Port] = []
    for name in names_in(root):
        device = f"{root}/{name}"
        for number in _numbers_in(f"{device}/ports"):
            folder = f"{device}/ports/{number}"
            state = read_text(f"{folder}/state")
            ports.append(
                {
                    "name": name,
                    "port": number,
                    "state": state,
                    "link_layer": read_text(f"{folder}/link_layer"),
                    "netdev": _netdev_of(device, number),
                    "pci": _pci_of(device),
                    "rows": _read_rows(folder) if state == ACTIVE else [],
                }
            )
    return ports


def read_table() -> Table:
    """The whole table of this machine now."""
    return {"hcas": read_hcas(), "interfaces": read_interfaces()}
