"""What tests of scripts/spark share: how it is called, stack files for it, and a `pulumi` that answers it."""

import io
import json
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from components.settings.base import PROJECT_DIR
from tests.unit.executables import Recorder

SPARK = PROJECT_DIR / "scripts" / "spark"
CLUSTER = "spark-stack:cluster"


class Shown(NamedTuple):
    """What a call printed, and its exit code."""

    code: object
    out: str
    err: str


class Spark(Protocol):
    def __call__(self, *arguments: str, typed: str = "", stdin: type[io.StringIO] = io.StringIO) -> Shown: ...


class Terminal(io.StringIO):
    """A stdin on which a person types."""

    def isatty(self) -> bool:
        return True


def write(project: Path, stack: str, cluster: object, **others: object) -> None:
    """A stack file; `others` are values beside the cluster."""
    config = {CLUSTER: cluster, **{f"spark-stack:{name}": value for name, value in others.items()}}
    (project / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump({"config": config}))


PULUMI = """
here={folder}
case "$*" in
  "stack --show-name"*) cat $here/selected 2>/dev/null && exit ;;
  "config get"*) cat $here/cluster.json 2>/dev/null && exit ;;
  "config "*) cat $here/config.json 2>/dev/null && exit ;;
  "stack output"*) cat $here/outputs.json 2>/dev/null && exit ;;
esac
echo 'warning: a newer version is there' >&2
echo "error: no stack named 'home' found" >&2
echo 'see the manual' >&2
exit 1
"""


class Engine:
    """A `pulumi` with prepared answers; without one it fails as the real one does for an unknown stack."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        recorder.answer("pulumi", PULUMI.format(folder=recorder.folder))

    def select(self, stack: str) -> None:
        (self._recorder.folder / "selected").write_text(f"{stack}\n")

    def config(self, cluster: object, *secrets: str) -> None:
        """Every stack's configuration from now on, whatever its file says. `secrets`: `cluster` may be one too."""
        blinded = {f"spark-stack:{name}": {"secret": True} for name in secrets}
        shown = {CLUSTER: {"value": json.dumps(cluster), "objectValue": cluster, "secret": False}}
        (self._recorder.folder / "config.json").write_text(json.dumps(shown | blinded))
        (self._recorder.folder / "cluster.json").write_text(json.dumps(shown[CLUSTER]))

    def outputs(self, outputs: dict[str, Any]) -> None:
        (self._recorder.folder / "outputs.json").write_text(json.dumps(outputs))

    def calls(self) -> list[list[str]]:
        return self._recorder.calls("pulumi")
