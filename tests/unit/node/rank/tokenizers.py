"""What the image's tokenizers/deepseek_v4.py says on reasoning effort, and what it does with one."""

import textwrap
from pathlib import Path

SHIPPED = """\
            reasoning_effort = kwargs.get("reasoning_effort")
            if not isinstance(reasoning_effort, str):
                reasoning_effort = None
            elif reasoning_effort == "none":
                thinking_mode = "chat"
                reasoning_effort = None
            elif reasoning_effort in ("max", "xhigh"):
                reasoning_effort = "max"
            else:
                reasoning_effort = "high"
"""
"""Lines 43-52 of the file in vLLM 0.25.1 (Apache-2.0), which the pinned image has."""


def handed_on(file: Path, asked: object) -> tuple[str, object]:
    """Thinking mode and effort that the encoder would get from these lines for the effort that a client asked for."""
    names = {"kwargs": {"reasoning_effort": asked}, "thinking_mode": "thinking"}
    exec(textwrap.dedent(file.read_text()), names)
    return str(names["thinking_mode"]), names["reasoning_effort"]
