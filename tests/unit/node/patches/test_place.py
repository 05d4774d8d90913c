"""patches.place: only the lock's own content lies on a node, wherever it came from."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches import place
from patches.files import PatchSource, pack, unpack
from tests.unit.executables import run_shipped
from tests.unit.servers import serving

COMMIT = "c0ffee" + "0" * 34
CONTENTS = {"one.py": b"print('one')\n", "beside/__init__.py": b"", "two.sh": b"echo \xff two"}


@pytest.fixture(scope="module")
def origin():
    """The URL of a server that has one commit."""
    files = {f"/owner/recipe/{COMMIT}/patches/{path}": content for path, content in CONTENTS.items()}
    with serving(lambda request: (200, files[request[1]]) if request[1] in files else (404, b"")) as (url, _):
        yield url


def inputs(
    endpoint: str, *, share: bool = False, commit: str = COMMIT, files: dict[str, str] | None = None
) -> place.PlaceInputs:
    hashes = {path: sha256(content).hexdigest() for path, content in CONTENTS.items()} | (files or {})
    source: PatchSource = {
        "endpoint": endpoint,
        "repository": "owner/recipe",
        "commit": commit,
        "folder": "patches",
        "files": hashes,
    }
    return {"stack": "dev", "lock": "0123456789ab", "source": source, "share": share}


def placed(home: Path) -> dict[str, bytes]:
    folder = home / ".local/share/spark-stack/dev/patches/0123456789ab"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(home: Path, asked: place.PlaceInputs, packed: str = ""):
    return run_shipped("patches.place", asked, HOME=str(home), SPARK_PATCHES=packed)


def test_the_head_fetches_them_and_the_other_nodes_get_them_from_it(origin, tmp_path):
    head = run(tmp_path / "head", inputs(origin, share=True))
    assert head.returncode == 0, head.stderr
    assert placed(tmp_path / "head") == CONTENTS
    answer = json.loads(head.stdout)
    # no network is asked: this endpoint answers nobody
    worker = run(tmp_path / "worker", inputs("http://127.0.0.1:9"), answer["files"])
    assert worker.returncode == 0, worker.stderr
    assert placed(tmp_path / "worker") == CONTENTS
    assert json.loads(worker.stdout)["files"] is None


def test_files_that_are_there_are_fetched_by_nobody(origin, tmp_path):
    assert run(tmp_path, inputs(origin)).returncode == 0
    again = run(tmp_path, inputs("http://127.0.0.1:9"))
    assert (again.returncode, placed(tmp_path)) == (0, CONTENTS)


def test_a_file_that_was_edited_on_the_node_is_put_right(origin, tmp_path):
    run(tmp_path, inputs(origin))
    edited = tmp_path / ".local/share/spark-stack/dev/patches/0123456789ab/one.py"
    edited.write_text("print('another')\n")
    assert run(tmp_path, inputs(origin)).returncode == 0
    assert placed(tmp_path) == CONTENTS


def test_another_content_is_refused_with_both_hashes_and_the_way_out(origin, tmp_path):
    wanted = "0" * 64
    refused = run(tmp_path, inputs(origin, files={"one.py": wanted}))
    actual = sha256(CONTENTS["one.py"]).hexdigest()
    assert refused.returncode == 1
    assert f"one.py has sha256 {actual}, the lock says {wanted}" in refused.stderr
    assert "scripts/spark patches lock" in refused.stderr
    assert placed(tmp_path) == {}


def test_every_file_that_cannot_be_fetched_is_named(origin, tmp_path):
    refused = run(tmp_path, inputs(origin, commit="d" * 40))
    assert refused.returncode == 1
    for path in CONTENTS:
        assert f"{path} cannot be fetched" in refused.stderr
    assert "answers 404" in refused.stderr


@given(st.dictionaries(st.text("abc./", min_size=1), st.binary(), max_size=4))
def test_what_travels_arrives_byte_for_byte(contents: dict[str, bytes]):
    assert unpack(pack(contents)) == contents
