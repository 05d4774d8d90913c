"""Every script that a person may run says what it does when asked, and does nothing else."""

import subprocess
from pathlib import Path

import pytest

PROJECT_DIR = Path(__file__).parents[2]
# these are started by the lab alone: on a node, in a container, or as a step of a build
INSIDE = (
    "/root/",
    "/bin/",
    "/boot",
    "/initrd-init",
    "/assemble",
    "/build",
    "rootfs",
    "/vllm_cpu/program",
    "/pulumi-resource-",
)
EXECUTABLE = subprocess.run(
    ["git", "ls-files", "-s", "scripts", "lab", ".ci"], cwd=PROJECT_DIR, capture_output=True, text=True, check=True
).stdout.splitlines()
SCRIPTS = [
    path
    for mode, _, _, path in (line.split(maxsplit=3) for line in EXECUTABLE)
    if mode == "100755" and not any(each in path for each in INSIDE)
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_explains_itself_from_any_folder_and_does_nothing(script: str, tmp_path: Path):
    done = subprocess.run(
        [PROJECT_DIR / script, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2 and done.stderr == ""
    assert not list(tmp_path.iterdir())


def test_scripts_were_found():
    assert {"scripts/clean", "scripts/test", "scripts/setup", "lab/demo", "scripts/spark"} <= set(SCRIPTS)
