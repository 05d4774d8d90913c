"""What differs between a docker resource's state and its new inputs, in the paths that the official plugin names."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping

from standin.diffs import Change, changes, step
from standin.docker_schema import Property
from standin.values import UNKNOWN, Plain

_TEXT = Property("string")


def normal(value: Plain, wanted: Property) -> Plain:
    """The value's one spelling: what is empty, zero or false is absent (None), and so are empty parts."""
    if isinstance(value, dict):
        parts = {name: normal(part, wanted.fields.get(name, _TEXT)) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part is not None} or None
    if isinstance(value, list) and wanted.kind == "set":
        return [normal(item, Property("object", wanted.fields)) for item in value] or None
    return value or None  # an empty string in a command is an element


def identity(element: Plain) -> str:
    """Two elements of a set are the same when their identities are."""
    return json.dumps(element, sort_keys=True)


def same(old: Plain, new: Plain, wanted: Property) -> bool:
    return not list(_differences(normal(old, wanted), normal(new, wanted), wanted, ""))


def _differences(old: Plain, new: Plain, wanted: Property, path: str) -> Iterator[Change]:
    if isinstance(old, list) and isinstance(new, list):
        yield from (_set_differences if wanted.kind == "set" else _list_differences)(old, new, wanted, path)
    elif isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            part = wanted.fields.get(name, _TEXT)
            yield from _differences(old.get(name), new.get(name), part, step(path, name))
    else:
        yield from changes(old, new, path)


def _list_differences(old: list[Plain], new: list[Plain], _: Property, path: str) -> Iterator[Change]:
    """By the fewest insertions and removals, so that one inserted flag is one line and not the rest of the command."""
    removed: set[int] = set()
    added: set[int] = set()
    for tag, left, left_end, right, right_end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if tag != "equal":
            removed.update(range(left, left_end))
            added.update(range(right, right_end))
    for index in sorted(removed | added):
        yield _at(index, removed, added, path)


def _at(index: int, removed: set[int], added: set[int], path: str) -> Change:
    kind = "UPDATE" if index in removed and index in added else "DELETE" if index in removed else "ADD"
    return Change(f"{path}[{index}]", kind)


def _set_differences(old: list[Plain], new: list[Plain], wanted: Property, path: str) -> Iterator[Change]:
    before = {identity(element): index for index, element in enumerate(old)}
    after = {identity(element): index for index, element in enumerate(new)}
    removed = {index for key, index in before.items() if key not in after}
    added = {index for key, index in after.items() if key not in before}
    for index in sorted(removed | added):
        change = _at(index, removed, added, path)
        if change.kind == "UPDATE":
            yield from _differences(old[index], new[index], Property("object", wanted.fields), change.path)
        else:
            yield change


def resource_changes(
    schema: Mapping[str, Property], state: Mapping[str, Plain], inputs: Mapping[str, Plain]
) -> Iterator[Change]:
    """What an update has to change. Properties that the program leaves to the daemon are left out."""
    for name in sorted(schema):
        wanted, given = schema[name], inputs.get(name)
        old, new = normal(state.get(name), wanted), normal(given, wanted)
        if wanted.computed and given in (None, "", UNKNOWN):
            # a value that is not known yet is no change either: what only carries another resource's id (a label, an
            # environment variable) does not drag its container into that one's replacement
            continue
        if wanted.kind == "boolean" and old != new:
            # a state that says false is updated, where one that says nothing is added to
            yield from changes(state.get(name), given, name)
        else:
            yield from _differences(old, new, wanted, name)


def replacing(
    schema: Mapping[str, Property], state: Mapping[str, Plain], inputs: Mapping[str, Plain]
) -> frozenset[str]:
    """The properties whose change makes a new resource.

    One trap of the official plugin is kept: as long as the number of mounts stays, a mount without volume options is
    changed "in place", which the container never notices.
    """
    names = {name for name, wanted in schema.items() if wanted.replaces}
    if "mounts" in names and inputs.get("mounts") != UNKNOWN:
        mount = Property("object", schema["mounts"].fields)
        old, new = (
            {identity(normal(item, mount)): item for item in values.get("mounts") or []} for values in (state, inputs)
        )
        changed = [old.get(key) or new[key] for key in old.keys() ^ new.keys()]
        if len(old) == len(new) and not any(item.get("volumeOptions") for item in changed):
            names.remove("mounts")
    return frozenset(names)
