"""Runs one command of pulumi-command, here or over SSH, and reports it much like the official plugin."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from standin.children import Children, Ended
from standin.server import Failure
from standin.ssh_connection import Dialer, dialer
from standin.values import Plain

PAUSE_S = 0.5
"""Seconds between two dials."""

MASK = "[secret]"
SHORTEST = 4
"""Shorter strings are not masked, since they occur in ordinary words."""


@dataclass(frozen=True)
class Run:
    """One run: the command line, its inputs, and the secrets among them."""

    line: str
    inputs: Mapping[str, Plain]
    log: Callable[[str], None]
    secrets: Collection[str]

    def on_line(self) -> Callable[[str, str], None] | None:
        """A function that shows a line while the command runs; None if an input is secret."""
        shown = self.inputs.get("logging", "stdoutAndStderr").lower()
        return None if self.secrets else lambda name, line: self.log(line) if name in shown else None

    def outputs(self, ended: Ended) -> dict[str, str]:
        return {"stdout": ended.stdout.removesuffix("\n"), "stderr": ended.stderr.removesuffix("\n")}

    def failure(self, what: str, both: str = "") -> Failure:
        line = json.dumps(masked(self.line, self.secrets), ensure_ascii=False)
        return Failure(masked(f"{what}: running {line}:\n{both}", self.secrets))


def masked(text: str, secrets: Collection[str]) -> str:
    """The text without the secrets, and without any line of one."""
    parts = {part.strip() for secret in secrets for part in (secret, *secret.splitlines())}
    # the longest first, so that masking a part of a secret does not break up the whole
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, MASK) if len(part) >= SHORTEST else text
    return text


def run_local(children: Children, run: Run) -> dict[str, str]:
    """Run here; returns stdout and stderr. Raises Failure with everything that was printed."""
    env = {**os.environ, **(run.inputs.get("environment") or {})}
    ended = children.run(["/bin/sh", "-c", run.line], run.inputs.get("stdin") or "", env, run.on_line())
    if ended.status < 0:
        raise run.failure(f"signal: {(signal.strsignal(-ended.status) or '').lower()}", ended.both)
    if ended.status:
        raise run.failure(f"exit status {ended.status}", ended.both)
    return run.outputs(ended)


def run_remote(children: Children, run: Run) -> dict[str, str]:
    """Run over SSH; returns stdout and stderr. Raises Failure at the dial limit, or if the command fails."""
    with dialer(run.inputs["connection"]) as dial:
        ended = over_ssh(children, run, dial)
        if ended.status == 0:
            return run.outputs(ended)
        if children.cancelled.is_set():
            what = "cancelled; the command keeps running on the remote host"
        elif ended.status == 255 and dial.ssh_says:
            what = f"wait: remote command exited without exit status or exit signal ({' '.join(dial.ssh_says.split())})"
        else:
            what = f"Process exited with status {ended.status}"
        raise run.failure(what, ended.both)


def over_ssh(children: Children, run: Run, dial: Dialer) -> Ended:
    """Run it over a connection of its own, and dial again up to the connection's limit."""
    limit, attempt = run.inputs["connection"]["dialErrorLimit"], 0
    while True:
        ended = children.run(dial.argv(run.line), run.inputs.get("stdin") or "", os.environ, run.on_line())
        if dial.connected:
            return ended
        if children.cancelled.is_set() or attempt >= limit:
            raise Failure(dial.error(attempt))
        attempt += 1
        run.log(f"Dial {attempt}/{limit} failed: retrying")
        children.cancelled.wait(PAUSE_S)
