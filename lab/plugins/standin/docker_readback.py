"""From what the daemon says of a container to the properties of its state.

Read back is what the official plugin reads back, so that a value written in another form than Docker's own (60s for
1m0s) shows as a difference here as it does there. Not read back: envs, labels, uploads, volumes, knobs of the plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from standin.docker_body import MIB
from standin.docker_diff import same
from standin.docker_schema import CONTAINER_INPUTS
from standin.values import Plain

Inspected = Mapping[str, Any]


def duration(nanoseconds: int) -> str:
    """As Go's Duration.String: 1h0m0s, 1m30s, 5s, 1.5s, 250ms, 0s."""
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < 10**9:
        for size, unit in ((10**6, "ms"), (10**3, "µs"), (1, "ns")):
            if nanoseconds >= size:
                return f"{nanoseconds / size:g}{unit}"
    hours, rest = divmod(nanoseconds, 3600 * 10**9)
    minutes, rest = divmod(rest, 60 * 10**9)
    seconds = f"{rest / 10**9:.9f}".rstrip("0").rstrip(".") + "s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + seconds


def _mount(found: Inspected) -> dict[str, Plain]:
    mount: dict[str, Plain] = {"type": found["Type"], "target": found["Target"], "source": found.get("Source", "")}
    mount["readOnly"] = bool(found.get("ReadOnly"))
    if bind := found.get("BindOptions"):
        mount["bindOptions"] = {"propagation": bind.get("Propagation", "")}
    if volume := found.get("VolumeOptions"):
        driver = volume.get("DriverConfig") or {}
        mount["volumeOptions"] = {
            "noCopy": bool(volume.get("NoCopy")),
            "labels": [{"label": label, "value": value} for label, value in (volume.get("Labels") or {}).items()],
            "driverName": driver.get("Name", ""),
            "driverOptions": driver.get("Options") or {},
            "subpath": volume.get("Subpath", ""),
        }
    if tmpfs := found.get("TmpfsOptions"):
        mount["tmpfsOptions"] = {"sizeBytes": tmpfs.get("SizeBytes", 0), "mode": tmpfs.get("Mode", 0)}
    return mount


def _devices(found: list[Inspected], state: Mapping[str, Plain]) -> list[Plain]:
    with_path = {item["hostPath"] for item in state.get("devices") or [] if item.get("containerPath")}
    devices = []
    for item in found:
        device = {"hostPath": item["PathOnHost"], "permissions": item["CgroupPermissions"]}
        if item["PathOnHost"] in with_path:
            device["containerPath"] = item["PathInContainer"]
        devices.append(device)
    return devices


def _gpus(requests: list[Inspected]) -> str | None:
    """None when the requests cannot be written as one text."""
    if len(requests) != 1:
        return None if requests else ""
    if requests[0].get("DeviceIDs"):
        return "device=" + ",".join(requests[0]["DeviceIDs"])
    capabilities = [name.lower() for group in requests[0].get("Capabilities") or [] for name in group]
    return "all" if requests[0].get("Count") == -1 and "gpu" in capabilities else None


def _networks(settings: Inspected) -> list[Plain]:
    return [
        {
            "networkName": name,
            "ipAddress": found.get("IPAddress", ""),
            "ipPrefixLength": found.get("IPPrefixLen", 0),
            "gateway": found.get("Gateway", ""),
            "globalIpv6Address": found.get("GlobalIPv6Address", ""),
            "globalIpv6PrefixLength": found.get("GlobalIPv6PrefixLen", 0),
            "ipv6Gateway": found.get("IPv6Gateway", ""),
            "macAddress": found.get("MacAddress", ""),
        }
        for name, found in sorted((settings.get("Networks") or {}).items())
    ]


def _mebibytes(value: int) -> int:
    return value // MIB if value > 0 else value


def read_back(found: Inspected, state: Mapping[str, Plain]) -> dict[str, Plain]:
    """The state's properties as the daemon has them. `found` is the answer to an inspect request."""
    config, host, settings = found["Config"], found["HostConfig"], found.get("NetworkSettings") or {}
    running = found["State"]["Running"]
    values: dict[str, Plain] = {
        "name": found["Name"].lstrip("/"),
        "image": found["Image"] if str(state.get("image", "")).startswith("sha256:") else config["Image"],
        "hostname": config["Hostname"],
        "domainname": config.get("Domainname", ""),
        "command": config.get("Cmd") or [],
        "entrypoints": config.get("Entrypoint") or [],
        "user": config.get("User", ""),
        "workingDir": config.get("WorkingDir", ""),
        "tty": config.get("Tty", False),
        "stdinOpen": config.get("OpenStdin", False),
        "stopSignal": config.get("StopSignal") or "",
        "stopTimeout": config.get("StopTimeout") or 0,
        "rm": host.get("AutoRemove", False),
        "readOnly": host.get("ReadonlyRootfs", False),
        "privileged": host.get("Privileged", False),
        "init": bool(host.get("Init")),
        "restart": host["RestartPolicy"]["Name"],
        "maxRetryCount": host["RestartPolicy"].get("MaximumRetryCount", 0),
        "runtime": host.get("Runtime", ""),
        "networkMode": host["NetworkMode"],
        "ipcMode": host.get("IpcMode", ""),
        "usernsMode": host.get("UsernsMode", ""),
        "securityOpts": host.get("SecurityOpt") or [],
        "groupAdds": host.get("GroupAdd") or [],
        "dns": host.get("Dns") or [],
        "sysctls": host.get("Sysctls") or {},
        "tmpfs": host.get("Tmpfs") or {},
        "cpuSet": host.get("CpusetCpus", ""),
        "cpuShares": host.get("CpuShares", 0),
        "memory": _mebibytes(host.get("Memory", 0)),
        "memoryReservation": _mebibytes(host.get("MemoryReservation", 0)),
        "memorySwap": _mebibytes(host.get("MemorySwap", 0)),
        "shmSize": _mebibytes(host.get("ShmSize", 0)),
        "logDriver": host["LogConfig"]["Type"],
        "mounts": [_mount(item) for item in host.get("Mounts") or []],
        "hosts": [dict(zip(("host", "ip"), item.split(":", 1), strict=True)) for item in host.get("ExtraHosts") or []],
        "bridge": settings.get("Bridge", ""),
        "platform": found.get("Platform", ""),
        "networkDatas": _networks(settings),
    }
    if host.get("CapAdd") or host.get("CapDrop"):
        values["capabilities"] = {"adds": host.get("CapAdd") or [], "drops": host.get("CapDrop") or []}
    if check := config.get("Healthcheck"):
        values["healthcheck"] = {
            "tests": check.get("Test") or [],
            "interval": duration(check.get("Interval", 0)),
            "timeout": duration(check.get("Timeout", 0)),
            "startPeriod": duration(check.get("StartPeriod", 0)),
            "startInterval": duration(check.get("StartInterval", 0)),
            "retries": check.get("Retries", 0),
        }
    configured = {
        "ulimits": [{"name": u["Name"], "soft": u["Soft"], "hard": u["Hard"]} for u in host.get("Ulimits") or []],
        "devices": _devices(host.get("Devices") or [], state),
        "gpus": _gpus(host.get("DeviceRequests") or []),
        "logOpts": host["LogConfig"].get("Config") or {},
        "pidMode": host.get("PidMode", ""),
    }
    values.update({name: value for name, value in configured.items() if state.get(name) and value is not None})
    if not running:
        # a stopped container that must run shows as a difference of the next update, which starts it
        values.update(exitCode=found["State"]["ExitCode"], mustRun=False)
    return values


def merged(state: Mapping[str, Plain], found: Mapping[str, Plain], created: bool = False) -> dict[str, Plain]:
    """The state with what was found; a value that only has another order or spelling of absence stays as it was.

    Just after a creation the sets stay as the program says them, whatever the daemon made of them; a refresh shows it.
    """
    result = dict(state)
    for name, value in found.items():
        wanted = CONTAINER_INPUTS.get(name)
        if wanted and name in state and (same(state[name], value, wanted) or (created and _is_set(name))):
            continue
        result[name] = value
    return result


def _is_set(name: str) -> bool:
    return name == "capabilities" or CONTAINER_INPUTS[name].kind == "set"
