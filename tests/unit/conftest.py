"""What several unit tests start from."""

from pathlib import Path

import pytest

from tests.unit.executables import Recorder


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Programs that keep their calls, first on this process' PATH."""
    made = Recorder(tmp_path / "bin")
    monkeypatch.setenv("PATH", made.path)
    return made
