"""Why a rank failed: the first exception in its log, and the lines before it. What comes later is a consequence.

vLLM prints a traceback from every process of a failing rank, and the one that a person sees last names no cause.
"""

import re
from collections import deque

LINE = re.compile(
    r"(?P<process>(?:\(\w+ pid=\d+\) )*(?:\[rank\d+\]: )?)"
    r"(?:(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d (?P<where>\[\S+\]) ?)?(?P<text>.*)"
)
ANNOUNCED = re.compile(r"WorkerProc (failed to start|hit an exception)|EngineCore (failed|encountered a fatal)")
"""What vLLM prints above the traceback that ends it."""
DIED = re.compile(r"Worker proc \S+ died unexpectedly")
ERROR = re.compile(rf"(?:\w+\.)*\w*(?:Error|Exception): .+|(?:spark|vllm(?: \w+)?): error: .+|{DIED.pattern}")
LAST_OF_TRACEBACK = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:: .*)?$")
"""Not every exception's name ends in Error, and not every exception has a message."""
FRAME = re.compile(r"frame #\d+: ")
"""Of a C++ stack."""
INVALID = re.compile(r"\d+ validation errors? for \w+")
"""Pydantic names field and reason on the lines below."""
KEPT_LINES = 400
"""NCCL's warnings stand above the exception that they explain."""

Source = tuple[str, str, str]
"""Process, level and place: what the lines of one traceback have in common."""


class FirstError:
    """Takes a rank's lines one by one."""

    def __init__(self) -> None:
        self.text: str | None = None
        """The exception with its type and message."""
        self.at = ""
        """When the node's dockerd got that line, ISO 8601."""
        self.fatal = False
        """Whether the engine said that it ends, which it may do long before its container."""
        self.evidence: deque[str] = deque(maxlen=KEPT_LINES)
        """The lines up to the error, without tracebacks."""
        self._tracebacks: set[Source] = set()
        self._source: Source | None = None
        """Where the error came from, while its message may go on."""

    def read(self, line: str, at: str = "") -> bool:
        """Take one line; False when it tells a person nothing (a traceback's frame, an empty line)."""
        match = LINE.match(line)
        assert match is not None
        text, source = match["text"], (match["process"], match["level"] or "", match["where"] or "")
        harmless = source[1] in ("DEBUG", "INFO", "WARNING")
        if text.startswith("Traceback (most recent call last)"):
            if source == self._source:
                self._source = None
            if not harmless:
                self._tracebacks.add(source)
            return False
        if not text.strip() or FRAME.match(text) or (source in self._tracebacks and text.startswith(" ")):
            return False
        in_traceback = source in self._tracebacks and LAST_OF_TRACEBACK.match(text)
        if in_traceback:
            self._tracebacks.remove(source)
        if self.fatal and self.text and source != self._source:
            return True
        if source == self._source:
            self._go_on(text)
        if ANNOUNCED.match(text) and not self.fatal:
            # an exception that did not end the engine is not the cause
            self.text, self.fatal = None, True
        self.fatal = self.fatal or bool(DIED.match(text))
        if self.text is None and not harmless and (in_traceback or ERROR.match(text)):
            self.text, self.at, self._source = text, at, source
        self.evidence.append(line)
        return True

    def _go_on(self, text: str) -> None:
        if self.text and INVALID.search(self.text) and "For further information" not in text:
            self.text += f" - {text.strip().partition(' [type=')[0]}"
