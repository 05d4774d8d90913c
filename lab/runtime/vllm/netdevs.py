"""Network interfaces of this machine with all their IPv4 addresses, not only the first, from the kernel (netlink)."""

import socket
import struct
from ipaddress import IPv4Interface

RTM_GETADDR = 22
NLM_F_REQUEST_DUMP = 0x301
NLMSG_DONE = 3
NLMSG_ERROR = 2
IFA_ADDRESS = 1
IFA_LOCAL = 2


def names() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def addresses() -> dict[str, list[IPv4Interface]]:
    """Interface -> its IPv4 addresses with their prefixes, also the secondary ones."""
    found: dict[str, list[IPv4Interface]] = {name: [] for name in names()}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        request = struct.pack("=IHHII", 24, RTM_GETADDR, NLM_F_REQUEST_DUMP, 1, 0) + struct.pack(
            "=BBBBI", socket.AF_INET, 0, 0, 0, 0
        )
        kernel.send(request)
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind in (NLMSG_DONE, NLMSG_ERROR):
                    return found
                _, prefix, _, _, index = struct.unpack_from("=BBBBI", data, 16)
                attributes = dict(_attributes(data[24:length]))
                address = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
                if address:
                    name = socket.if_indextoname(index)
                    found.setdefault(name, []).append(IPv4Interface((int.from_bytes(address, "big"), prefix)))
                data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    rows = []
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        rows.append((kind, data[4:length]))
        data = data[(length + 3) & ~3 :]
    return rows
