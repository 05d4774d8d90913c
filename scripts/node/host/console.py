"""How a script of this folder speaks to a person: lines on stderr, since its stdout is data."""

import sys


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
