"""From a container's inputs to the body of the Engine API's create request, and the files put in before it starts."""

from __future__ import annotations

import base64
import io
import re
import tarfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from standin.docker_schema import nanoseconds
from standin.values import Plain

MIB = 1 << 20

Body = dict[str, Any]
Inputs = Mapping[str, Plain]


def capability(name: str) -> str:
    """As the docker client spells it."""
    name = name.upper()
    return name if name == "ALL" or name.startswith("CAP_") else f"CAP_{name}"


def gpu_requests(text: str) -> list[Body]:
    """`all`, a count, or `device=0,1`; quotes around it do not count. Raises ValueError for anything else."""
    text = text.strip().strip("'\"")
    request: Body = {"Driver": "", "Count": 0, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}
    if found := re.fullmatch(r"\"?device=([^\"]+)\"?", text):
        return [{**request, "DeviceIDs": found[1].split(",")}]
    if text != "all" and not text.isdecimal():
        raise ValueError(f"gpus is {text!r}, not `all`, a count, or `device=ID[,ID]`")
    return [{**request, "Count": -1 if text == "all" else int(text)}]


def labels(values: list[Plain]) -> dict[str, str]:
    return {item["label"]: item["value"] for item in values}


def mount(values: Inputs) -> Body:
    body: Body = {"Type": values["type"], "Target": values["target"], "Source": values.get("source", "")}
    body["ReadOnly"] = bool(values.get("readOnly"))
    if values["type"] == "bind" and (bind := values.get("bindOptions")):
        body["BindOptions"] = {"Propagation": bind.get("propagation", "")}
    if values["type"] == "volume" and (volume := values.get("volumeOptions")):
        body["VolumeOptions"] = {
            "NoCopy": bool(volume.get("noCopy")),
            "Labels": labels(volume.get("labels") or []),
            "DriverConfig": {"Name": volume.get("driverName", ""), "Options": volume.get("driverOptions") or {}},
            "Subpath": volume.get("subpath", ""),
        }
    if values["type"] == "tmpfs" and (tmpfs := values.get("tmpfsOptions")):
        body["TmpfsOptions"] = {"SizeBytes": tmpfs.get("sizeBytes", 0), "Mode": tmpfs.get("mode", 0)}
    return body


def bind(values: Inputs) -> str:
    source = values.get("hostPath") or values["volumeName"]
    access = "ro" if values.get("readOnly") else "rw"
    relabel = f",{values['selinuxRelabel']}" if values.get("selinuxRelabel") else ""
    return f"{source}:{values['containerPath']}:{access}{relabel}"


def healthcheck(values: Inputs) -> Body:
    names = {
        "interval": "Interval",
        "timeout": "Timeout",
        "startPeriod": "StartPeriod",
        "startInterval": "StartInterval",
    }
    body: Body = {field: nanoseconds(values.get(name, "0s")) for name, field in names.items()}
    return {**body, "Test": values.get("tests") or [], "Retries": values.get("retries", 0)}


def device(values: Inputs) -> Body:
    return {
        "PathOnHost": values["hostPath"],
        "PathInContainer": values.get("containerPath") or values["hostPath"],
        "CgroupPermissions": values["permissions"],
    }


def port_bindings(values: list[Plain]) -> dict[str, list[Body]]:
    bindings: dict[str, list[Body]] = {}
    for item in values:
        external = str(item["external"]) if item.get("external") else ""
        binding = {"HostIp": item["ip"], "HostPort": external}
        bindings.setdefault(f"{item['internal']}/{item['protocol']}", []).append(binding)
    return bindings


def _mebibytes(value: int) -> int:
    return value * MIB if value > 0 else value


def _same(value: Plain) -> Plain:
    return value


Field = tuple[str, Callable[[Any], Plain]]

CONFIG: dict[str, Field] = {
    "image": ("Image", _same),
    "hostname": ("Hostname", _same),
    "domainname": ("Domainname", _same),
    "user": ("User", _same),
    "workingDir": ("WorkingDir", _same),
    "tty": ("Tty", _same),
    "stdinOpen": ("OpenStdin", _same),
    "stopSignal": ("StopSignal", _same),
    "stopTimeout": ("StopTimeout", _same),
    "command": ("Cmd", _same),
    "entrypoints": ("Entrypoint", _same),
    "envs": ("Env", _same),
    "labels": ("Labels", labels),
    "healthcheck": ("Healthcheck", healthcheck),
    "ports": ("ExposedPorts", lambda items: {f"{item['internal']}/{item['protocol']}": {} for item in items}),
}

HOST_CONFIG: dict[str, Field] = {
    "networkMode": ("NetworkMode", _same),
    "ipcMode": ("IpcMode", _same),
    "pidMode": ("PidMode", _same),
    "usernsMode": ("UsernsMode", _same),
    "privileged": ("Privileged", _same),
    "readOnly": ("ReadonlyRootfs", _same),
    "rm": ("AutoRemove", _same),
    "runtime": ("Runtime", _same),
    "sysctls": ("Sysctls", _same),
    "tmpfs": ("Tmpfs", _same),
    "dns": ("Dns", _same),
    "groupAdds": ("GroupAdd", _same),
    "securityOpts": ("SecurityOpt", _same),
    "cpuSet": ("CpusetCpus", _same),
    "cpuShares": ("CpuShares", _same),
    "memory": ("Memory", _mebibytes),
    "memoryReservation": ("MemoryReservation", _mebibytes),
    "memorySwap": ("MemorySwap", _mebibytes),
    "shmSize": ("ShmSize", _mebibytes),
    "gpus": ("DeviceRequests", gpu_requests),
    "devices": ("Devices", lambda items: [device(item) for item in items]),
    "hosts": ("ExtraHosts", lambda items: [f"{item['host']}:{item['ip']}" for item in items]),
    "mounts": ("Mounts", lambda items: [mount(item) for item in items]),
    "ports": ("PortBindings", port_bindings),
    "ulimits": (
        "Ulimits",
        lambda items: [{"Name": item["name"], "Soft": item["soft"], "Hard": item["hard"]} for item in items],
    ),
    "volumes": ("Binds", lambda items: [bind(item) for item in items]),
}


def _filled(table: Mapping[str, Field], inputs: Inputs) -> Body:
    return {field: convert(inputs[name]) for name, (field, convert) in table.items() if inputs.get(name)}


def restart_policy(inputs: Inputs) -> Body:
    return {"Name": inputs.get("restart", "no"), "MaximumRetryCount": inputs.get("maxRetryCount", 0)}


def create_body(inputs: Inputs) -> Body:
    """Raises ValueError for what only shows here: an empty element of command, a gpus text that means nothing."""
    if "" in (inputs.get("command") or []):
        raise ValueError("values for command may not be empty")
    host = _filled(HOST_CONFIG, inputs)
    host["RestartPolicy"] = restart_policy(inputs)
    host["Init"] = bool(inputs.get("init"))
    host["LogConfig"] = {"Type": inputs.get("logDriver", ""), "Config": inputs.get("logOpts") or {}}
    capabilities = inputs.get("capabilities") or {}
    host["CapAdd"] = sorted(map(capability, capabilities.get("adds") or []))
    host["CapDrop"] = sorted(map(capability, capabilities.get("drops") or []))
    return {**_filled(CONFIG, inputs), "HostConfig": host}


IN_PLACE = ("restart", "maxRetryCount", "cpuShares", "memory", "memoryReservation", "cpuSet", "memorySwap")
"""What a running container's update request takes. Everything else that does not replace is only remembered."""


def update_body(inputs: Inputs) -> Body:
    body = _filled({name: HOST_CONFIG[name] for name in IN_PLACE if name in HOST_CONFIG}, inputs)
    return {**body, "RestartPolicy": restart_policy(inputs)}


def upload_archive(values: Inputs) -> bytes:
    """One file as a tar to unpack at /: owned by root, 0644, or 0744 when executable, or with its permissions."""
    if bool(values.get("content")) == bool(values.get("contentBase64")):
        which = "only one" if values.get("content") else "one"
        verb = "can" if values.get("content") else "must"
        raise ValueError(
            f"error with upload content: {which} of 'content', 'content_base64', or 'source' {verb} be set"
        )
    content = values["content"].encode() if values.get("content") else base64.b64decode(values["contentBase64"])
    entry = tarfile.TarInfo(values["file"])
    entry.size, entry.mtime = len(content), time.time()
    entry.mode = (
        int(values["permissions"], 8) if values.get("permissions") else 0o744 if values.get("executable") else 0o644
    )
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
