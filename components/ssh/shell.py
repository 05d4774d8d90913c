"""The one place that quotes values for a shell. Everything else passes lists."""

import json
import shlex
from collections.abc import Mapping, Sequence


def command_line(argv: Sequence[str]) -> str:
    """One line for a POSIX shell that runs exactly this argv."""
    return shlex.join(argv)


def python_line(inputs: Mapping[str, object], timeout_s: int, *, note: str = "") -> str:
    """The line that runs a Python program from stdin on a node, with its inputs as one JSON argument.

    `note` comes first, as a no-op, so that the diff shows a reviewer why a command runs again.
    `timeout` kills the program 10 s after it asked it to end: a hung command must not hang the update.
    """
    argument = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    line = command_line(["timeout", "-k", "10", str(timeout_s), "python3", "-I", "-", argument])
    return f"{command_line([':', note])}; {line}" if note else line
