"""scripts/spark patches: a lock made from a copy of a repository, and what keeps one from being tried."""

from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from tests.unit.operators import Spark

COMMIT = "d" * 40
FILES = {"one.py": b"print('one')\n", "two.sh": b"echo two\n", "beside.py": b"VALUE = 1\n"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of a repository, and beside it a lock that was made of it."""
    (tmp_path / "copy/patches").mkdir(parents=True)
    for name, content in FILES.items():
        (tmp_path / "copy/patches" / name).write_bytes(content)
    digests = {name: sha256(content).hexdigest() for name, content in FILES.items()}
    one = {"name": "one", "file": "one.py", "sha256": digests["one.py"], "run": "python3", "why": "a test"}
    two = {"name": "two", "file": "two.sh", "sha256": digests["two.sh"], "run": "bash", "why": "a test"}
    patches = [{**one, "beside": {"beside.py": digests["beside.py"]}}, two]
    lock = {"repository": "owner/recipe", "commit": "c" * 40, "folder": "patches", "patches": patches}
    (tmp_path / "lock.yaml").write_text(yaml.safe_dump(lock))
    return tmp_path / "copy"


def lock(spark: Spark, copy: Path, *more: str):
    present = str(copy.parent / "lock.yaml")
    return spark("patches", "lock", "--commit", COMMIT, "--lock", present, "--folder", str(copy), *more)


def test_what_changed_against_the_present_lock_is_shown_patch_by_patch(spark: Spark, copy: Path):
    assert lock(spark, copy).out.split() == ["same", "one", "same", "two"]
    (copy / "patches/beside.py").write_text("VALUE = 2\n")
    (copy / "patches/two.sh").unlink()
    assert lock(spark, copy).out.split() == ["changed", "one", "gone", "two"]


def test_the_new_lock_can_be_used_and_is_then_the_present_one(spark: Spark, copy: Path, tmp_path: Path):
    (copy / "patches/one.py").write_text("print('another')\n")
    assert lock(spark, copy, "--output", str(tmp_path / "new.yaml")).code == 0
    written = yaml.safe_load((tmp_path / "new.yaml").read_text())
    assert (written["commit"], [patch["name"] for patch in written["patches"]]) == (COMMIT, ["one", "two"])
    again = spark("patches", "lock", "--commit", COMMIT, "--lock", str(tmp_path / "new.yaml"), "--folder", str(copy))
    assert again.out.split() == ["same", "one", "same", "two"]


def test_a_folder_that_holds_none_of_the_files_is_refused(spark: Spark, copy: Path, tmp_path: Path):
    refused = spark(
        "patches", "lock", "--commit", COMMIT, "--lock", str(copy.parent / "lock.yaml"), "--folder", str(tmp_path)
    )
    assert (refused.code, refused.out) == (1, "")
    assert "one.py cannot be read" in refused.err


def test_a_tree_is_tried_with_the_locks_own_content_alone(spark: Spark, copy: Path, tmp_path: Path):
    other = b"echo three\n"
    (copy / "patches/two.sh").write_bytes(other)
    tree = ("--tree", str(tmp_path), "--lock", str(copy.parent / "lock.yaml"), "--folder", str(copy))
    refused = spark("patches", "check", *tree)
    assert refused.code == 1
    assert f"two.sh has sha256 {sha256(other).hexdigest()}, the lock says" in refused.err


def test_a_folder_that_is_no_tree_is_refused(spark: Spark, copy: Path, tmp_path: Path):
    tree = ("--tree", str(tmp_path), "--lock", str(copy.parent / "lock.yaml"), "--folder", str(copy))
    refused = spark("patches", "check", *tree)
    assert (refused.code, "holds no vllm/" in refused.err) == (1, True)
