"""Our own edit of the image's vLLM: it no longer turns a reasoning effort below high into high.

Part of rank.start. vLLM 0.25.1 gives the chat encoder none, high or max and turns every other effort into high
(tokenizers/deepseek_v4.py, lines 43-52), so a client that asks for low waits as long as for high. vLLM's own fix
(its pull request 50580) is newer than the pinned image.
To the encoders of all checkpoints None means "no more than usual". The one that came with 0731 calls that low, a name
that older ones do not have and would fail on.
"""

from pathlib import Path

FILE = "deepseek_v4.py"
"""Beside the prompt encoder in the image's package."""
KEPT = """
            elif reasoning_effort in ("max", "xhigh"):
                reasoning_effort = "max"
"""
BEFORE = """            else:
                reasoning_effort = "high"
"""
AFTER = """            elif reasoning_effort != "high":
                reasoning_effort = None
"""


class Moved(Exception):
    """The lines to edit are missing, or not unique; the message quotes them."""


def edit(file: Path) -> bool:
    """Edit the file; False if that was done before. Raises Moved, OSError, or UnicodeError if it is not text."""
    text = file.read_text(encoding="utf-8")
    places, edited = text.count(KEPT + BEFORE), text.count(KEPT + AFTER)
    if (places, edited) == (0, 1):
        return False
    if (places, edited) != (1, 0):
        lines = " / ".join(line.strip() for line in (KEPT + BEFORE).strip().splitlines())
        raise Moved(f"looked for {lines} and found it {places} times, edited {edited} times")
    file.write_text(text.replace(KEPT + BEFORE, KEPT + AFTER), encoding="utf-8")
    return True
