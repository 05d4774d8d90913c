"""From a container's inputs to the body of the Engine API's create request, and the files for it."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Mapping
from typing import Any

from standin.docker_schema import seconds
from standin.values import Plain

Body = dict[str, Any]
Inputs = Mapping[str, Plain]

ALL_GPUS: Body = {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}


def labels(values: list[Plain]) -> dict[str, str]:
    return {item["label"]: item["value"] for item in values}


def mount(values: Inputs) -> Body:
    body: Body = {"Type": values["type"], "Target": values["target"], "Source": values.get("source", "")}
    body["ReadOnly"] = bool(values.get("readOnly"))
    if values["type"] == "volume" and (volume := values.get("volumeOptions")):
        body["VolumeOptions"] = {
            "Labels": labels(volume.get("labels") or []),
            "DriverConfig": {"Name": volume.get("driverName", ""), "Options": volume.get("driverOptions") or {}},
        }
    return body


def healthcheck(values: Inputs) -> Body:
    names = {"interval": "Interval", "timeout": "Timeout", "startPeriod": "StartPeriod"}
    body: Body = {field: seconds(values[name]) * 10**9 for name, field in names.items()}
    return {**body, "Test": values.get("tests") or [], "Retries": values.get("retries", 0)}


def device(values: Inputs) -> Body:
    path = values["hostPath"]
    return {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": values["permissions"]}


def create_body(inputs: Inputs) -> Body:
    """The request's document, without empty parts. Raises ValueError for an empty element of command."""
    if "" in (inputs.get("command") or []):
        raise ValueError("values for command may not be empty")
    body = {
        "Image": inputs["image"],
        "Entrypoint": inputs.get("entrypoints"),
        "Cmd": inputs.get("command"),
        "Env": inputs.get("envs"),
        "Labels": labels(inputs.get("labels") or []),
        "Healthcheck": healthcheck(inputs["healthcheck"]) if inputs.get("healthcheck") else None,
    }
    host = {
        "NetworkMode": inputs["networkMode"],
        "IpcMode": inputs.get("ipcMode"),
        "DeviceRequests": [ALL_GPUS] if inputs.get("gpus") else None,
        "Devices": [device(item) for item in inputs.get("devices") or []],
        "Mounts": [mount(item) for item in inputs.get("mounts") or []],
        "Ulimits": [{name.title(): value for name, value in item.items()} for item in inputs.get("ulimits") or []],
        "RestartPolicy": {"Name": inputs["restart"]},
        "LogConfig": {"Type": inputs.get("logDriver", ""), "Config": inputs.get("logOpts") or {}},
    }
    body["HostConfig"] = {name: value for name, value in host.items() if value}
    return {name: value for name, value in body.items() if value}


def upload_archive(values: Inputs) -> bytes:
    """One file as a tar to unpack at /, owned by root, mode 0644."""
    content = values["content"].encode()
    entry = tarfile.TarInfo(values["file"])
    entry.size, entry.mtime, entry.mode = len(content), time.time(), 0o644
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
