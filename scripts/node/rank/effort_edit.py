"""Our own edit of the image's vLLM: a reasoning effort below high is no longer handed to the encoder as high.

Part of rank.start. vLLM 0.25.1 hands none, high or max to the chat encoder and makes every other effort high
(tokenizers/deepseek_v4.py, lines 43-52), so a client that asks for low waits for the thinking of high. vLLM's own fix
(its pull request 50580) is later than the pinned image.
None is what the encoders of all checkpoints take for "no more than usual"; the one that came with 0731 calls it low,
older ones have no such word and would fail on it.
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
    """The place of the edit is not there, or not once; the text says what was looked for."""


def mend(file: Path) -> bool:
    """Edit the file; False when it was mended before. Raises Moved, OSError, or UnicodeError for no text."""
    text = file.read_text(encoding="utf-8")
    places, mended = text.count(KEPT + BEFORE), text.count(KEPT + AFTER)
    if (places, mended) == (0, 1):
        return False
    if (places, mended) != (1, 0):
        lines = " / ".join(line.strip() for line in (KEPT + BEFORE).strip().splitlines())
        raise Moved(f"looked for {lines} and found it {places} times, mended {mended} times")
    file.write_text(text.replace(KEPT + BEFORE, KEPT + AFTER), encoding="utf-8")
    return True
