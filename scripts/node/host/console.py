"""How a script of this folder speaks to a person: lines on stderr, since its stdout is data. And how it tells time."""

import sys
import time


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def utc_now() -> str:
    """ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
