"""From two plain values to the engine's detailed diff: which paths differ, how, and which of them replace."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from pulumi.provider.experimental.provider import DiffResponse, PropertyDiff, PropertyDiffKind

from standin.values import Plain


class Change(NamedTuple):
    path: str
    """As the engine spells it: `command[12]`, `environment.A`, `logOpts["max-size"]`."""
    kind: str
    """ADD, DELETE or UPDATE."""


def step(path: str, key: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", key):
        return f"{path}.{key}" if path else key
    return f'{path}["{key}"]'


def changes(old: Plain, new: Plain, path: str = "") -> Iterator[Change]:
    """The leaves that differ. None means absent. Lists are compared by index; different types differ as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from changes(old.get(key), new.get(key), step(path, key))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            before = old[index] if index < len(old) else None
            after = new[index] if index < len(new) else None
            yield from changes(before, after, f"{path}[{index}]")
    elif old is None and new is not None:
        yield Change(path, "ADD")
    elif old is not None and new is None:
        yield Change(path, "DELETE")
    elif old != new:
        yield Change(path, "UPDATE")


def top(path: str) -> str:
    """The property that a path starts with."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def diff_response(
    differences: Iterable[Change], replacing: Collection[str] = (), delete_before_replace: bool = False
) -> DiffResponse:
    """The answer to Diff. A change replaces if its property, or its exact path, is in `replacing`."""
    detailed: dict[str, PropertyDiff] = {}
    replaces: list[str] = []
    for change in differences:
        name = top(change.path)
        replace = name in replacing or change.path in replacing
        detailed[change.path] = PropertyDiff(PropertyDiffKind[change.kind + "_REPLACE" * replace], input_diff=False)
        if replace and name not in replaces:
            replaces.append(name)
    return DiffResponse(
        changes=bool(detailed),
        replaces=replaces,
        diffs=sorted({top(path) for path in detailed}),
        detailed_diff=detailed,
        delete_before_replace=delete_before_replace and bool(replaces),
    )
