"""The page cache before a start: root's way where there is one, else the checkpoint's files, and numbers always."""

import json
import os
from pathlib import Path

import pytest

from host import purge_page_cache
from host.purge_page_cache import PurgeInputs, drop_files, memory, purge
from tests.unit.executables import Recorder, run_shipped
from tests.unit.node.snapshots import REPO, REVISION, snapshot

# a Spark after 155 GiB went through its page cache
MEMINFO = "MemTotal: 125560832 kB\nMemFree: 2202010 kB\nMemAvailable: 120000000 kB\nCached: 123941683 kB\n"
PURGED = "MemTotal: 125560832 kB\nMemFree: 122683392 kB\nCached: 943718 kB\n"


@pytest.fixture
def meminfo(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """/proc/meminfo of a full node; dropping the cache is sudo's work, and only pretended."""
    file = tmp_path / "meminfo"
    file.write_text(MEMINFO)
    monkeypatch.setattr(purge_page_cache, "MEMINFO", file)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(purge_page_cache, "DROP", f"printf '{PURGED}' >{file}")
    recorder.answer("sync")
    recorder.answer("sudo", 'shift 2; exec "$@"')
    return file


def inputs(tmp_path: Path, need_gib: float) -> PurgeInputs:
    return {
        "stack": "dev",
        "image": None,
        "python": "python3",
        "need_gib": need_gib,
        "hf_cache": str(tmp_path),
        "repo": REPO,
        "revision": REVISION,
    }


def run_main(monkeypatch: pytest.MonkeyPatch, given: PurgeInputs) -> None:
    monkeypatch.setattr("sys.argv", ["-", json.dumps(given)])
    purge_page_cache.main()


def test_memory_is_told_in_gib():
    assert memory(MEMINFO) == {"cached_gib": 118.2, "free_gib": 2.1}


def test_root_drops_the_cache_after_what_is_dirty_is_written(
    meminfo: Path,
    tmp_path: Path,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    run_main(monkeypatch, inputs(tmp_path, 105.9))
    assert capsys.readouterr().err == "page cache: 118.2 GiB cached, free memory 2.1 -> 117.0 GiB\n"
    assert len(recorder.calls("sync")) == 1


def test_where_no_root_is_allowed_the_checkpoints_files_go_and_the_numbers_warn(
    meminfo: Path,
    tmp_path: Path,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    recorder.answer("sudo", "echo 'sudo: a password is required' >&2; exit 1")
    monkeypatch.setattr(purge_page_cache, "DROP", "echo 1 >/proc/sys/vm/drop_caches")
    run_main(monkeypatch, inputs(tmp_path, 105.9))
    first, refused, short = capsys.readouterr().err.splitlines()
    assert first == "page cache: 118.2 GiB cached, free memory 2.1 -> 2.1 GiB"
    assert refused.startswith("warning: only the checkpoint's own files left the page cache: this needs root, and no")
    assert "sudo: a password is required" in refused
    assert short == (
        "warning: the engine needs 105.9 GiB, but 2.1 GiB are free: "
        "run `sync; echo 1 >/proc/sys/vm/drop_caches` as root, or it may not start"
    )


def test_memory_that_something_else_holds_is_warned_about_even_after_roots_purge(
    meminfo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Dropping the cache again would not help."""
    run_main(monkeypatch, inputs(tmp_path, 118.0))
    assert "the engine needs 118.0 GiB, but 117.0 GiB are free: see what else holds memory" in capsys.readouterr().err


def test_a_sync_that_does_not_end_is_said_and_the_cache_is_dropped_all_the_same(
    meminfo: Path,
    tmp_path: Path,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    recorder.answer("sync", "exec sleep 5")
    monkeypatch.setattr(purge_page_cache, "SYNC_S", 0.1)
    assert purge(inputs(tmp_path, 1)) is None
    assert "files are still being written to disk after 0.1 s" in capsys.readouterr().err


def test_every_file_of_the_snapshot_is_dropped_through_its_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dropped: list[tuple[str, int]] = []
    monkeypatch.setattr(
        os,
        "posix_fadvise",
        lambda file, start, length, advice: dropped.append((os.readlink(f"/proc/self/fd/{file}"), start + length)),
    )
    folder = snapshot(tmp_path / "hub")
    (folder / "dangling").symlink_to("../../blobs/gone")
    files = {str(path.resolve()) for path in folder.rglob("*") if path.is_file()}
    drop_files(folder)
    assert {path for path, _ in dropped} == files and {span for _, span in dropped} == {0}, "0 means to the end"


def test_a_checkpoint_that_is_not_there_is_no_failure(tmp_path: Path):
    """A worker in nfs mode has none of its own."""
    drop_files(tmp_path / "gone")


def test_the_script_ends_well_on_this_very_machine(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    recorder.answer("sync")
    recorder.answer("sudo", "exit 1")
    done = run_shipped("host.purge_page_cache", inputs(tmp_path, 1e6), HOME=str(tmp_path), PATH=recorder.path)
    assert done.returncode == 0 and "GiB cached, free memory" in done.stderr


def test_the_memory_of_a_rank_that_is_about_to_be_replaced_is_no_reason_to_warn(
    meminfo: Path,
    tmp_path: Path,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    recorder.answer("docker", "echo 0123456789ab")
    run_main(monkeypatch, inputs(tmp_path, 119.0))
    assert "warning" not in capsys.readouterr().err
    recorder.answer("docker", "true")
    run_main(monkeypatch, inputs(tmp_path, 119.0))
    assert "warning: the engine needs 119.0 GiB, but 117.0 GiB are free" in capsys.readouterr().err
