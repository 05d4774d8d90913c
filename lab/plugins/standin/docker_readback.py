"""From the daemon's description of a container to the properties of its state.

This reads back what the official plugin reads back, so that a value in a form other than Docker's own (60s for 1m0s)
shows as a difference here too. It does not read back envs, labels, uploads and the plugin's own options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from standin.docker_diff import same
from standin.docker_schema import CONTAINER_INPUTS
from standin.values import Plain

Inspected = Mapping[str, Any]


def duration(nanoseconds: int) -> str:
    """A duration in whole seconds, as Go's Duration.String prints it: 1h0m0s, 1m30s, 5s, 0s."""
    minutes, seconds = divmod(nanoseconds // 10**9, 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"


def _mount(inspected: Inspected) -> dict[str, Plain]:
    mount: dict[str, Plain] = {
        "type": inspected["Type"],
        "target": inspected["Target"],
        "source": inspected.get("Source", ""),
    }
    mount["readOnly"] = bool(inspected.get("ReadOnly"))
    if volume := inspected.get("VolumeOptions"):
        driver = volume.get("DriverConfig") or {}
        mount["volumeOptions"] = {
            "labels": [{"label": label, "value": value} for label, value in (volume.get("Labels") or {}).items()],
            "driverName": driver.get("Name", ""),
            "driverOptions": driver.get("Options") or {},
        }
    return mount


def read_back(inspected: Inspected, state: Mapping[str, Plain]) -> dict[str, Plain]:
    """The state's properties as the daemon has them. `inspected` is the answer to an inspect request."""
    config, host = inspected["Config"], inspected["HostConfig"]
    values: dict[str, Plain] = {
        "name": inspected["Name"].lstrip("/"),
        "image": config["Image"],
        "command": config.get("Cmd") or [],
        "entrypoints": config.get("Entrypoint") or [],
        "restart": host["RestartPolicy"]["Name"],
        "networkMode": host["NetworkMode"],
        "ipcMode": host.get("IpcMode", ""),
        "logDriver": host["LogConfig"]["Type"],
        "mounts": [_mount(item) for item in host.get("Mounts") or []],
    }
    if check := config.get("Healthcheck"):
        values["healthcheck"] = {
            "tests": check.get("Test") or [],
            "interval": duration(check.get("Interval", 0)),
            "timeout": duration(check.get("Timeout", 0)),
            "startPeriod": duration(check.get("StartPeriod", 0)),
            "retries": check.get("Retries", 0),
        }
    devices = host.get("Devices") or []
    configured: dict[str, Plain] = {
        "ulimits": [{name.lower(): value for name, value in item.items()} for item in host.get("Ulimits") or []],
        "devices": [{"hostPath": item["PathOnHost"], "permissions": item["CgroupPermissions"]} for item in devices],
        "gpus": "all" if any(request.get("Count") == -1 for request in host.get("DeviceRequests") or []) else "",
        "logOpts": host["LogConfig"].get("Config") or {},
    }
    # only if the state has them, since the daemon may have defaults of its own
    values.update({name: value for name, value in configured.items() if state.get(name)})
    if not inspected["State"]["Running"]:
        # a stopped container that must run shows as a difference of the next update, which starts it
        values.update(exitCode=inspected["State"]["ExitCode"], mustRun=False)
    return values


def merged(state: Mapping[str, Plain], current: Mapping[str, Plain]) -> dict[str, Plain]:
    """The state with its current values. A value that differs only in order or in how it spells absence stays."""
    result = dict(state)
    for name, value in current.items():
        definition = CONTAINER_INPUTS.get(name)
        if not (definition and name in state and same(state[name], value, definition)):
            result[name] = value
    return result
