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
from collections.abc import Iterator, Mapping

from gid.table import ACTIVE, EMPTY_GID, ROCE_V2, Address, Interface, Pci, Port, Row, Table, ipv4_of

EMPTY_RUN = 8
"""Empty slots in a row after which the rest of a table is left unread, once nothing usable can follow."""


def sysfs_root() -> str:
    """The sysfs of this machine, or the tree a test put in its place."""
    return os.environ.get("SPARK_SYSFS", "/sys")


def read_text(path: str) -> str | None:
    """The file's text, stripped, or None: sysfs refuses many reads that are no fault, an empty slot's type for one."""
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
    """Sorted names in a folder; none when it is not there."""
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
    found: dict[int, list[Address]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(5)
        kernel.send(struct.pack("=IHHIIBBBBI", 24, 22, 0x301, 1, 0, socket.AF_INET, 0, 0, 0, 0))
        while True:
            for kind, payload in _messages(kernel.recv(1 << 16)):
                if kind == 3:
                    return found
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
                    found.setdefault(number, []).append({"ip": ip, "prefix": prefix})


def read_interfaces() -> dict[str, Interface]:
    """Every netdev with its MTU, state and IPv4 addresses. OSError when the kernel does not list addresses."""
    net = f"{sysfs_root()}/class/net"
    told = os.environ.get("SPARK_ADDRESSES")
    listed: dict[str, list[Address]] = {}
    if told is not None:
        for name, texts in json.loads(told).items():
            pairs = [text.split("/") for text in texts]
            listed[name] = [{"ip": ip, "prefix": int(prefix)} for ip, prefix in pairs]
    numbered = _kernel_addresses() if told is None else {}
    interfaces: dict[str, Interface] = {}
    for name in names_in(net):
        number = read_text(f"{net}/{name}/ifindex")
        if number is None:
            continue
        mtu = read_text(f"{net}/{name}/mtu")
        interfaces[name] = {
            "mtu": int(mtu) if mtu else None,
            "operstate": read_text(f"{net}/{name}/operstate"),
            "addresses": listed.get(name, []) if told is not None else numbered.get(int(number), []),
        }
    return interfaces


def _read_rows(port: str, awaited: set[tuple[str | None, str]]) -> list[Row]:
    """The filled slots under one port's folder, by index as a number.

    The kernel keeps (GID, type, netdev) unique in a table, so once every `awaited` (netdev, address) pair has shown
    its RoCE v2 row, no usable row can follow and a run of empty slots ends the reading of up to 1024 of them.
    """
    rows: list[Row] = []
    run = 0
    for index in sorted(int(name) for name in names_in(f"{port}/gids") if name.isdecimal()):
        gid = read_text(f"{port}/gids/{index}")
        if not gid or gid == EMPTY_GID:
            run += 1
            if run >= EMPTY_RUN and not awaited:
                break
            continue
        kind = read_text(f"{port}/gid_attrs/types/{index}")
        ndev = read_text(f"{port}/gid_attrs/ndevs/{index}")
        run = 0
        rows.append({"index": index, "gid": gid, "type": kind, "ndev": ndev})
        if kind == ROCE_V2:
            awaited.discard((ndev, ipv4_of(gid) or ""))
    return rows


def _netdev_of(device: str, port: int) -> str | None:
    """A port's netdev: what its first GID names, else a soft HCA's `parent`, else the function's only one."""
    for index in range(EMPTY_RUN):
        if named := read_text(f"{device}/ports/{port}/gid_attrs/ndevs/{index}"):
            return named
    nets = names_in(f"{device}/device/net")
    return read_text(f"{device}/parent") or (nets[0] if len(nets) == 1 else None)


def _pci_of(device: str) -> Pci | None:
    """The PCIe function behind an HCA, or None for a soft one."""
    function = f"{device}/device"
    width = read_text(f"{function}/current_link_width")
    if width is None:
        return None
    return {
        "address": os.path.basename(os.path.realpath(function)),
        "width": width,
        "max_width": read_text(f"{function}/max_link_width"),
        "speed": read_text(f"{function}/current_link_speed"),
        "max_speed": read_text(f"{function}/max_link_speed"),
    }


def read_hcas(interfaces: Mapping[str, Interface]) -> list[Port]:
    """Every HCA port of this machine, by name and port, each ACTIVE one with its rows."""
    root = sysfs_root()
    ports: list[Port] = []
    for name in names_in(f"{root}/class/infiniband"):
        device = f"{root}/class/infiniband/{name}"
        for number in sorted(int(text) for text in names_in(f"{device}/ports") if text.isdecimal()):
            folder = f"{device}/ports/{number}"
            netdev = _netdev_of(device, number)
            port: Port = {
                "name": name,
                "port": number,
                "state": read_text(f"{folder}/state"),
                "link_layer": read_text(f"{folder}/link_layer"),
                "netdev": netdev,
                "pci": _pci_of(device),
                "rows": [],
            }
            if port["state"] == ACTIVE:
                # A VLAN on the netdev has rows of its own in the same table.
                stack = [n for n in interfaces if n == netdev or os.path.exists(f"{root}/class/net/{n}/lower_{netdev}")]
                awaited: set[tuple[str | None, str]] = {
                    (n, address["ip"]) for n in stack for address in interfaces[n]["addresses"]
                }
                port["rows"] = _read_rows(folder, awaited)
            ports.append(port)
    return ports


def read_table() -> Table:
    """The whole table of this machine now."""
    interfaces = read_interfaces()
    return {"hcas": read_hcas(interfaces), "interfaces": interfaces}
