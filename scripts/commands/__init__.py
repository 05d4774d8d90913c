"""The verbs of scripts/spark. Each is one module here, found by its name: a new file is a new verb.

A verb's module has

    a docstring             first line: what it does, for the list of verbs; the rest: its --help, with an example
    arguments(parser)       adds its own arguments; --stack, --config-file and --json are there already
    run(call) -> Answer     does it

`run` shows a person its findings with `call.show` as it has them, and returns all of them as one document, which
--json prints instead. Progress, notes and problems go to stderr in both cases (`waiting`, `say`). It raises Refusal,
SshError or StackError for what stops it, which ends with exit code 1 and the error's text, and no document.
"""

import argparse
import importlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from scripts.stacks import Stack, choose

PROGRESS_S = 5.0
"""Seconds between two lines about the same wait."""


class Answer(NamedTuple):
    """What a verb found, for --json, and its exit code."""

    document: dict[str, Any]
    code: int = 0


@dataclass
class Call:
    """One use of a verb: what was asked, and on which stack."""

    asked: argparse.Namespace

    @cached_property
    def stack(self) -> Stack:
        """The stack that is meant; not looked for before a verb wants it. Raises StackError."""
        return choose(self.asked.stack, self.asked.config_file)

    def show(self, line: str) -> None:
        """A finding for a person, on stdout."""
        if not self.asked.json:
            print(line, flush=True)


def say(line: object) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says every few seconds what is waited for, and how long already; nothing when it ends before that."""
    ended, began = threading.Event(), time.monotonic()

    def speak() -> None:
        while not ended.wait(PROGRESS_S):
            say(f"{what}, {time.monotonic() - began:.0f} s")

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()


def names() -> list[str]:
    return sorted(path.stem.replace("_", "-") for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")


def module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
