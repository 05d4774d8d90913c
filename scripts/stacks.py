"""Which stack an operator means, and what it says: its configuration and its outputs, as Pulumi reads them.

Wherever `pulumi` is on PATH it is asked, so that secrets, environments and --config-file work as in `pulumi up`.
Without it, the stack file alone is read.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from components.settings import base
from components.settings.cluster import ClusterSettings, load
from host.console import say

if TYPE_CHECKING:
    # imports Pulumi, which no verb needs
    from components.outputs import Outputs

PROJECT = "spark-stack"
LIMIT_S = 60
"""Limit of one call of pulumi; a remote backend may be slow."""
COPY = "copy Pulumi.example.yaml to Pulumi.<name>.yaml"

Values = Mapping[str, object]
"""What a stack says under `spark-stack:`; the value of a secret other than `cluster` is None."""


class StackError(Exception):
    """No stack to work on, or one that cannot be read or lacks something: one line, with the way out."""


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def pulumi(*words: str) -> str:
    """pulumi's stdout. Raises StackError with its own reason."""
    argv = ["pulumi", *words, "--non-interactive"]
    try:
        done = subprocess.run(
            argv,
            cwd=base.PROJECT_DIR,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise StackError("there is no pulumi on PATH: scripts/setup engine puts one into .lab/engine") from None
    except subprocess.TimeoutExpired:
        raise StackError(f"pulumi {words[0]} gave no answer within {LIMIT_S} s: does its backend answer?") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        # warnings may come before the reason
        reason = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "no reason given")
        raise StackError(f"pulumi {words[0]}: {one_line(reason.removeprefix('error:'))}")
    return done.stdout


def stack_files() -> dict[str, Path]:
    """Every stack file of the project by its stack's name; Pulumi.example.yaml is there to copy from, not a stack."""
    files = {path.name[len("Pulumi.") : -len(".yaml")]: path for path in base.PROJECT_DIR.glob("Pulumi.*.yaml")}
    return {name: path for name, path in sorted(files.items()) if name != "example"}


def read_file(file: Path) -> Values:
    """What a stack file alone says. Raises StackError when that is not all of it."""
    try:
        content = yaml.load(file.read_text(), yaml.CSafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StackError(f"{file.name} is not YAML: {one_line(error)}") from None
    if not isinstance(content, dict):
        return {}
    if "environment" in content:
        raise StackError(f"{file.name} uses an environment, which only pulumi can read: put it on PATH and log in")
    config = content.get("config")
    return ours(config if isinstance(config, dict) else {})


def ours(config: Mapping[str, object]) -> Values:
    return {key.removeprefix(f"{PROJECT}:"): value for key, value in config.items() if key.startswith(f"{PROJECT}:")}


@dataclass(frozen=True)
class Stack:
    """One stack of the project."""

    title: str
    """The name as pulumi takes it: `home`, or `organization/home`."""
    file: Path
    """Its stack file, absolute."""

    def values(self, file: Path | None = None) -> Values:
        """What this stack says, or would say with another stack file. Raises StackError."""
        file = file or self.file
        if shutil.which("pulumi") is None:
            return read_file(file)
        where = ["--stack", self.title, "--config-file", str(file)]
        cluster = f"{PROJECT}:cluster"
        try:
            config = json.loads(pulumi("config", "--json", "--open", *where))
            if config.get(cluster, {}).get("secret"):
                # one of its values is a secret; no other secret is decrypted
                config[cluster] = json.loads(pulumi("config", "get", cluster, "--json", *where))
        except StackError as error:
            raise StackError(f"{file.name} cannot be read: {error}") from None
        return ours({key: value.get("objectValue", value.get("value")) for key, value in config.items()})

    @property
    def name(self) -> str:
        """The name alone, as the program and the nodes' labels and folders have it."""
        return self.title.rpartition("/")[2]

    def values_or_file(self) -> Values:
        """Like `values`, but with only a note where pulumi cannot read the stack (no login, no such stack yet)."""
        try:
            return self.values()
        except StackError as error:
            values = read_file(self.file)
            say(f"note: {error}: reading the file alone")
            return values

    def outputs(self) -> "Outputs":
        """The outputs of the last `up`, secrets masked. Raises StackError when there are none."""
        outputs: Outputs = json.loads(pulumi("stack", "output", "--stack", self.title, "--json"))
        if "api_url" not in outputs:
            raise StackError(f"stack {self.title} serves nothing: run pulumi up")
        return outputs


def cluster_of(values: Values, *, has_api_key: bool | None = None) -> ClusterSettings:
    """Settings for a reader that starts nothing; with `has_api_key` None the values decide. Raises SettingsError."""
    if has_api_key is None:
        has_api_key = "api_key" in values
    return load(values.get("cluster"), has_api_key=has_api_key, project_dir=base.PROJECT_DIR, to_start=False)


def choose(title: str | None, config_file: Path | None) -> Stack:
    """The stack that is meant: the named one, the selected one, the only one, or the one typed on a terminal.

    Raises StackError when there is none, or it has no stack file.
    """
    files = stack_files()
    if title is None:
        title = selected() or (next(iter(files)) if len(files) == 1 else ask_which(list(files)))
    file = config_file or base.PROJECT_DIR / f"Pulumi.{title.rpartition('/')[2]}.yaml"
    if not file.is_file():
        way_out = f"use one of {', '.join(files)}" if files else COPY
        raise StackError(f"there is no {config_file}" if config_file else f"there is no {file.name}: {way_out}")
    return Stack(title, file)


def selected() -> str | None:
    """The stack that `pulumi stack select` or PULUMI_STACK chose, if any."""
    if shutil.which("pulumi") is None:
        return None
    try:
        return pulumi("stack", "--show-name").strip() or None
    except StackError:
        return None


def ask_which(names: list[str]) -> str:
    """One of the names, typed on the terminal. Raises StackError when stdin is not a terminal."""
    if not names:
        raise StackError(f"there is no stack: {COPY}")
    listed = ", ".join(names)
    if not sys.stdin.isatty():
        raise StackError(f"no stack is selected: name one with --stack: {listed}")
    print(f"which stack ({listed})? ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if answer not in names:
        raise StackError(f"there is no stack {answer!r}: use one of {listed}")
    return answer
