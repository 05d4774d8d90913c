"""The one place that quotes values for a shell. Everything else passes lists.

A line that goes to a node is read by the user's login shell there, which may be bash, zsh, fish or tcsh. So it holds
simple commands alone; what needs a shell's grammar is the argument of `sh -c`.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence

_SHORT = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


def command_line(argv: Sequence[str]) -> str:
    """One line that runs exactly this argv: in a POSIX shell any words, in another those without `\\` and `!`."""
    return shlex.join(argv)


def json_argument(inputs: Mapping[str, object]) -> str:
    """JSON without a character that a shell would read inside single quotes.

    fish takes a backslash before another one or a quote as an escape, tcsh takes an exclamation mark as history, and
    neither has a way to quote that the other knows. JSON can write each of these as a code.
    """
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    text = re.sub(r"\\([^u])", lambda match: f"\\u{ord(_SHORT[match[1]]):04x}", text)
    return re.sub(r"['!]", lambda match: f"\\u{ord(match[0]):04x}", text)


def python_line(inputs: Mapping[str, object], timeout_s: int, *, note: str = "") -> str:
    """The line that runs a Python program from stdin on a node, with its inputs as one JSON argument.

    `note` comes first, as a no-op, so that the diff shows a reviewer why a command runs again.
    `timeout` kills the program 10 s after it asked it to end: a hung command must not hang the update.
    """
    line = command_line(["timeout", "-k", "10", str(timeout_s), "python3", "-I", "-", json_argument(inputs)])
    return f"{command_line([':', note])}; {line}" if note else line
