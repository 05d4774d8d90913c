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
    """Our tree as a worker may mount it."""

    devices: list[str]
    """Likeliest first."""
    ours: bool
    holder: str | None
    """Who serves port 2049 where it is not this node's own NFS server."""


def escaped(path: str) -> str:
    """A path as exports(5) and the table spell it."""
    return re.sub(r"[^!$-\[\]-~]", lambda found: "".join(f"\\{byte:03o}" for byte in os.fsencode(found[0])), path)


def unescaped(word: str) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8) & 255]), os.fsencode(word)))


def parse(text: str) -> Table:
    """The table as exportfs keeps it in etab: a line for each path and client. A line of another form is not in it."""
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
    found = [re.match(r'\s*(?:"(/[^"]*)"|(/\S*))', line) for line in lines]
    return [unescaped(match[1] or match[2]) for match in found if match]


def admits(client: str, address: str) -> bool:
    """Whether a client of the table is this address: itself, its network, or everybody; names are not looked up."""
    if client in ("*", "<world>"):
        return True
    try:
        return ipaddress.IPv4Address(address) in ipaddress.IPv4Network(client, strict=False)
    except ValueError:
        return False


def exports_to(table: Table, tree: str, addresses: Iterable[str]) -> bool:
    """Whether exactly this tree is exported to every one of these addresses."""
    return all(any(admits(client, address) for client in table.get(tree, ())) for address in addresses)


def device_of(table: Table, tree: str) -> str:
    """The tree's name for an NFS 4 client: its path below the export with fsid=0 where there is one."""
    roots = (path for path, clients in table.items() for options in clients.values() if "fsid=0" in options)
    root = next(roots, "/")
    inside = tree == root or tree.startswith(root.rstrip("/") + "/")
    return ":/" + os.path.relpath(tree, root) * (tree != root) if inside else f":{tree}"


def our_text(stack: str, tree: str, addresses: Sequence[str], *, mounts_inside: bool) -> str:
    """Our file: the tree, read-only, to these addresses alone, a worker's root as nobody."""
    # a file system may have no identity of its own, and a client's handles outlive a reboot only with one that stays;
    # mounts inside would all get the same one and be taken for the tree itself
    own = "crossmnt" if mounts_inside else f"fsid={uuid.uuid5(uuid.NAMESPACE_URL, f'file://{tree}').hex}"
    entries = " ".join(f"{address}(ro,sync,no_subtree_check,root_squash,{own})" for address in addresses)
    return (
        f"# made by spark-stack for stack {stack} (checkpoint.mode: nfs); pulumi destroy removes it\n"
        f"{escaped(tree)} {entries}\n"
    )
