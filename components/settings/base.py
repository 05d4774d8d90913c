"""What every settings model shares: strictness, and how a refusal reads."""

import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from pydantic_core import ErrorDetails, PydanticCustomError

PROJECT_DIR = Path(__file__).parent.parent.parent


class Settings(BaseModel):
    """A settings model: unknown keys are refused, values cannot change, a docstring under a field documents it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Refusal(Exception):
    """Stops the program before any change; `lines` are all the reasons, one each."""

    title = "refused"

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        super().__init__("\n".join([f"{self.title}:", *(f"  {line}" for line in lines)]))


class SettingsError(Refusal):
    title = "the settings of this stack were refused"


AT_FIELD = "at_field"
EXPECTED = {
    "frozen_set_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "path_type": "must be a path",
    "ip_v4_address": "must be an IPv4 address alone, such as 192.168.100.1",
}
"""Errors that pydantic words for a reader of Python."""
MISSING = {
    "checkpoint/revision": "missing: this profile's source pins none: add the commit that you want "
    "(`git ls-remote https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash-DSpark main` prints the newest)",
}
"""What to say of a value that is missing, where there is more to say than that."""
SHOWN = 80
"""Most characters of a wrong value that a line repeats."""


def at_field(field: str, complaint: str) -> PydanticCustomError:
    """What a rule over several fields raises: the complaint is shown at the field that a person would change."""
    return PydanticCustomError(AT_FIELD, "{complaint}", {"field": field, "complaint": complaint})


def complaints(details: Iterable[ErrorDetails]) -> list[str]:
    """pydantic's errors as lines `path: complaint, way out`, one for each path."""
    lines: dict[str, str] = {}
    for detail in details:
        lines.setdefault(path_of(detail), complaint(detail))
    return [one_line(f"{path or '(top)'}: {line}") for path, line in lines.items()]


def path_of(detail: ErrorDetails) -> str:
    parts = list(detail["loc"])
    if detail["type"] == AT_FIELD:
        parts.append(detail["ctx"]["field"])
    elif detail["type"] != "extra_forbidden" and parts and parts[-1] == "[key]":
        # pydantic's own word for the key of a mapping
        parts.pop()
    return "/".join(map(str, parts))


def complaint(detail: ErrorDetails) -> str:
    """What is wrong at one place, with the value as far as it is short."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return "unknown key: check its spelling, or remove it"
    if kind == "missing":
        return MISSING.get(path_of(detail), "missing: add it")
    if kind == AT_FIELD:
        return str(context["complaint"])
    if kind == "value_error":
        return str(context["error"])
    message = re.sub(r", (unable|got) .*| after validation", "", re.sub(r"^\w+ should", "must", detail["msg"]))
    return f"{EXPECTED.get(kind, message)}, found {short(detail['input'])}"


def short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[: SHOWN - 3]}..."


def one_line(text: str) -> str:
    """Text without line breaks and other unprintable characters, which a key of a YAML file may hold."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
