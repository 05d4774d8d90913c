"""The measured mirror is the shipped one: both its ends as processes, on files that prove themselves."""

import json
import subprocess
import sys
from pathlib import Path

from tests.unit.executables import SCRIPTS, run_shipped

NAMES = {"address": "127.0.0.1", "token": "one-time"}


def test_files_are_made_copied_and_the_memory_of_both_ends_is_told(tmp_path: Path):
    head, node = tmp_path / "head", tmp_path / "node"
    for folder in (head, node):
        folder.mkdir()
    assert run_shipped("mirror.trial", {"role": "make", "folder": str(head), "files": 3, "bytes": 3000}).returncode == 0
    serve = json.dumps({"role": "source", "folder": str(head), "peers": ["127.0.0.2"], **NAMES})
    argv = [sys.executable, "-S", "-m", "mirror.trial", serve]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=SCRIPTS) as source:
        assert source.stdout
        port = json.loads(source.stdout.readline())["port"]
        copy = {"role": "copy", "folder": str(node), "own_address": "127.0.0.2", "streams": 2, "verify": True}
        done = run_shipped("mirror.trial", {**copy, "port": port, **NAMES}, apart=True)
        assert done.returncode == 0, done.stderr
        peaks = [json.loads(line)["peak_kib"] for line in (source.stdout.readline(), done.stdout)]
    assert all(1024 < peak < 200 * 1000 for peak in peaks)
    made = {path.name: path.read_bytes() for path in head.iterdir()}
    assert made == {path.name: path.read_bytes() for path in node.iterdir()} and len(made) == 3


def test_a_source_that_is_not_there_ends_it_with_the_reason(tmp_path: Path):
    copy = {"role": "copy", "folder": str(tmp_path), "own_address": "127.0.0.2", "streams": 2, "verify": True}
    done = run_shipped("mirror.trial", {**copy, "port": 1, **NAMES})
    assert (done.returncode, done.stdout) == (1, "") and "Connection refused" in done.stderr
