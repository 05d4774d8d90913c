"""The verbs of scripts/spark. Each is one module here, found by its name: a new file is a new verb.

A verb's module has

    a docstring             first line: what it does, for the list of verbs; the rest: its --help, with an example
    arguments(parser)       adds its own arguments; --stack, --config-file and --json are there already
    run(call) -> Answer     does it

`run` shows a person each finding with `call.show` as soon as it has it, and returns all of them as one document, which
--json prints instead. Progress, notes and problems go to stderr in both cases (`waiting`, `say`). For what stops it, it
raises Refusal, SshError or StackError: the exit code is 1 then, and the error's text takes the document's place.
"""

import argparse
import importlib
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from host.console import say
from scripts.stacks import Stack, choose

PROGRESS_S = 5.0
"""Seconds between two lines about the same wait."""


class Answer(NamedTuple):
    """What a verb found, for --json, and its exit code."""

    document: Mapping[str, object]
    code: int = 0


@dataclass
class Call:
    """One use of a verb: what was asked, and on which stack."""

    asked: argparse.Namespace

    @cached_property
    def stack(self) -> Stack:
        """The stack that is meant, looked for when a verb first asks. Raises StackError."""
        return choose(self.asked.stack, self.asked.config_file)

    def show(self, line: str) -> None:
        """A finding for a person, on stdout."""
        if not self.asked.json:
            print(line, flush=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says every few seconds what it is waiting for and for how long; nothing when that ends sooner."""
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
