"""Log lines as vLLM writes them: `(Worker_TP0 pid=137) INFO 11-30 07:40:12 [module.py:123] text`, on stdout.

The real engine is several processes and each line begins with its process; here one process speaks for all of them.
"""

import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TextIO

_writing = threading.Lock()


class Log:
    """The voice of one process of the engine. An empty `name` writes no process in front, as a headless rank does."""

    def __init__(self, name: str = "", pid: int = 0, out: TextIO | None = None) -> None:
        self.prefix = f"({name} pid={pid}) " if name else ""
        self.out = out

    def raw(self, text: str) -> None:
        """Lines without level and time: tracebacks, progress bars, uvicorn's."""
        out = self.out or sys.stdout
        with _writing:
            out.write("".join(f"{self.prefix}{line}\n" for line in text.split("\n")))
            out.flush()

    def info(self, where: str, text: str) -> None:
        self._leveled("INFO", where, text)

    def warning(self, where: str, text: str) -> None:
        self._leveled("WARNING", where, text)

    def error(self, where: str, text: str, cause: BaseException | None = None) -> None:
        """With a cause, its traceback follows, every line with the same head."""
        self._leveled("ERROR", where, text)
        if cause is not None:
            for line in trace(cause).split("\n"):
                self._leveled("ERROR", where, line)

    def _leveled(self, level: str, where: str, text: str) -> None:
        head = f"{level} {time.strftime('%m-%d %H:%M:%S')} [{where}]"
        self.raw("\n".join(f"{head} {line}" for line in text.split("\n")))


def trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip("\n")


@dataclass(frozen=True)
class Voices:
    """The processes that speak on one rank: the API server (or a headless rank's main), the engine core, the worker."""

    api: Log
    engine: Log
    worker: Log

    @classmethod
    def of(cls, headless: bool, node_rank: int, pid: int) -> "Voices":
        api = Log() if headless else Log("APIServer", pid)
        return cls(api, Log("EngineCore", pid + 118), Log(f"Worker_TP{node_rank}", pid + 187))
