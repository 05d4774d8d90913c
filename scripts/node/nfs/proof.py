"""Prove on a worker that every shard can be read through the mount that its rank will have.

Inputs (JSON argument): ProofInputs. SPARK_EXPORT in the environment is the Export that nfs.export printed on the head;
its devices are tried in order. Output: a Proof; progress on stderr.
Exit codes: 0 proven; 1 failed, the reason for each device on stderr.

A container owns the mount, so neither a mount nor a volume is left on the node. First we ask whether the server answers
at all: where packets are dropped, dockerd spends three minutes in a mount and cannot be interrupted.
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import TypedDict

from host.console import say, utc_now
from hub.files import PinnedRevision, folder_name
from loader import payload
from nfs import read_shards
from nfs.read_shards import ReadInputs, ReadResult
from nfs.table import Export

PORT = 2049
ANSWER_S = 10.0
REMOVAL_S = 30.0
HUB = "/hub"
CAUSES = (
    ("permission denied", "it is not exported to this node's fabric address"),
    ("no such file or directory", "the server does not export this folder"),
    ("refused", "the NFS server is not running: run pulumi up, it starts ours"),
    ("no route", "the fabric is down: check its cable and both nodes' fabric addresses"),
    ("unreachable", "this node has no route there: check both nodes' fabric addresses"),
    ("timed out", "something drops the packets: a firewall on the head, or a server that hangs"),
    ("protocol not supported", "the server does not speak NFS 4.2"),
    ("no such device", "this node's kernel has no NFS client: sudo apt install nfs-common"),
    ("link to a file", "it is missing on the head, or leads out of the exported folder"),
    ("stale", "the server no longer knows the exported folder: run pulumi up again"),
    ("no such image", "the runtime image is not on this node: run pulumi up, it pulls it first"),
)


class ProofInputs(PinnedRevision):
    head_fabric_ip: str
    """Where the server is."""
    options: str
    """Of the mount, without addr."""
    image: str
    python: str
    stack: str
    timeout_s: float
    """For all of it."""


class Proof(TypedDict):
    device: str
    """The one that works."""
    shards: int
    """How many were read."""
    bytes: int
    """Size of those shards, as the mount shows them."""
    verified_at: str
    """ISO 8601, UTC."""


class Unproven(Exception):
    """Why a device cannot be mounted or read."""


def with_cause(message: str) -> str:
    lower = message.lower()
    cause = next((cause for needle, cause in CAUSES if needle in lower), "")
    return f"{message}: {cause}" if cause else message


def check_server(head_fabric_ip: str) -> None:
    """Send the server an NFS 4 null call, which every server answers. Raises Unproven within seconds."""
    # one record: id, call, RPC 2, program 100003 version 4, procedure 0, no credentials
    call = struct.pack(">11I", 1 << 31 | 40, 0x73706B, 0, 2, 100003, 4, 0, 0, 0, 0, 0)
    try:
        with socket.create_connection((head_fabric_ip, PORT), timeout=ANSWER_S) as server:
            server.settimeout(ANSWER_S)
            server.sendall(call)
            answer = server.makefile("rb").read(28)
    except OSError as error:
        raise Unproven(with_cause(error.strerror or str(error))) from None
    if len(answer) < 28 or answer[4:8] != call[4:8]:
        raise Unproven(f"what listens on port {PORT} is not an NFS server")
    if answer[8:16] != struct.pack(">2I", 1, 0) or answer[24:28] != bytes(4):
        raise Unproven("the server does not speak NFS 4: see /etc/nfs.conf on it")


def mount_argument(head_fabric_ip: str, device: str, options: str) -> str:
    """The mount as `docker run --mount` takes it: one CSV record.

    dockerd refuses readonly for a volume without a name, so only the mount options say ro.
    """
    fields = ["type=volume", f"dst={HUB}", "volume-driver=local", "volume-opt=type=nfs"]
    fields += [f"volume-opt=o=addr={head_fabric_ip},{options}", f"volume-opt=device={device}"]
    return ",".join('"' + field.replace('"', '""') + '"' for field in fields)


def remove(name: str) -> bool:
    """Remove a container, if it exists; False if its mount keeps it from ending."""
    try:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True, timeout=REMOVAL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def prove(device: str, inputs: ProofInputs, limit_s: float) -> Proof:
    """Mount one device and read every shard's end within `limit_s`. Raises Unproven."""
    name = f"spark-{inputs['stack']}-proof"
    argv = ["docker", "run", "--rm", "--interactive", "--pull", "never", "--name", name, "--network", "none"]
    argv += ["--label", f"spark.stack={inputs['stack']}", "--label", "spark.job=proof"]
    argv += ["--mount", mount_argument(inputs["head_fabric_ip"], device, inputs["options"])]
    reading: ReadInputs = {
        "hub": HUB,
        "repo": inputs["repo"],
        "revision": inputs["revision"],
        "shards": inputs["shards"],
        "encoding_file": inputs["encoding_file"],
    }
    argv += ["--entrypoint", inputs["python"], inputs["image"], "-", json.dumps(reading)]
    lines: list[str] = []
    ended: list[bool] = []
    remove(name)

    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:

        def end() -> None:
            ended.append(remove(name))
            running.kill()

        limit = threading.Timer(limit_s, end)
        limit.start()
        assert running.stdin and running.stdout
        with contextlib.suppress(BrokenPipeError), running.stdin as stdin:
            stdin.write(payload(read_shards.__name__))
        for line in running.stdout:
            lines.append(line.strip())
            if line.startswith("nfs: "):
                say(line.strip())
        limit.cancel()
    if ended:
        where = f"after `{lines[-1]}`" if lines else "in the mount itself"
        stays = "" if ended[0] else f"; the container {name} ends when it answers again"
        raise Unproven(f"no answer within {limit_s:.0f} s, {where}: the server or the fabric is down{stays}")
    if running.returncode:
        errors = [line for line in lines if line and not line.startswith(("See 'docker", "nfs: "))] or ["no message"]
        # the kernel's message comes last in dockerd's
        mount = errors[0].rpartition(": ")[2].rstrip(".") if "failed to mount local volume" in errors[0] else None
        raise Unproven(with_cause(mount or (errors[-1] if read_shards.MOUNTED in lines else errors[0])))
    result: ReadResult = json.loads(lines[-1])
    if result["faults"]:
        first, *others = result["faults"]
        more = f" (and {len(others)} more)" if others else ""
        if "permission denied" in first.lower():
            model = f"{device.lstrip(':')}/{folder_name(inputs['repo'])}"
            raise Unproven(f"{first}{more}: closed to others on the head: run `chmod -R o+rX {model}` there")
        raise Unproven(with_cause(first + more))
    return {"device": device, "shards": result["shards"], "bytes": result["bytes"], "verified_at": utc_now()}


def first_proven(devices: Sequence[str], inputs: ProofInputs, holder: str | None = None) -> Proof:
    """The first device through which every shard can be read. Exits naming server, devices and the way out.

    `holder` serves there, if neither we nor the head's own NFS server do.
    """
    server, failures = inputs["head_fabric_ip"], []
    end = time.monotonic() + inputs["timeout_s"]
    try:
        check_server(server)
        for device in devices:
            say(f"nfs: mounting {server}{device}")
            try:
                return prove(device, inputs, max(end - time.monotonic(), 5))
            except Unproven as error:
                failures.append(f"{device}: {error}")
    except Unproven as error:
        failures.append(f"port {PORT}: {error}")
    summary = f"the checkpoint cannot be read from {server}: {'; '.join(failures)}."
    if holder:
        raise SystemExit(
            f"{summary} Port {PORT} of the head is held by {holder}, which is not ours to change: have it export the "
            "hub cache read-only to this node, or stop it so that ours can start; or set checkpoint.mode: local"
        )
    raise SystemExit(
        f"{summary} Look at the head (`sudo exportfs -v`, its cache folder), or set checkpoint.mode: local"
    )


def main() -> None:
    try:
        export: Export = json.loads(os.environ["SPARK_EXPORT"])
        print(json.dumps(first_proven(export["devices"], json.loads(sys.argv[1]), export["holder"])))
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is not on the PATH of an SSH session on this node") from None


if __name__ == "__main__":
    main()
