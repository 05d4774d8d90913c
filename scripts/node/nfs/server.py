"""The NFS server of this node as it runs now: who holds port 2049, what systemd says, what is exported."""

import re
import subprocess
from pathlib import Path

from host.console import say
from host.dockerd import DockerError, get
from nfs.table import Table, parse

TABLE = Path("/var/lib/nfs/etab")
GRACE = Path("/proc/fs/nfsd/v4_end_grace")
SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
UNIT = "nfs-server"


def systemctl(*arguments: str) -> list[str]:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines()


def active_units() -> list[str]:
    """Running services and sockets that belong to NFS; some of them open their own ports."""
    listed = systemctl("list-units", "--plain", "--no-legend", "--state=active", "--type=service,socket")
    return [line.split()[0] for line in listed if re.match(r"(nfs|rpc|fsid)", line)]


def host_serves() -> bool:
    return systemctl("is-active", UNIT) == ["active"]


def port_is_held() -> bool:
    """Whether anything listens on port 2049 in this host's network."""
    rows = [line.split() for table in SOCKETS if table.exists() for line in table.read_text().splitlines()[1:]]
    return any(row[1].endswith(":0801") and row[3] == "0A" for row in rows)


def holders() -> list[str]:
    """Running containers that look like an NFS server in the host's network, as "name (image)"."""
    servers = []
    try:
        for each in get("/containers/json"):
            ports = [port.get("PublicPort") for port in each.get("Ports") or []]
            text = f"{each['Names']} {each['Image']} {each['Command']}".lower()
            reaches = each.get("HostConfig", {}).get("NetworkMode") == "host" and re.search("nfs|ganesha|export", text)
            if reaches or 2049 in ports:
                servers.append(f"{each['Names'][0].lstrip('/')} ({each['Image']})")
    except (DockerError, OSError, ValueError) as error:
        say(f"nfs: dockerd does not tell who holds port 2049: {error}")
    return servers


def read_table() -> Table:
    return parse(TABLE.read_text()) if TABLE.is_file() else {}
