"""A stack secret on a node: one file, closed to everybody else, and nothing of it anywhere else."""

import os
import stat
from pathlib import Path

import pytest

from tests.unit.executables import run_shipped

INPUTS = {"stack": "dev", "name": "api_key"}
KEY = "sk-0123456789"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / ".local/share/spark-stack/dev/secrets"
    folder.mkdir(parents=True)
    return folder


def test_only_its_owner_reads_it_whatever_the_umask(secrets: Path, tmp_path: Path):
    umask = os.umask(0)
    try:
        done = run_shipped("host.put_secret", INPUTS, HOME=str(tmp_path), SPARK_SECRET=KEY)
    finally:
        os.umask(umask)
    assert done.returncode == 0, done.stderr
    file = secrets / "api_key"
    assert file.read_text() == KEY
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_was_open_to_all_is_replaced_by_one_that_is_not(secrets: Path, tmp_path: Path):
    file = secrets / "api_key"
    file.write_text("old")
    file.chmod(0o644)
    (secrets / "api_key.new").write_text("left by a power cut")
    (secrets / "api_key.new").chmod(0o644)
    assert run_shipped("host.put_secret", INPUTS, HOME=str(tmp_path), SPARK_SECRET=KEY).returncode == 0
    assert file.read_text() == KEY and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(path.name for path in secrets.iterdir()) == ["api_key", "api_key.word"]


def test_its_words_never_hold_the_secret(secrets: Path, tmp_path: Path):
    done = run_shipped("host.put_secret", INPUTS, HOME=str(tmp_path), SPARK_SECRET=KEY)
    assert KEY not in done.stdout + done.stderr
    gone = run_shipped("host.put_secret", INPUTS, HOME=str(tmp_path / "other"), SPARK_SECRET=KEY)
    assert gone.returncode != 0 and KEY not in gone.stdout + gone.stderr


def test_another_content_has_another_word_and_the_same_content_has_the_same(secrets: Path, tmp_path: Path):
    """Ranks carry the word as a label: a new key replaces them, the same one written again does not."""
    keys = (KEY, KEY, "sk-another", KEY)
    words = [run_shipped("host.put_secret", INPUTS, HOME=str(tmp_path), SPARK_SECRET=key).stdout for key in keys]
    assert words[0] == words[1] and len(set(words)) == 3 and all(word.strip() for word in words)
    assert not any(KEY in path.read_text() for path in secrets.iterdir() if path.name != "api_key")
