"""What every settings model shares: strictness, and how a refusal reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

PROJECT_DIR = Path(__file__).parent.parent


class Settings(BaseModel):
    """A settings model: unknown keys are refused, values do not change, a docstring under a field documents it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Refusal(Exception):
    """Something stops us before any change; `lines` are all the reasons, one each."""

    title = "refused"

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        super().__init__("\n".join([f"{self.title}:", *(f"  {line}" for line in lines)]))


class SettingsError(Refusal):
    title = "the settings of this stack were refused"


def complaint_line(detail: Mapping[str, Any]) -> str:
    """One pydantic error as `path: complaint`, with the way out where pydantic's words have none."""
    path = "/".join(str(part) for part in detail["loc"] if part not in UNION_TAGS)
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error" and ": " in message:
        # a rule that joins fields names its field itself: `nodes: ...`
        field, _, rest = message.partition(": ")
        if field.isidentifier():
            path, message = "/".join(filter(None, (path, field))), rest
    if detail["type"] == "extra_forbidden":
        message = "unknown key: check its spelling, or remove it"
    elif detail["type"] == "missing":
        message = "missing: add it"
    elif detail["type"] not in ("value_error",):
        message += f" (found {detail['input']!r})"
    return f"{path or '(top)'}: {message}"


UNION_TAGS = ("int", "str", "literal['resolve','pin','unset']")
