"""What several unit tests start from."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.unit.executables import Recorder

# speed is what the benchmark measures; on a busy machine a deadline would fail what is right
settings.register_profile("unit", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Programs that keep their calls, first on this process' PATH."""
    made = Recorder(tmp_path / "bin")
    monkeypatch.setenv("PATH", made.path)
    return made
