"""Conversion between plain Python values and Pulumi's PropertyValue.

Also defines how an unknown value looks, and finds secrets. Assets and archives are refused, since no resource here
takes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.runtime import rpc

Plain = Any
"""None, bool, int, float, str, or lists and dicts of these."""

PropertyMap = dict[str, PropertyValue]

UNKNOWN: str = rpc.UNKNOWN
"""An unknown value: PropertyValue passes the engine's sentinel through as a string."""


@dataclass(frozen=True)
class Secret:
    """A secret value, to be compared as one piece, never element by element."""

    value: Plain


def plain(value: PropertyValue, keep_secrets: bool = False) -> Plain:
    """The plain value. Whole numbers become int; secrets are opened unless keep_secrets."""
    if keep_secrets and value.is_secret:
        return Secret(plain(value))
    inner = value.value
    if inner is None or isinstance(inner, (str, bool)):
        return inner
    if isinstance(inner, float):
        return int(inner) if inner.is_integer() else inner
    if isinstance(inner, Mapping):
        return {key: plain(item, keep_secrets) for key, item in inner.items()}
    if isinstance(inner, tuple):
        return [plain(item, keep_secrets) for item in inner]
    raise TypeError(f"a {value.type.value} cannot be a property here")


def plain_map(values: Mapping[str, PropertyValue], keep_secrets: bool = False) -> dict[str, Plain]:
    return {key: plain(value, keep_secrets) for key, value in values.items()}


def wrap(value: Plain, secret: bool = False) -> PropertyValue:
    if isinstance(value, dict):
        return PropertyValue({key: wrap(item) for key, item in value.items()}, is_secret=secret)
    if isinstance(value, (list, tuple)):
        return PropertyValue([wrap(item) for item in value], is_secret=secret)
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)  # PropertyValue takes no int
    return PropertyValue(value, is_secret=secret)


def wrap_map(values: Mapping[str, Plain], secrets: Iterable[str] = ()) -> PropertyMap:
    secrets = set(secrets)
    return {key: wrap(value, key in secrets) for key, value in values.items()}


def secret_strings(value: PropertyValue, inside: bool = False) -> Iterator[str]:
    """Every string that is secret or part of a secret."""
    inside = inside or value.is_secret
    if isinstance(value.value, str):
        if inside:
            yield value.value
    elif isinstance(value.value, Mapping):
        for item in value.value.values():
            yield from secret_strings(item, inside)
    elif isinstance(value.value, tuple):
        for item in value.value:
            yield from secret_strings(item, inside)


def type_of(urn: str) -> str:
    """The resource's own type from a URN, where its parents' types come first, joined by `$`."""
    return urn.split("::")[2].rpartition("$")[2]
