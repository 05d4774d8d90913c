"""The command resources this stand-in provides: their inputs, the connection's defaults, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pulumi.provider.experimental.property_value import PropertyValue

from standin.values import UNKNOWN, Plain, wrap_map

REMOTE, LOCAL, LOCAL_RUN = "command:remote:Command", "command:local:Command", "command:local:run"

Types = Mapping[str, type]

_RUN: Types = {"stdin": str, "environment": dict, "logging": str, "addPreviousOutputInEnv": bool}
_RESOURCE: Types = {**_RUN, "create": str, "update": str, "delete": str, "triggers": list}
_LOCAL: Types = {"dir": str, "interpreter": list}

INPUTS: dict[str, Types] = {
    REMOTE: {**_RESOURCE, "connection": dict},
    LOCAL: {**_RESOURCE, **_LOCAL},
    LOCAL_RUN: {**_RUN, **_LOCAL, "command": str},
}

_HOP: Types = {
    "host": str,
    "port": int,
    "user": str,
    "privateKey": str,
    "hostKey": str,
    "agentSocketPath": str,
    "dialErrorLimit": int,
    "perDialTimeout": int,
}

CONNECTION: Types = {**_HOP, "proxy": dict}

DEFAULTS = {"user": "root", "port": 22, "dialErrorLimit": 10, "perDialTimeout": 15}
"""Of a connection and of its proxy; the last in seconds."""

LOGGING = ("none", "stdout", "stderr", "stdoutAndStderr")

Refusal = tuple[str, str]
"""A property and what is wrong with it; never its value, which may be secret."""


def refusals(kind: str, inputs: Mapping[str, Plain]) -> Iterator[Refusal]:
    """What this stand-in cannot take. An unknown property is refused: ignored, it would be a change without effect."""
    if kind not in INPUTS:
        yield "", f"{kind} is not provided by this stand-in for pulumi-command"
        return
    required = {REMOTE: ("connection",), LOCAL_RUN: ("command",)}.get(kind, ())
    yield from _mistakes(inputs, INPUTS[kind], "", required)
    connection = inputs.get("connection")
    if kind == REMOTE and isinstance(connection, dict):
        yield from _mistakes(connection, CONNECTION, "connection.", ("host",))
        if isinstance(connection.get("proxy"), dict):
            yield from _mistakes(connection["proxy"], _HOP, "connection.proxy.", ("host",))
    for name in ("environment", "interpreter"):
        values = inputs.get(name)
        parts = values.items() if isinstance(values, dict) else enumerate(values if isinstance(values, list) else [])
        for key, value in parts:
            if not isinstance(value, str):
                yield f"{name}[{key}]", f"Field '{name}[{key}]' must be of type str, not {type(value).__name__}"
    if isinstance(inputs.get("logging"), str) and inputs["logging"] not in (*LOGGING, UNKNOWN):
        yield "logging", f"logging is {inputs['logging']!r}, not one of {', '.join(LOGGING)}"


def _mistakes(values: Mapping[str, Plain], types: Types, path: str, required: tuple[str, ...]) -> Iterator[Refusal]:
    for name in required:
        if values.get(name) is None:
            yield f"{path}{name}", f"Missing required field '{path}{name}'"
    for name, value in values.items():
        where = f"{path}{name}"
        if name not in types:
            yield where, f"Unrecognized field '{where}': not supported by this stand-in for pulumi-command"
        elif value not in (None, UNKNOWN) and not isinstance(value, types[name]):
            yield where, f"Field '{where}' must be of type {types[name].__name__}, not {type(value).__name__}"


def with_defaults(connection: PropertyValue) -> PropertyValue:
    """The connection as the official plugin stores it: with its defaults, and secret."""
    if not isinstance(connection.value, Mapping):
        return connection.with_secret(True)
    filled = {**wrap_map(DEFAULTS), **connection.value}
    proxy = filled.get("proxy")
    if proxy and isinstance(proxy.value, Mapping):
        filled["proxy"] = proxy.with_value({**wrap_map(DEFAULTS), **proxy.value})
    return PropertyValue(filled, is_secret=True)
