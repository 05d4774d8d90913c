"""What a kernel NFS server exports, and to whom: its table, and the text of our own file in /etc/exports.d."""

import ipaddress
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from typing import TypedDict

Table = dict[str, dict[str, list[str]]]
"""Options by client, by exported path."""


class Export(TypedDict):
    """The hub cache as a worker may mount it."""

    devices: list[str]
    """Likeliest first."""
    holder: str | None
    """What serves port 2049, if it is not this node's own NFS server."""


def escaped(path: str) -> str:
    """A path as exports(5) and the table spell it."""
    return re.sub(r"[^!$-\[\]-~]", lambda match: "".join(f"\\{byte:03o}" for byte in os.fsencode(match[0])), path)


def unescaped(path: str) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8) & 255]), os.fsencode(path)))


def parse(text: str) -> Table:
    """The table as exportfs keeps it in etab: a line for each path and client. Skips lines of another form."""
    table: Table = {}
    for line in text.splitlines():
        path, tab, entry = line.partition("\t")
        client, bracket, options = entry.partition("(")
        if tab and bracket and path.startswith("/"):
            table.setdefault(unescaped(path), {})[client] = options.rstrip(")").split(",")
    return table


def paths_of(text: str) -> list[str]:
    """The paths that a file of exports names."""
    lines = text.replace("\\\n", " ").splitlines()
    matches = [re.match(r'\s*(?:"(/[^"]*)"|(/\S*))', line) for line in lines]
    return [unescaped(match[1] or match[2]) for match in matches if match]


def admits(client: str, fabric_ip: str) -> bool:
    """Whether a client of the table covers this address: itself, its network, or everybody. Does not look up names."""
    if client in ("*", "<world>"):
        return True
    try:
        return ipaddress.IPv4Address(fabric_ip) in ipaddress.IPv4Network(client, strict=False)
    except ValueError:
        return False


def exports_to(table: Table, tree: str, fabric_ips: Iterable[str]) -> bool:
    """Whether exactly this tree is exported to each of these addresses."""
    return all(any(admits(client, fabric_ip) for client in table.get(tree, ())) for fabric_ip in fabric_ips)


def device_of(table: Table, tree: str) -> str:
    """The tree's name for an NFS 4 client: its path below the export with fsid=0, if there is one."""
    roots = (path for path, clients in table.items() for options in clients.values() if "fsid=0" in options)
    root = next(roots, "/")
    inside = tree == root or tree.startswith(root.rstrip("/") + "/")
    return ":/" + os.path.relpath(tree, root) * (tree != root) if inside else f":{tree}"


def our_text(stack: str, tree: str, fabric_ips: Sequence[str], *, mounts_inside: bool) -> str:
    """Our file: the tree, read-only, to these addresses only, with a worker's root as nobody."""
    # a client's handles survive a reboot only if the fsid stays, and a file system may have none of its own; mounts
    # inside would all get the same fsid and be taken for the tree itself
    own = "crossmnt" if mounts_inside else f"fsid={uuid.uuid5(uuid.NAMESPACE_URL, f'file://{tree}').hex}"
    entries = " ".join(f"{fabric_ip}(ro,sync,no_subtree_check,root_squash,{own})" for fabric_ip in fabric_ips)
    return (
        f"# made by spark-stack for stack {stack} (checkpoint.mode: nfs); pulumi destroy removes it\n"
        f"{escaped(tree)} {entries}\n"
    )
