"""Programs that stand in for `docker`, `ssh` and the like: they keep what they were called with and answer as told."""

import contextlib
import io
import json
import os
import stat
import subprocess
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import CodeType
from unittest import mock

import loader
from loader import file_of, payload

SCRIPTS = Path(loader.__file__).parent

KEEP = """#!/bin/sh
printf '%s\\0' "$@" >>'{log}'
printf '\\1\\0' >>'{log}'
{does}
"""


class Recorder:
    """A folder in front of PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    @property
    def path(self) -> str:
        return f"{self.folder}:/usr/bin:/bin"

    def answer(self, name: str, does: str = "") -> None:
        """Make a program; `does` is what its shell does after the call was kept."""
        file = self.folder / name
        file.write_text(KEEP.format(log=self.folder / f"{name}.calls", does=does))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def calls(self, name: str) -> list[list[str]]:
        """argv, without the program, of each call so far."""
        log = self.folder / f"{name}.calls"
        calls = log.read_text().split("\1\0")[:-1] if log.exists() else []
        return [call.split("\0")[:-1] for call in calls]


@cache
def compiled(script: str) -> CodeType:
    return compile(Path(script).read_bytes(), script, "exec")


def run_shipped(
    name: str, inputs: Mapping[str, object] | None = None, *arguments: str, apart: bool = False, **env: str
) -> "subprocess.CompletedProcess[str]":
    """A script of scripts/node, named as a module, run as a program with this environment and no other.

    `apart` runs what is shipped, as a process of its own with nothing but the standard library: that takes ten times as
    long.
    """
    script = str(SCRIPTS / file_of(name))
    given = [*([json.dumps(inputs)] if inputs is not None else []), *arguments]
    env = {"PATH": "/usr/bin:/bin", **env}
    if apart:
        argv = [sys.executable, "-IS", "-", *given]
        return subprocess.run(argv, input=payload(name), env=env, capture_output=True, text=True, timeout=60)
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch.object(sys, "argv", [script, *given]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            exec(compiled(script), {"__name__": "__main__", "__file__": script})
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            err.write(f"{ended.code}\n" if isinstance(ended.code, str) else "")
        except Exception:
            code = 1
            traceback.print_exc()
    return subprocess.CompletedProcess([script, *given], code, out.getvalue(), err.getvalue())
