"""The command resources of this stand-in: their inputs, the connection's defaults, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pulumi.provider.experimental.property_value import PropertyValue

from standin.values import UNKNOWN, Plain, wrap_map

REMOTE, LOCAL = "command:remote:Command", "command:local:Command"

Types = Mapping[str, type]

_BOTH: Types = {
    "create": str,
    "update": str,
    "delete": str,
    "triggers": list,
    "stdin": str,
    "logging": str,
    "addPreviousOutputInEnv": bool,
}

INPUTS: dict[str, Types] = {REMOTE: {**_BOTH, "connection": dict}, LOCAL: {**_BOTH, "environment": dict}}
REQUIRED = {REMOTE: ("create", "connection"), LOCAL: ("create",)}

_HOP: Types = {
    "host": str,
    "port": int,
    "user": str,
    "privateKey": str,
    "agentSocketPath": str,
    "hostKey": str,
    "dialErrorLimit": int,
    "perDialTimeout": int,
}

CONNECTION: Types = {**_HOP, "proxy": dict}

DEFAULTS = {"user": "root", "port": 22, "dialErrorLimit": 10, "perDialTimeout": 15}
"""The defaults of a connection and of its proxy; perDialTimeout is in seconds."""

LOGGING = ("none", "stdout", "stderr", "stdoutAndStderr")

Refusal = tuple[str, str]
"""A property and what is wrong with it, but not its value, which may be secret."""


def refusals(kind: str, inputs: Mapping[str, Plain]) -> Iterator[Refusal]:
    """Yield what is refused. An unknown property is refused, since ignoring it would make a change without effect."""
    if kind not in INPUTS:
        yield "", f"{kind} is not provided by this stand-in for pulumi-command"
        return
    yield from _mistakes(inputs, INPUTS[kind], "", REQUIRED[kind])
    connection = inputs.get("connection")
    if kind == REMOTE and isinstance(connection, dict):
        yield from _mistakes(connection, CONNECTION, "connection.", ("host",))
        if isinstance(connection.get("proxy"), dict):
            yield from _mistakes(connection["proxy"], _HOP, "connection.proxy.", ("host",))
    if isinstance(inputs.get("logging"), str) and inputs["logging"] not in (*LOGGING, UNKNOWN):
        yield "logging", f"logging is {inputs['logging']!r}, not one of {', '.join(LOGGING)}"
    if inputs.get("addPreviousOutputInEnv") is not False:
        yield (
            "addPreviousOutputInEnv",
            "must be false: this stand-in for pulumi-command does not pass on earlier output",
        )


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
    """The connection as the official plugin stores it: secret, and with its defaults."""
    if not isinstance(connection.value, Mapping):
        return connection.with_secret(True)
    filled = {**wrap_map(DEFAULTS), **connection.value}
    proxy = filled.get("proxy")
    if proxy and isinstance(proxy.value, Mapping):
        filled["proxy"] = proxy.with_value({**wrap_map(DEFAULTS), **proxy.value})
    return PropertyValue(filled, is_secret=True)
