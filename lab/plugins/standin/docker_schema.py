"""The docker resources this stand-in provides: their properties, which of them replace, defaults, and what is refused.

The facts are those of pulumi-docker 5.2.0, that is of terraform-provider-docker 4.5.0.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from standin.values import UNKNOWN, Plain

CONTAINER = "docker:index/container:Container"
IMAGE = "docker:index/remoteImage:RemoteImage"
VOLUME = "docker:index/volume:Volume"

Rule = Callable[[Plain], str | None]
"""What is wrong with a value, or None."""


@dataclass(frozen=True)
class Property:
    kind: str
    """string, integer, boolean, list (ordered), set (not ordered), map, object."""
    fields: Mapping[str, Property] = field(default_factory=dict)
    """Of an object, or of each element of a set of objects."""
    replaces: bool = True
    """A change cannot be made in place."""
    computed: bool = False
    """The daemon fills it in: leaving it out of the program is no change."""
    default: Plain = None
    rule: Rule | None = None
    required: bool = False


def pattern(expression: str) -> Rule:
    def check(value: Plain) -> str | None:
        return None if re.search(expression, value) else f"'{value}' doesn't match the pattern '{expression}'"

    return check


def at_least(limit: int) -> Rule:
    return lambda value: f"'{value}' cannot be lower than {limit}" if value < limit else None


def is_base64(value: str) -> str | None:
    try:
        base64.b64decode(value, validate=True)
    except binascii.Error:
        return f"'{value}' is not base64 decodeable."
    return None


_UNITS = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}


def nanoseconds(text: str) -> int:
    """A Go duration such as 1m30s. Raises ValueError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)", text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        raise ValueError(text)
    return int(sum(float(number) * _UNITS[unit] for number, unit in parts))


def is_duration(value: str) -> str | None:
    try:
        nanoseconds(value)
    except ValueError:
        return f"'{value}' is not a valid duration"
    return None


def is_absolute(value: str) -> str | None:
    return None if value.startswith("/") else f"'{value}' must be an absolute path"


def text(rule: Rule | None = None, default: str | None = None) -> Property:
    return Property("string", rule=rule, default=default)


def integer(rule: Rule | None = None, default: int | None = None) -> Property:
    return Property("integer", rule=rule, default=default)


BOOLEAN, TEXTS, TEXT_SET, MAP = Property("boolean"), Property("list"), Property("set"), Property("map")


def computed(base: Property) -> Property:
    return replace(base, computed=True)


def in_place(base: Property) -> Property:
    return replace(base, replaces=False)


def defaulted(base: Property, default: Plain) -> Property:
    return replace(base, default=default)


def required(base: Property) -> Property:
    return replace(base, required=True)


def set_of(**fields: Property) -> Property:
    return Property("set", fields)


def object_of(**fields: Property) -> Property:
    return Property("object", fields)


_LABELS = set_of(label=required(text()), value=required(text()))
_DURATION = text(is_duration, default="0s")

CONTAINER_INPUTS: dict[str, Property] = {
    "attach": in_place(BOOLEAN),
    "capabilities": object_of(adds=TEXT_SET, drops=TEXT_SET),
    "command": computed(TEXTS),
    "containerReadRefreshTimeoutMilliseconds": in_place(integer(default=15000)),
    "cpuSet": in_place(text(pattern(r"^\d+([,-]\d+)*$"))),
    "cpuShares": in_place(integer(at_least(0))),
    "destroyGraceSeconds": in_place(integer()),
    "devices": set_of(hostPath=required(text()), containerPath=text(), permissions=text(default="rwm")),
    "dns": TEXT_SET,
    "domainname": text(),
    "entrypoints": computed(TEXTS),
    "envs": computed(TEXT_SET),
    "gpus": text(),
    "groupAdds": TEXT_SET,
    "healthcheck": in_place(
        computed(
            object_of(
                tests=TEXTS,
                interval=_DURATION,
                timeout=_DURATION,
                startPeriod=_DURATION,
                startInterval=_DURATION,
                retries=integer(at_least(0)),
            )
        )
    ),
    "hostname": computed(text()),
    "hosts": set_of(host=required(text()), ip=required(text())),
    "image": required(text()),
    "init": in_place(computed(BOOLEAN)),
    "ipcMode": computed(text()),
    "labels": computed(_LABELS),
    "logDriver": computed(text()),
    "logOpts": MAP,
    "logs": in_place(BOOLEAN),
    "maxRetryCount": in_place(integer()),
    "memory": in_place(integer(at_least(0))),
    "memoryReservation": in_place(integer(at_least(0))),
    "memorySwap": in_place(integer(at_least(-1))),
    "mounts": set_of(
        type=required(text(pattern("^(bind|volume|tmpfs)$"))),
        source=text(),
        target=required(text()),
        readOnly=BOOLEAN,
        bindOptions=object_of(propagation=text(pattern("^(private|rprivate|shared|rshared|slave|rslave)$"))),
        volumeOptions=object_of(driverName=text(), driverOptions=MAP, labels=_LABELS, noCopy=BOOLEAN, subpath=text()),
        tmpfsOptions=object_of(mode=integer(), sizeBytes=integer()),
    ),
    "mustRun": in_place(defaulted(BOOLEAN, True)),
    "name": text(),
    "networkMode": text(default="bridge"),
    "pidMode": text(),
    "ports": Property(
        "list",
        {
            "internal": required(integer()),
            "external": integer(),
            "ip": text(default="0.0.0.0"),
            "protocol": text(default="tcp"),
        },
    ),
    "privileged": BOOLEAN,
    "readOnly": BOOLEAN,
    "removeVolumes": in_place(defaulted(BOOLEAN, True)),
    "restart": in_place(text(pattern("^(no|on-failure|always|unless-stopped)$"), default="no")),
    "rm": in_place(BOOLEAN),
    "runtime": computed(text()),
    "securityOpts": computed(TEXT_SET),
    "shmSize": computed(integer(at_least(0))),
    "start": in_place(defaulted(BOOLEAN, True)),
    "stdinOpen": BOOLEAN,
    "stopSignal": computed(text()),
    "stopTimeout": computed(integer()),
    "sysctls": MAP,
    "tmpfs": in_place(MAP),
    "tty": BOOLEAN,
    "ulimits": set_of(name=required(text()), soft=required(integer()), hard=required(integer())),
    "uploads": set_of(
        file=required(text()),
        content=text(),
        contentBase64=text(is_base64),
        executable=BOOLEAN,
        permissions=text(pattern("^0[0-7]{3}$")),
    ),
    "user": text(),
    "usernsMode": text(),
    "volumes": set_of(
        containerPath=text(),
        hostPath=text(is_absolute),
        volumeName=text(),
        readOnly=BOOLEAN,
        selinuxRelabel=text(pattern("^(z|Z)$")),
    ),
    "wait": in_place(BOOLEAN),
    "waitTimeout": in_place(integer(default=60)),
    "workingDir": text(),
}

INPUTS: dict[str, dict[str, Property]] = {
    CONTAINER: CONTAINER_INPUTS,
    IMAGE: {
        "name": required(text()),
        "keepLocally": in_place(BOOLEAN),
        "forceRemove": in_place(BOOLEAN),
        "triggers": MAP,
        "pullTriggers": TEXT_SET,
    },
    VOLUME: {"name": computed(text()), "driver": computed(text()), "driverOpts": MAP, "labels": _LABELS},
}

LEFT_TO_THE_IMAGE = ("user", "workingDir")
"""An empty one, or none, is no change, whatever the image says."""

OUTPUTS: dict[str, tuple[str, ...]] = {
    CONTAINER: ("bridge", "containerLogs", "exitCode", "networkDatas", "platform"),
    IMAGE: ("imageId", "repoDigest"),
    VOLUME: ("mountpoint",),
}

_TYPES = {"string": str, "integer": int, "boolean": bool, "list": list, "set": list, "map": dict, "object": dict}


def problems(schema: Mapping[str, Property], values: Mapping[str, Plain], path: str = "") -> Iterator[str]:
    """Complaints on everything that cannot be taken. An unknown property is refused, never ignored.

    They name the property as the official plugin does, never its other values, which may be secret.
    """
    for name, wanted in schema.items():
        if wanted.required and values.get(name) is None:
            yield f"Missing required argument. The argument {path}{name} is required, but no definition was found"
    for name, value in values.items():
        where = f"{path}{name}"
        if name.startswith("__"):
            continue
        if name not in schema:
            yield f"Invalid or unknown key: {where} is not supported by this stand-in for pulumi-docker"
        elif value is not None and value != UNKNOWN:
            yield from _problems(schema[name], value, where)


def _problems(wanted: Property, value: Plain, where: str) -> Iterator[str]:
    examine = f". Examine values at '{where}'."
    fits = isinstance(value, _TYPES[wanted.kind]) and not (wanted.kind == "integer" and isinstance(value, bool))
    if not fits:
        yield f"not a value of type {wanted.kind}{examine}"
    elif wanted.rule and (complaint := wanted.rule(value)):
        yield complaint + examine
    elif wanted.kind == "object":
        yield from problems(wanted.fields, value, f"{where}.")
    elif wanted.fields:
        for index, element in enumerate(value):
            if isinstance(element, dict):
                yield from problems(wanted.fields, element, f"{where}[{index}].")


def with_defaults(schema: Mapping[str, Property], values: Mapping[str, Plain]) -> dict[str, Plain]:
    """The values with every default that the official plugin puts into a resource's inputs."""
    filled = {name: item.default for name, item in schema.items() if item.default is not None}
    filled.update(values)
    for name, value in filled.items():
        fields = schema[name].fields if name in schema else {}
        if fields and isinstance(value, dict):
            filled[name] = with_defaults(fields, value)
        elif fields and isinstance(value, list):
            filled[name] = [with_defaults(fields, item) if isinstance(item, dict) else item for item in value]
    return filled
