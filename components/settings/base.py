"""What every settings model shares: strictness, and how a refusal reads."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

PROJECT_DIR = Path(__file__).parent.parent.parent


class Settings(BaseModel):
    """A settings model: unknown keys are refused, values do not change, a docstring under a field documents it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Refusal(Exception):
    """Something stops us before any change; `lines` are all the reasons, one each."""

    title = "refused"

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        super().__init__("\n".join([f"{self.title}:", *(f"  {line}" for line in lines)]))


class SettingsError(Refusal):
    title = "the settings of this stack were refused"


KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "path_type": "a path",
    "ip_v4_address": "an IPv4 address alone, such as 192.168.100.1",
}
"""pydantic's type of an error -> what belongs there."""
UNION_TAGS = ("int", "str", "float", "literal['resolve','pin','unset']", "[key]")
"""Parts that pydantic adds to a path for its own use."""
SHOWN = 80
"""Most characters of a wrong value that a line repeats."""


def complaints(details: Iterable[Mapping[str, Any]]) -> list[str]:
    """pydantic's errors as lines `path: complaint, way out`, one a place: a union's members complain together."""
    places: dict[str, list[Mapping[str, Any]]] = {}
    for detail in details:
        places.setdefault(path_of(detail), []).append(detail)
    return [one_line(f"{path or '(top)'}: {complaint(found)}") for path, found in places.items()]


def path_of(detail: Mapping[str, Any]) -> str:
    parts = list(detail["loc"])
    while detail["type"] != "extra_forbidden" and parts and parts[-1] in UNION_TAGS:
        parts.pop()
    field, words = joined_rule(detail)
    return "/".join(map(str, [*parts, field] if words else parts))


def joined_rule(detail: Mapping[str, Any]) -> tuple[str, str]:
    """A rule that joins fields names its field itself, `nodes: ...`; that field and the rest, or empty."""
    field, separator, words = detail["msg"].removeprefix("Value error, ").partition(": ")
    is_rule = detail["type"] == "value_error" and separator and field.isidentifier()
    return (field, words) if is_rule else ("", "")


def complaint(details: list[Mapping[str, Any]]) -> str:
    """What is wrong at one place, in words, with the value as far as it is short."""
    kind, message = details[0]["type"], details[0]["msg"]
    if kind == "extra_forbidden":
        return "unknown key: check its spelling, or remove it"
    if kind == "missing":
        return "missing: add it"
    if kind == "value_error":
        return joined_rule(details[0])[1] or str(message).removeprefix("Value error, ")
    wanted = [KINDS.get(detail["type"]) or detail.get("ctx", {}).get("expected") for detail in details]
    if all(wanted):
        message = f"must be {' or '.join(dict.fromkeys(map(str, wanted)))}"
    else:
        message = re.sub(r"^(Input|String|List|Value) should", "must", message.replace(" after validation", ""))
    found = repr(details[0]["input"])
    return f"{message}, found {found if len(found) <= SHOWN else found[: SHOWN - 3] + '...'}"


def one_line(text: str) -> str:
    """Text without line breaks and the like, which a key of a YAML file may hold."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
