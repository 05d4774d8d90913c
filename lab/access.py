"""Keys, known hosts and ssh configuration of the lab, and commands on its nodes."""

from __future__ import annotations

import fcntl
import io
import os
import shlex
import subprocess
import tarfile
from pathlib import Path

from lab.fabric import ADDRESS
from lab.place import Node, Place
from lab.report import LabError

SPARK_UID = 1000
PAIR_KEY = "spark_pair"


def prepare(place: Place, nodes: tuple[Node, ...] | None = None) -> None:
    """Write keys, known_hosts, ssh_config and the nodes' seeds. Existing keys are kept."""
    nodes = nodes or place.nodes
    place.root.mkdir(parents=True, exist_ok=True)
    place.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_control_folder(place)
    with (place.keys / "lock").open("w") as lock:
        # pairs side by side share the keys
        fcntl.flock(lock, fcntl.LOCK_EX)
        for key in (place.key, place.keys / PAIR_KEY, *(host_key(place, node) for node in nodes)):
            if not key.exists():
                _keygen(key)
    place.known_hosts.write_text(known_hosts(place, {node: _public(host_key(place, node)) for node in nodes}))
    place.ssh_config.write_text(ssh_config(place, nodes))
    for node in nodes:
        seed(place, node).write_bytes(make_seed(place, node, nodes))
        seed(place, node).chmod(0o600)


def make_control_folder(place: Place) -> None:
    """Make the folder of ssh's sockets. Raises LabError if someone else owns it."""
    folder = place.control_sockets
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise LabError(f"{folder} is not a folder that only this user may enter: remove it, and the lab makes its own")


def host_key(place: Place, node: Node) -> Path:
    """The node's SSH host key. It outlives the node, so that known_hosts stays true for the next one."""
    return place.keys / f"{node.name}_host"


def seed(place: Place, node: Node) -> Path:
    """A tar of what makes a new node this node, unpacked at its first boot."""
    return place.root / f"{node.name}.seed"


def known_hosts(place: Place, public: dict[Node, str]) -> str:
    """The lab's known_hosts, from each node's public host key."""

    def name(node: Node) -> str:
        address, port = place.ssh_address(node)
        return address if port == 22 else f"[{address}]:{port}"

    return "".join(f"{name(node)} {key}\n" for node, key in public.items())


def ssh_config(place: Place, nodes: tuple[Node, ...]) -> str:
    """An ssh configuration with a host for each node and only absolute paths."""
    blocks = ["# Written by `lab up`. The lab's nodes, user spark."]
    for node in nodes:
        address, port = place.ssh_address(node)
        options = {
            "HostName": address,
            "Port": port,
            "User": "spark",
            "IdentityFile": f'"{place.key}"',
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": f'"{place.known_hosts}"',
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "ServerAliveInterval": 10,
            "ServerAliveCountMax": 4,
            "ControlMaster": "auto",
            "ControlPath": f'"{place.control_sockets}/%C"',
            "ControlPersist": 60,
        }
        blocks.append("\n".join([f"Host {node.alias}", *(f"    {key} {value}" for key, value in options.items())]))
    return "\n\n".join(blocks) + "\n"


def make_seed(place: Place, node: Node, nodes: tuple[Node, ...]) -> bytes:
    """A tar of what makes a new node `node`: its host key, who may log in, and the key that the pair shares."""
    ours = _public(place.key) + "\n"
    pair = _public(place.keys / PAIR_KEY) + "\n"
    pair_hosts = "".join(
        f"{ADDRESS[member]} {_public(host_key(place, member))}\n" for member in nodes if member in ADDRESS
    )
    secret = host_key(place, node).read_text()
    files = [
        ("etc/ssh/ssh_host_ed25519_key", 0, 0o600, secret),
        ("etc/ssh/ssh_host_ed25519_key.pub", 0, 0o644, _public(host_key(place, node)) + "\n"),
        ("root/.ssh/authorized_keys", 0, 0o600, ours),
        ("home/spark/.ssh/authorized_keys", SPARK_UID, 0o600, ours + pair),
        ("home/spark/.ssh/id_ed25519", SPARK_UID, 0o600, (place.keys / PAIR_KEY).read_text()),
        ("home/spark/.ssh/id_ed25519.pub", SPARK_UID, 0o644, pair),
        ("home/spark/.ssh/known_hosts", SPARK_UID, 0o600, pair_hosts),
    ]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for folder, owner in (("root/.ssh", 0), ("home/spark/.ssh", SPARK_UID)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o700, owner, owner
            tar.addfile(entry)
        for path, owner, mode, text in files:
            entry = tarfile.TarInfo(path)
            entry.mode, entry.uid, entry.gid, entry.size = mode, owner, owner, len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return archive.getvalue()


def ssh_command(place: Place, node: Node, *, user: str = "spark", shared: bool = True) -> list[str]:
    """The ssh command with the lab's configuration, up to the host. `shared`: use ssh's multiplexing."""
    options = ["-F", str(place.ssh_config), "-o", f"User={user}"]
    if not shared:
        # a master that outlives our call would keep the caller's pipe open
        options += ["-o", "ControlPath=none", "-o", "ConnectTimeout=10"]
    return ["ssh", *options, node.alias]


def run(
    place: Place, node: Node, command: list[str], *, user: str = "root", stdin: str = "", limit_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run `command` on the node over a connection of its own.

    No exit code raises: 255 is ssh's own failure, 124 the wall-clock limit.
    """
    remote = shlex.join(command)
    line = [*ssh_command(place, node, user=user, shared=False), "--", remote]
    try:
        return subprocess.run(line, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(line, 124, "", f"no answer within {limit_s:.0f} s")


def demand(place: Place, node: Node, command: list[str], *, stdin: str = "", limit_s: float = 60) -> str:
    """Run `command` as root on the node and return its stdout. Raises LabError with its output when it fails."""
    done = run(place, node, command, stdin=stdin, limit_s=limit_s)
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip()
        raise LabError(f"{node.name}: `{shlex.join(command)}` ended with {done.returncode}: {reason}")
    return done.stdout


def close_connections(place: Place, nodes: tuple[Node, ...] | None = None) -> None:
    """End ssh's shared connections to nodes that are about to stop or to go back in time; None: to all."""
    if not place.ssh_config.exists():
        return
    for node in nodes or place.nodes:
        for user in ("spark", "root"):
            command = ["ssh", "-F", str(place.ssh_config), "-o", f"User={user}", "-O", "exit", node.alias]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)


def _keygen(key: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"spark-lab-{key.name}", "-f", str(key)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=30)


def _public(key: Path) -> str:
    return key.with_name(key.name + ".pub").read_text().strip()
