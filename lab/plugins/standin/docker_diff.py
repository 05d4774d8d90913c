"""The differences between a docker resource's state and its new inputs, with the official plugin's paths."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping

from standin.diffs import Change, changes, step
from standin.docker_schema import Property
from standin.values import UNKNOWN, Plain

_TEXT = Property("string")


def normal(value: Plain, definition: Property) -> Plain:
    """The value in one spelling: None for what is empty, zero or false, also inside it."""
    if isinstance(value, dict):
        parts = {name: normal(part, definition.fields.get(name, _TEXT)) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part is not None} or None
    if isinstance(value, list) and definition.kind == "set":
        return [normal(item, Property("object", definition.fields)) for item in value] or None
    return value or None  # an empty string in a command is an element


def identity(element: Plain) -> str:
    """A text that is equal for equal elements of a set."""
    return json.dumps(element, sort_keys=True)


def same(old: Plain, new: Plain, definition: Property) -> bool:
    return not list(_differences(normal(old, definition), normal(new, definition), definition, ""))


def _differences(old: Plain, new: Plain, definition: Property, path: str) -> Iterator[Change]:
    if isinstance(old, list) and isinstance(new, list):
        yield from (_set_differences if definition.kind == "set" else _list_differences)(old, new, definition, path)
    elif isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            part = definition.fields.get(name, _TEXT)
            yield from _differences(old.get(name), new.get(name), part, step(path, name))
    else:
        yield from changes(old, new, path)


def _list_differences(old: list[Plain], new: list[Plain], _: Property, path: str) -> Iterator[Change]:
    """The fewest insertions and removals, so that an inserted flag is one line and not the rest of the command."""
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


def _set_differences(old: list[Plain], new: list[Plain], definition: Property, path: str) -> Iterator[Change]:
    before = {identity(element): index for index, element in enumerate(old)}
    after = {identity(element): index for index, element in enumerate(new)}
    removed = {index for key, index in before.items() if key not in after}
    added = {index for key, index in after.items() if key not in before}
    for index in sorted(removed | added):
        change = _at(index, removed, added, path)
        if change.kind == "UPDATE":
            yield from _differences(old[index], new[index], Property("object", definition.fields), change.path)
        else:
            yield change


def resource_changes(
    schema: Mapping[str, Property], state: Mapping[str, Plain], inputs: Mapping[str, Plain]
) -> Iterator[Change]:
    """What an update has to change, without properties that the program leaves to the daemon."""
    for name in sorted(schema):
        definition, given = schema[name], inputs.get(name)
        old, new = normal(state.get(name), definition), normal(given, definition)
        if definition.computed and given in (None, "", UNKNOWN):
            # a value that is not known yet is not a change either: a label or an environment variable that only carries
            # another resource's id does not make its container part of that one's replacement
            continue
        if definition.kind == "boolean" and old != new:
            # a state that says false is updated; one that says nothing is added to
            yield from changes(state.get(name), given, name)
        else:
            yield from _differences(old, new, definition, name)


def replacing(
    schema: Mapping[str, Property], state: Mapping[str, Plain], inputs: Mapping[str, Plain]
) -> frozenset[str]:
    """The properties whose change makes a new resource.

    One trap of the official plugin is kept: while the number of mounts stays, a mount without volume options changes
    "in place", which has no effect on the container.
    """
    names = {name for name, definition in schema.items() if definition.replaces}
    if "mounts" in names and inputs.get("mounts") != UNKNOWN:
        mount = Property("object", schema["mounts"].fields)
        old, new = (
            {identity(normal(item, mount)): item for item in values.get("mounts") or []} for values in (state, inputs)
        )
        changed = [old.get(key) or new[key] for key in old.keys() ^ new.keys()]
        if len(old) == len(new) and not any(item.get("volumeOptions") for item in changed):
            names.remove("mounts")
    return frozenset(names)
