"""Running a file of scripts/node on a node from plain Python.

A script goes over SSH on stdin to `python3 -`, with the modules it imports embedded, so nothing is left on the node;
its inputs are one JSON argument, its result is stdout, its words are stderr.
"""

import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from components.shell import python_line
from components.ssh import Resolved, SshError, Target, ssh_argv

SCRIPTS = Path(__file__).parent.parent / "scripts" / "node"
IMPORTED = re.compile(r"^ *(?:import|from) (\w+)", re.MULTILINE)
"""A module that a line imports; the linter allows one a line. Parsing the scripts took a quarter of a second."""

EMBED = """\
import sys, types
def embedded(name, text):
    module = types.ModuleType(name)
    module.__source__ = text  # for a script that hands its modules on
    sys.modules[name] = module
    exec(compile(text, name + ".py", "exec"), module.__dict__)
"""


@cache
def modules_of(name: str) -> tuple[str, ...]:
    """The modules of scripts/node that a script needs, itself last."""
    needed: list[str] = []
    for other in IMPORTED.findall((SCRIPTS / f"{name}.py").read_text()):
        if (SCRIPTS / f"{other}.py").is_file():
            needed += [module for module in modules_of(other) if module not in needed]
    return (*needed, name)


@cache
def payload(name: str) -> str:
    """The text that runs scripts/node/<name>.py when Python reads it from stdin."""
    *needed, main = modules_of(name)
    text = {module: (SCRIPTS / f"{module}.py").read_text() for module in [*needed, main]}
    lines = [f"embedded({module!r}, {text[module]!r})\n" for module in needed]
    run = f"exec(compile({text[main]!r}, '{main}.py', 'exec'), {{'__name__': '__main__'}})\n"
    return "".join([EMBED, *lines, run])


def environment_payload(name: str, variables: Mapping[str, str]) -> str:
    """Like payload, with environment variables for the script alone: nobody else sees stdin, anyone sees argv."""
    return f"import os\nos.environ.update({dict(variables)!r})\n{payload(name)}"


def run_script(target: Target, resolved: Resolved, name: str, inputs: Mapping[str, Any], *, timeout_s: int) -> str:
    """Run a script on a node now and return its stdout.

    Raises SshError naming node and step: not reachable, over its limit (on the node, or here), or its own words.
    """
    argv = ssh_argv(target, python_line(inputs, timeout_s), multiplexed=resolved.multiplexed)
    try:
        done = subprocess.run(
            argv, input=payload(name), capture_output=True, text=True, timeout=timeout_s + 20, check=False
        )
    except subprocess.TimeoutExpired:
        raise SshError(
            f"{name} on {target.host} gave no answer within {timeout_s + 20} s: is the node overloaded?"
        ) from None
    if done.returncode == 255:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        where = f"{target.host} ({resolved.user}@{resolved.host} port {resolved.port})"
        raise SshError(
            f"SSH to {where} failed before {name}: {reason}: "
            "switch the node on, check the cable of its management network, or try `ssh` by hand"
        )
    if done.returncode == 124:
        raise SshError(f"{name} on {target.host} was ended after {timeout_s} s: is the node overloaded?")
    if done.returncode:
        raise SshError(f"{name} on {target.host} ended with {done.returncode}: {done.stderr.strip() or 'no words'}")
    return done.stdout
