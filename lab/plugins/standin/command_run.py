"""Runs one command of pulumi-command, here or over SSH, and reports it as the official plugin does."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from standin import go_words
from standin.children import Children, Ended
from standin.masking import Masking
from standin.server import Failure
from standin.ssh_connection import Dialer, dialer
from standin.values import Plain

Previous = Mapping[str, str]
"""stdout and stderr of the run before; empty ones are not handed on."""

FIRST_PAUSE, LONGEST_PAUSE, PAUSE_FACTOR = 0.1, 5.0, 1.5
"""Between dials, in seconds, growing: the official plugin's back-off."""

NOT_ACCEPTED = (
    "Unable to set '{name}'. This only works if your SSH server is configured to accept\n"
    "\tthese variables via AcceptEnv. Alternatively, if a Bash-like shell runs the command on the remote host, "
    "you could\n\tprefix the command itself with the variables in the form 'VAR=value command'"
)


class Log(Protocol):
    def __call__(self, message: str, severity: str = "INFO", ephemeral: bool = True) -> None: ...


@dataclass(frozen=True)
class Run:
    """One run: the command line, the inputs it is run with, and how its output may be shown."""

    line: str
    inputs: Mapping[str, Plain]
    previous: Previous
    log: Log
    mask: Masking
    stream: bool
    """False when an input is secret in a way that masking cannot follow."""

    @property
    def previous_env(self) -> dict[str, str]:
        if self.inputs.get("addPreviousOutputInEnv") is False:
            return {}
        return {f"PULUMI_COMMAND_{name.upper()}": text for name, text in self.previous.items() if text}

    def on_line(self) -> Callable[[str, str], None] | None:
        wanted = self.inputs.get("logging", "stdoutAndStderr").lower()
        if not self.stream or wanted == "none":
            return None

        def show(name: str, line: str) -> None:
            if name in wanted:
                self.log(self.mask(line))

        return show

    def outputs(self, ended: Ended) -> dict[str, str]:
        return {"stdout": ended.stdout.removesuffix("\n"), "stderr": ended.stderr.removesuffix("\n")}

    def failure(self, what: str, both: str = "") -> Failure:
        return Failure(self.mask(f"{what}: running {go_words.quote(self.mask(self.line))}:\n{both}"))


def run_local(children: Children, run: Run) -> dict[str, str]:
    """stdout and stderr. Raises Failure with everything that was printed."""
    argv = [*(run.inputs.get("interpreter") or ["/bin/sh", "-c"]), run.line]
    directory = run.inputs.get("dir")
    env = {**os.environ, **(run.inputs.get("environment") or {}), **run.previous_env}
    try:
        ended = children.run(argv, run.inputs.get("stdin") or "", env, directory, run.on_line())
    except OSError as error:
        raise run.failure(go_words.start_error(error, argv[0], directory)) from error
    if ended.status:
        raise run.failure(go_words.local_status(ended.status), ended.both)
    return run.outputs(ended)


def run_remote(children: Children, run: Run) -> dict[str, str]:
    """stdout and stderr. Raises Failure when the dial limit is reached or the command fails."""
    with dialer(run.inputs["connection"]) as dial:
        env = accepted_environment(children, run, dial)
        ended = over_ssh(children, run, dial, run.line, run.inputs.get("stdin") or "", env, run.on_line())
        if ended.status == 0:
            return run.outputs(ended)
        if children.cancelled.is_set():
            what = "cancelled; what runs on the remote host is not ended by that"
        elif ended.status == 255 and dial.ssh_says:
            what = f"wait: remote command exited without exit status or exit signal ({' '.join(dial.ssh_says.split())})"
        else:
            what = f"Process exited with status {ended.status}"
        raise run.failure(what, ended.both)


def accepted_environment(children: Children, run: Run, dial: Dialer) -> dict[str, str]:
    """What is to be sent and the server takes. The ssh program does not tell, so ask with a command of our own."""
    wanted: dict[str, str] = run.inputs.get("environment") or {}
    names = [*wanted, *run.previous_env]
    if not names:
        return {}
    probe = f"sh -c 'for name in {' '.join(names)}; do printenv $name >/dev/null || echo $name; done'"
    ended = over_ssh(children, run, dial, probe, "", dict.fromkeys(names, "1"), None)
    refused = ended.stdout.split()
    for name in refused:
        if name in wanted:
            run.log(NOT_ACCEPTED.format(name=name), "ERROR", ephemeral=False)
            raise Failure(f'could not set environment variable "{name}": ssh: setenv failed')
        run.log(NOT_ACCEPTED.format(name=name), "WARNING", ephemeral=False)
    return {name: value for name, value in {**run.previous_env, **wanted}.items() if name not in refused}


def over_ssh(
    children: Children,
    run: Run,
    dial: Dialer,
    line: str,
    stdin: str,
    env: Mapping[str, str],
    on_line: Callable[[str, str], None] | None,
) -> Ended:
    """Run it over a connection of its own, dialing again while the connection's limit allows (-1: for ever)."""
    limit, pause, attempt = run.inputs["connection"]["dialErrorLimit"], FIRST_PAUSE, 0
    while True:
        try:
            ended = children.run(dial.argv(line, env), stdin, {**os.environ, **env}, None, on_line)
        except OSError as error:
            raise Failure(f"the ssh program did not start: {error}") from error
        if dial.connected:
            return ended
        if children.cancelled.is_set() or -1 < limit <= attempt:
            raise Failure(dial.error(attempt))
        attempt += 1
        run.log(f"Dial {attempt}/{'inf' if limit == -1 else limit} failed: retrying")
        children.cancelled.wait(pause)
        pause = min(pause * PAUSE_FACTOR, LONGEST_PAUSE)
