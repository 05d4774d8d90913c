"""The checkpoint on a node: the shipped script, with a `docker` that fetches as a test tells it."""

import io
import json
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

import fetch_checkpoint
from tests.unit.executables import Recorder, run_shipped
from tests.unit.snapshots import ENCODER, REPO, REVISION, names, snapshot

INPUTS = {
    "repo": REPO,
    "revision": REVISION,
    "shards": 3,
    "encoding_file": ENCODER,
    "endpoint": "https://huggingface.co",
    "size_gib": 155.0,
    "image": "repo@sha256:1",
    "python": "/usr/bin/python3",
    "hf_cache": "~/.cache/huggingface",
    "stack": "dev",
}
TOKEN = "hf_0123456789"
WAY_OUT = "run pulumi up again, the download goes on where it stopped"


class Node:
    """A home with a hub cache, and its `docker`."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self.home, self.recorder = folder / "home", recorder
        self.hub = self.home / ".cache/huggingface/hub"
        self.hub.mkdir(parents=True)
        self.request = folder / "request"

    def docker(self, run: str, ps: str = "") -> None:
        """`run` is what a download does after it read its request."""
        does = f"case $1 in run) cat >{self.request}; {run};; ps) {ps or 'true'};; esac"
        self.recorder.answer("docker", does)

    def fetch(self, *, apart: bool = False, **env: str) -> "subprocess.CompletedProcess[str]":
        paths = {"HOME": str(self.home), "PATH": self.recorder.path}
        return run_shipped("fetch_checkpoint", INPUTS, apart=apart, **paths, **env)


@pytest.fixture
def node(tmp_path: Path, recorder: Recorder) -> Node:
    return Node(tmp_path, recorder)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A whole hub cache to fetch from."""
    snapshot(tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


def test_a_whole_checkpoint_starts_nothing(node: Node):
    folder = snapshot(node.hub)
    node.docker("exit 1")
    done = node.fetch()
    assert json.loads(done.stdout) == {"snapshot": str(folder), "fetched": False}
    assert (done.stderr, node.recorder.calls("docker")) == ("", [])


def test_what_is_missing_is_fetched_by_the_runtime_image_as_the_user_whose_cache_it_is(node: Node, elsewhere: Path):
    node.docker(f"cp -r {elsewhere}/. {node.hub}")
    done = node.fetch(apart=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fetched"] is True
    assert f"checkpoint: {REPO} at 86f746b3: there is no snapshot" in done.stderr
    [run] = [call for call in node.recorder.calls("docker") if call[0] == "run"]
    assert run[:-1] == [
        *("run", "--rm", "--interactive", "--name", "spark-dev-download", "--network", "host"),
        *("--label", "spark.stack=dev", "--label", "spark.job=download"),
        *("--user", f"{node.home.stat().st_uid}:{node.home.stat().st_gid}"),
        *("--volume", f"{node.home}/.cache/huggingface:/cache/huggingface"),
        *("--env", "HOME=/tmp"),
        *("--env", "HF_HOME=/cache/huggingface"),
        *("--env", "HF_ENDPOINT=https://huggingface.co"),
        *("--env", "HF_HUB_OFFLINE=0"),
        *("--env", "HF_HUB_DISABLE_XET=1"),
        *("--env", "HF_HUB_DISABLE_PROGRESS_BARS=1"),
        *("--env", "HF_HUB_DISABLE_TELEMETRY=1"),
        *("--env", "HF_HUB_DOWNLOAD_TIMEOUT=120"),
        *("--env", "HF_HUB_ETAG_TIMEOUT=30"),
        *("--entrypoint", "/usr/bin/python3", "repo@sha256:1", "-c"),
    ]
    assert json.loads(node.request.read_text()) == {"repo": REPO, "revision": REVISION, "token": None}


def test_the_hub_token_is_on_stdin_alone(node: Node, elsewhere: Path):
    node.docker(f"cp -r {elsewhere}/. {node.hub}")
    done = node.fetch(HF_TOKEN=TOKEN)
    assert json.loads(node.request.read_text())["token"] == TOKEN
    assert TOKEN not in json.dumps(node.recorder.calls("docker")) + done.stdout + done.stderr


def test_one_missing_shard_is_named_before_it_is_fetched(node: Node, elsewhere: Path):
    folder = snapshot(node.hub)
    (folder / names(3)[1]).unlink()
    (folder / ENCODER).unlink()
    node.docker(f"cp -r {elsewhere}/. {node.hub}")
    done = node.fetch()
    assert f"{names(3)[1]} is missing and 1 more: fetching" in done.stderr


def test_a_download_that_ended_well_and_left_gaps_is_a_failure(node: Node):
    """D2: exit 0 with `.incomplete` files left."""
    folder = snapshot(node.hub)
    (folder / names(3)[0]).resolve().unlink()
    node.docker("true")
    done = node.fetch()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"{REPO} is not whole after its download: {names(3)[0]} is a link to a file that is not there"
    )


def test_a_left_over_download_is_found_by_its_label_and_ended_first(node: Node, elsewhere: Path):
    """B8: the update was killed, the container was not."""
    node.docker(f"cp -r {elsewhere}/. {node.hub}", ps="echo aaa")
    assert node.fetch().returncode == 0
    ps, rm, run = node.recorder.calls("docker")
    labels = ["--filter", "label=spark.stack=dev", "--filter", "label=spark.job=download"]
    assert (ps, rm) == (["ps", "--all", "--quiet", *labels], ["rm", "--force", "aaa"])
    assert run[0] == "run"


LICENCE = (
    ": accept its licence at https://huggingface.co/owner/name "
    "and set the token (pulumi config set --secret hf_token ...)"
)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("GatedRepoError status 403: Access to model owner/name is restricted", LICENCE),
        ("HfHubHTTPError status 401: Unauthorized for url", LICENCE),
        ("HfHubHTTPError status 403: Forbidden", LICENCE),
        (
            "RevisionNotFoundError status 404: Revision Not Found",
            ": compare repository and revision with the stack file",
        ),
        (
            "RepositoryNotFoundError status 404: Repository Not Found",
            ": compare repository and revision with the stack file",
        ),
        ("LocalEntryNotFoundError status None: Connection refused", f": {WAY_OUT}"),
        (
            "OSError status None: [Errno 28] No space left on device",
            ": make room on the disk of the cache, then run pulumi up again",
        ),
    ],
)
def test_a_failed_download_says_where_from_and_what_to_do(words: str, advice: str, node: Node):
    """D11."""
    node.docker(f"echo 'Warning: x' >&2; echo '{words}' >&2; exit 3")
    done = node.fetch()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"{REPO} could not be downloaded from https://huggingface.co: {words}{advice}"
    )


def test_a_download_without_words_is_told_as_such(node: Node):
    node.docker("exit 137")
    assert node.fetch().stderr.splitlines()[-1].endswith(f"huggingface.co: no words: {WAY_OUT}")


def test_a_node_without_a_docker_program_is_said_in_words(node: Node):
    done = run_shipped("fetch_checkpoint", INPUTS, HOME=str(node.home), PATH=str(node.recorder.folder))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "docker is not on the PATH of an SSH session on this node"


def test_progress_counts_what_is_on_the_disk_finished_or_not(tmp_path: Path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/x.incomplete").write_bytes(bytes(300_000))
    (tmp_path / "link").symlink_to("blobs/x.incomplete")
    assert 300_000 <= fetch_checkpoint.bytes_on_disk(tmp_path) < 320_000


def test_progress_says_what_is_there_of_all_how_fast_it_comes_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    sizes, times = iter([2 << 30, 3 << 30]), iter([100.0, 108.0])
    monkeypatch.setattr(fetch_checkpoint, "bytes_on_disk", lambda folder: next(sizes))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    asked: list[float] = []

    class Once(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            asked.append(timeout or 0)
            return len(asked) > 1

    fetch_checkpoint.report(tmp_path, 155 << 30, Once())
    assert capsys.readouterr().err == "checkpoint: 3.0 of 155.0 GiB, 128.0 MiB/s, 1,216 s left\n"
    assert asked == [5.0, 5.0]


def test_a_small_checkpoint_is_counted_in_mib_and_a_stalled_one_promises_no_end():
    assert fetch_checkpoint.progress(9 << 20, 9 << 20, 36 << 20, 5.0) == "checkpoint: 9.0 of 36.0 MiB, 0.0 MiB/s"


# --- what runs inside the image ---


class HubError(OSError):
    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__(words)
        if status:
            self.response = types.SimpleNamespace(status_code=status)


def download(
    error: Exception | None, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], object]:
    """Run DOWNLOAD with a huggingface_hub of ours: what it was asked, and the exit code."""
    asked: dict[str, Any] = {}

    def snapshot_download(repo: str, **options: object) -> None:
        asked.update(options, repo=repo)
        if error:
            raise error

    kinds = ("GatedRepoError", "HfHubHTTPError", "RepositoryNotFoundError", "RevisionNotFoundError")
    errors = types.ModuleType("huggingface_hub.errors")
    for kind in kinds:
        setattr(errors, kind, HubError)
    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    request = {"repo": REPO, "revision": REVISION, "token": token}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request) + "\n"))
    try:
        exec(fetch_checkpoint.DOWNLOAD, {})
    except SystemExit as ended:
        return asked, ended.code
    return asked, 0


@pytest.mark.parametrize(("token", "used"), [(TOKEN, TOKEN), (None, False)])
def test_the_download_asks_for_the_pinned_revision_and_never_for_a_token_of_the_image(
    token: str | None, used: object, monkeypatch: pytest.MonkeyPatch
):
    assert download(None, token, monkeypatch) == (
        {"repo": REPO, "revision": REVISION, "token": used, "max_workers": 4},
        0,
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (HubError("403 Client Error\nAccess is restricted", 403), "HubError status 403: 403 Client Error"),
        (OSError(28, "No space left on device"), "OSError status None: [Errno 28] No space left on device"),
        (HubError(""), "HubError status None: no words"),
    ],
)
def test_a_download_that_failed_says_why_in_one_line(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert download(error, TOKEN, monkeypatch)[1] == 3
    assert capsys.readouterr().err.splitlines() == [line]
