"""What scripts/setup relies on: what the locks pin, and how a long step ends. Installs nothing."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.txt").read_text()


def watched(limit_s: int, log: Path, script: str) -> subprocess.CompletedProcess[str]:
    call = 'set -euo pipefail; . scripts/progress.sh; watched step "" "$1" "$2" bash -c "$3"'
    command = ["bash", "-c", call, "test", str(limit_s), str(log), script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)


def test_every_package_of_the_lock_has_one_version_and_a_hash():
    entries = re.split(r"\n(?=[a-z])", LOCK.split("\n", 2)[2])
    assert len(entries) > 30
    unpinned = [entry for entry in entries if not re.match(r"[a-z0-9-]+==\S+.*\\\n    --hash=sha256:", entry)]
    assert unpinned == []


@pytest.mark.parametrize("lock", ["requirements.txt", "lab/engine/cli/go.mod", "lab/engine/python-host/go.mod"])
def test_a_lock_does_not_name_where_packages_come_from(lock):
    assert not re.search(r"://|--index|--find-links|^replace ", (ROOT / lock).read_text(), re.MULTILINE)


def test_the_engine_we_build_is_not_older_than_the_sdk():
    def version(pattern: str, text: str) -> tuple[int, ...]:
        match = re.search(pattern, text, re.MULTILINE)
        assert match, pattern
        return tuple(map(int, match[1].split(".")))

    engine = version(r"^\tgithub\.com/pulumi/pulumi/pkg/v3 v([\d.]+)", (ROOT / "lab/engine/cli/go.mod").read_text())
    assert engine >= version(r"^pulumi==([\d.]+)", LOCK)


def test_a_step_that_fails_returns_its_exit_code_and_shows_its_last_lines(tmp_path):
    step = watched(10, tmp_path / "log", "seq 100; echo no space left >&2; exit 7")
    assert step.returncode == 7
    assert "failed, exit code 7" in step.stderr
    assert step.stderr.splitlines()[-1] == "    no space left"
    assert "    50\n" not in step.stderr


def test_a_step_that_passes_is_quiet(tmp_path):
    step = watched(10, tmp_path / "log", "echo words")
    assert (step.returncode, step.stdout, step.stderr) == (0, "", "")
    assert (tmp_path / "log").read_text() == "words\n"


def test_a_step_past_its_limit_is_stopped_and_says_which_limit(tmp_path):
    step = watched(1, tmp_path / "log", "exec sleep 30")
    assert step.returncode == 124
    assert "stopped after 1 s" in step.stderr


def test_make_help_explains_every_target():
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    # `python` is a part of other targets
    assert set(re.findall(r"^make ([\w-]+) +\S", shown, re.MULTILINE)) == set(phony[1].split()) - {"python"}
