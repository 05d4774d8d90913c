"""scripts/spark in this process, in a project and beside an engine that a test prepares."""

import io
import sys
from pathlib import Path

import pytest

from components.settings import base
from tests.unit.executables import Recorder, compiled
from tests.unit.operators import SPARK, Engine, Shown, Spark


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder, in place of this one."""
    monkeypatch.setattr(base, "PROJECT_DIR", tmp_path)
    return tmp_path


@pytest.fixture
def engine(recorder: Recorder) -> Engine:
    """A `pulumi` on PATH that knows no stack yet."""
    return Engine(recorder)


@pytest.fixture
def spark(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spark:
    """spark(*arguments, typed=...) runs the shipped command in this process, with no other `pulumi` than `engine`."""

    def run(*arguments: str, typed: str = "", stdin: type[io.StringIO] = io.StringIO) -> Shown:
        monkeypatch.setattr(sys, "argv", [str(SPARK), *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "stdin", stdin(typed))
        with pytest.raises(SystemExit) as ended:
            exec(compiled(str(SPARK)), {"__name__": "__main__", "__file__": str(SPARK)})
        return Shown(ended.value.code, *capsys.readouterr())

    return run
