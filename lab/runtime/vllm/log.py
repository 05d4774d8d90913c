"""Log lines as vLLM writes them: `(Worker_TP0 pid=22) INFO 11-30 07:40:12 [module.py:123] text`, on stdout.

The real engine has several processes, and each line begins with its process. Here one process logs for all of them.
"""

import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TextIO

_writing = threading.Lock()
PACKAGES = "/usr/local/lib/python3.12/dist-packages/vllm"

Frame = tuple[str, int, str, str]
"""An entry of a traceback, quoted from a real log: file below vllm/, line, function and text."""


class Log:
    """The log of one process of the engine. Without a `name` lines have no process in front, as on a headless rank."""

    def __init__(self, name: str = "", pid: int = 0, out: TextIO | None = None) -> None:
        self.pid, self.out = pid, out
        self.rename(name)

    def rename(self, name: str) -> None:
        self.prefix = f"({name} pid={self.pid}) " if name else ""

    def raw(self, text: str) -> None:
        """Write lines without level and time: tracebacks, progress bars, uvicorn's lines."""
        out = self.out or sys.stdout
        with _writing:
            out.write("".join(f"{self.prefix}{line}\n" for line in text.split("\n")))
            out.flush()

    def info(self, where: str, text: str) -> None:
        self._leveled("INFO", where, text)

    def warning(self, where: str, text: str) -> None:
        self._leveled("WARNING", where, text)

    def error(self, where: str, text: str) -> None:
        self._leveled("ERROR", where, text)

    def _leveled(self, level: str, where: str, text: str) -> None:
        head = f"{level} {time.strftime('%m-%d %H:%M:%S')} [{where}]"
        self.raw("\n".join(f"{head} {line}" for line in text.split("\n")))


def trace(error: BaseException, *frames: Frame) -> str:
    """A traceback with the real engine's frames in place of ours."""
    rows = [f'  File "{PACKAGES}/{file}", line {line}, in {where}\n    {text}' for file, line, where, text in frames]
    last = "".join(traceback.format_exception_only(error)).rstrip("\n")
    return "\n".join(["Traceback (most recent call last):", *rows, last])


@dataclass(frozen=True)
class Logs:
    """The logs of one rank's processes: the API server (or a headless rank's main), the engine core, the worker."""

    api: Log
    engine: Log
    worker: Log

    @classmethod
    def of(cls, headless: bool, pid: int) -> "Logs":
        """The worker's log gets its rank in the group (Worker_TP0) only once there is a group."""
        return cls(Log("" if headless else "APIServer", pid), Log("EngineCore", pid + 12), Log("Worker", pid + 21))
