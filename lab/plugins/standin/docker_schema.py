"""The docker resources of this stand-in: their properties, which of them replace, defaults, and what is refused.

They behave as in pulumi-docker 5.2.0, which is built on terraform-provider-docker 4.5.0. Only the properties that the
program in components/ declares are here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from standin.values import UNKNOWN, Plain

CONTAINER = "docker:index/container:Container"
IMAGE = "docker:index/remoteImage:RemoteImage"

Rule = Callable[[Plain], str | None]
"""Returns what is wrong with a value, or None."""


@dataclass(frozen=True)
class Property:
    kind: str
    """string, integer, boolean, list (ordered), set (not ordered), map, object."""
    fields: Mapping[str, Property] = field(default_factory=dict)
    """The fields of an object, or of each element of a set of objects."""
    replaces: bool = True
    """Whether a change makes a new resource, because it cannot be made in place."""
    computed: bool = False
    """Whether the daemon fills it in, so that leaving it out of the program is not a change."""
    default: Plain = None
    rule: Rule | None = None
    required: bool = False


def pattern(expression: str) -> Rule:
    def check(value: Plain) -> str | None:
        return None if re.search(expression, value) else f"'{value}' doesn't match the pattern '{expression}'"

    return check


DURATION = re.compile(r"(?=\d)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def seconds(text: str) -> int:
    """A Go duration in whole seconds, such as 1m30s. Raises ValueError."""
    match = DURATION.fullmatch(text)
    if not match:
        raise ValueError(f"'{text}' is not a valid duration")
    return sum(size * int(number or 0) for size, number in zip((3600, 60, 1), match.groups(), strict=True))


def is_duration(value: str) -> str | None:
    try:
        seconds(value)
    except ValueError as error:
        return str(error)
    return None


def is_kept(value: bool) -> str | None:
    return None if value else "an image that is removed at destroy is not supported by this stand-in for pulumi-docker"


def set_of(**fields: Property) -> Property:
    return Property("set", fields)


TEXT, INTEGER, TEXTS, MAP = Property("string"), Property("integer"), Property("list"), Property("map")
NEEDED_TEXT, NEEDED_INTEGER = replace(TEXT, required=True), replace(INTEGER, required=True)
LEFT_TO_DOCKER = replace(TEXT, computed=True)
LABELS = set_of(label=NEEDED_TEXT, value=NEEDED_TEXT)
TIME = Property("string", rule=is_duration, default="0s")
HEALTHCHECK = {"tests": TEXTS, "interval": TIME, "timeout": TIME, "startPeriod": TIME, "retries": INTEGER}
VOLUME_OPTIONS = {"driverName": TEXT, "driverOptions": MAP, "labels": LABELS}

CONTAINER_INPUTS: dict[str, Property] = {
    "command": replace(TEXTS, computed=True),
    "destroyGraceSeconds": replace(INTEGER, replaces=False),
    "devices": set_of(hostPath=NEEDED_TEXT, permissions=Property("string", default="rwm")),
    "entrypoints": replace(TEXTS, computed=True),
    "envs": Property("set", computed=True),
    "gpus": Property("string", rule=pattern("^all$")),
    "healthcheck": Property("object", HEALTHCHECK, replaces=False, computed=True),
    "image": NEEDED_TEXT,
    "ipcMode": LEFT_TO_DOCKER,
    "labels": replace(LABELS, computed=True),
    "logDriver": LEFT_TO_DOCKER,
    "logOpts": MAP,
    "mounts": set_of(
        type=Property("string", rule=pattern("^(bind|volume)$"), required=True),
        source=TEXT,
        target=NEEDED_TEXT,
        readOnly=Property("boolean"),
        volumeOptions=Property("object", VOLUME_OPTIONS),
    ),
    "mustRun": Property("boolean", replaces=False, default=True),
    "name": NEEDED_TEXT,
    "networkMode": Property("string", default="bridge"),
    "restart": Property(
        "string", replaces=False, rule=pattern("^(no|on-failure|always|unless-stopped)$"), default="no"
    ),
    "ulimits": set_of(name=NEEDED_TEXT, soft=NEEDED_INTEGER, hard=NEEDED_INTEGER),
    "uploads": set_of(file=NEEDED_TEXT, content=NEEDED_TEXT),
}

INPUTS: dict[str, dict[str, Property]] = {
    CONTAINER: CONTAINER_INPUTS,
    IMAGE: {"name": NEEDED_TEXT, "keepLocally": Property("boolean", replaces=False, rule=is_kept, required=True)},
}

OUTPUTS: dict[str, tuple[str, ...]] = {CONTAINER: ("exitCode",), IMAGE: ("imageId",)}

_TYPES = {"string": str, "integer": int, "boolean": bool, "list": list, "set": list, "map": dict, "object": dict}


def problems(schema: Mapping[str, Property], values: Mapping[str, Plain], path: str = "") -> Iterator[str]:
    """Yield a message for everything that is refused. An unknown property is refused, never ignored.

    Messages name the property as the official plugin does, but not its other values, which may be secret.
    """
    for name, definition in schema.items():
        if definition.required and values.get(name) is None:
            yield f"Missing required argument. The argument {path}{name} is required, but no definition was found"
    for name, value in values.items():
        where = f"{path}{name}"
        if name not in schema:
            yield f"Invalid or unknown key: {where} is not supported by this stand-in for pulumi-docker"
        elif value is not None and value != UNKNOWN:
            yield from _problems(schema[name], value, where)


def _problems(definition: Property, value: Plain, where: str) -> Iterator[str]:
    examine = f". Examine values at '{where}'."
    fits = isinstance(value, _TYPES[definition.kind]) and not (definition.kind == "integer" and isinstance(value, bool))
    if not fits:
        yield f"not a value of type {definition.kind}{examine}"
    elif definition.rule and (complaint := definition.rule(value)):
        yield complaint + examine
    elif definition.kind == "object":
        yield from problems(definition.fields, value, f"{where}.")
    elif definition.fields:
        for index, element in enumerate(value):
            if isinstance(element, dict):
                yield from problems(definition.fields, element, f"{where}[{index}].")


def with_defaults(schema: Mapping[str, Property], values: Mapping[str, Plain]) -> dict[str, Plain]:
    """The values with every default that the official plugin adds to a resource's inputs."""
    filled = {name: item.default for name, item in schema.items() if item.default is not None}
    filled.update(values)
    for name, value in filled.items():
        fields = schema[name].fields if name in schema else {}
        if fields and isinstance(value, dict):
            filled[name] = with_defaults(fields, value)
        elif fields and isinstance(value, list):
            filled[name] = [with_defaults(fields, item) if isinstance(item, dict) else item for item in value]
    return filled
