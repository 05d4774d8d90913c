"""The state of a lab node as one JSON document on stdout. Runs on the node as user spark, standard library only.

Keys: docker (server version or null), containers (names of the running ones), stopped (number of the others), sudo
(true when `sudo -n` works), gids (for each HCA [[row, address], ...] of its IPv4 rows), carrier (netdev to true/false).
"""

import http.client
import json
import socket
import subprocess
from pathlib import Path
from typing import Any


class Docker(http.client.HTTPConnection):
    """Docker's API on its socket. The docker program would take seconds to start on an emulated machine."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect("/run/docker.sock")


def docker(path: str) -> "Any":
    """The document at `path` of Docker's API, or None if there is no answer."""
    connection = Docker("docker")
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError):
        return None
    finally:
        connection.close()


def ipv4_rows(table: Path) -> "list[tuple[int, str]]":
    """The row number and address of each RoCE v2 row with an IPv4 address in a GID table."""
    rows = []
    for entry in sorted(table.iterdir(), key=lambda path: int(path.name)):
        groups = entry.read_text().strip().split(":")
        if groups[:6] == ["0000"] * 5 + ["ffff"]:
            kind = table.parent / "gid_attrs" / "types" / entry.name
            if kind.read_text().strip() != "RoCE v2":
                continue
            rows.append((int(entry.name), ".".join(str(octet) for octet in bytes.fromhex(groups[6] + groups[7]))))
        elif groups == ["0000"] * 8 and int(entry.name) > 16:
            break
    return rows


def carrier(netdev: Path) -> bool:
    """Whether the link is up."""
    try:
        return (netdev / "carrier").read_text().strip() == "1"
    except OSError:
        return False


def main() -> None:
    version = docker("/version") or {}
    containers = docker("/containers/json?all=1") or []
    running = [entry["Names"][0].lstrip("/") for entry in containers if entry["State"] == "running"]
    document = {
        "docker": version.get("Version"),
        "containers": sorted(running),
        "stopped": len(containers) - len(running),
        "sudo": subprocess.run(("sudo", "-n", "true"), capture_output=True, check=False).returncode == 0,
        "gids": {hca.name: ipv4_rows(hca / "ports" / "1" / "gids") for hca in Path("/sys/class/infiniband").glob("*")},
        "carrier": {netdev.name: carrier(netdev) for netdev in Path("/sys/class/net").glob("en*")},
    }
    print(json.dumps(document))


main()
