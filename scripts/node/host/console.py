"""What a script of this folder tells a person: lines on stderr, since stdout is data; and the time as it prints it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def first_of(lines: Sequence[str]) -> str | None:
    """The first line and how many more there are; None where there is none."""
    more = f" and {len(lines) - 1} more" if lines[1:] else ""
    return f"{lines[0]}{more}" if lines else None


def utc_now() -> str:
    """ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def printable(text: str, most: int = 2000) -> str:
    """Text of a model or a server as a terminal may show it: what is not printable is escaped, and it is bounded."""
    shown = "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text[:most])
    return shown if len(text) <= most else f"{shown}... ({len(text):,} characters)"
