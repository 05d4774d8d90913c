"""What an SSH session does about a node's checkpoint: the shipped script, with a `docker` as a test tells it."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from host.console import utc_now
from tests.unit.executables import Recorder
from tests.unit.node.download.step_node import BEGUN, DONE, FETCH, MIRROR, OFFER, TOKEN, Node
from tests.unit.node.snapshots import REVISION, contents, names, snapshot, verify


@pytest.fixture
def node(tmp_path: Path, recorder: Recorder, short_pauses: None) -> Node:
    return Node(tmp_path, recorder)


def test_a_job_is_a_container_of_the_runtime_image_as_the_user_whose_cache_it_is(node: Node):
    node.answers(node.offers())
    done = node.step(FETCH, "begin", HF_TOKEN=TOKEN)
    assert json.loads(done.stdout) == BEGUN, done.stderr
    [run] = node.docker_runs()
    user = f"{os.getuid()}:{os.getgid()}"
    assert run == [
        *("run", "--detach", "--rm", "--name", "spark-dev-checkpoint", "--network", "host"),
        *("--label", "spark.stack=dev", "--label", "spark.job=checkpoint", "--user", user),
        *("--volume", f"{node.hub}:/cache/huggingface/hub", "--volume", f"{node.job}:/job"),
        *("--env", "HOME=/tmp", "--env", "HF_HOME=/tmp/huggingface", "--env", "HF_HUB_CACHE=/cache/huggingface/hub"),
        *("--env", "HF_ENDPOINT=https://huggingface.co", "--env", "HF_HUB_OFFLINE=0"),
        *("--env", "HF_HUB_DISABLE_XET=1", "--env", "HF_HUB_DISABLE_PROGRESS_BARS=1"),
        *("--env", "HF_HUB_DISABLE_TELEMETRY=1", "--env", "HF_HUB_DOWNLOAD_TIMEOUT=120"),
        *("--env", "HF_HUB_ETAG_TIMEOUT=30"),
        *("--entrypoint", "sh", "repo@sha256:1", "-c", 'exec "$0" "$@" >/job/output 2>&1'),
        *("/usr/bin/python3", "/job/job.py"),
    ]


@pytest.mark.parametrize(
    ("inputs", "env", "word"),
    [(FETCH, {"HF_TOKEN": TOKEN}, TOKEN), (MIRROR, {"SPARK_SOURCE": json.dumps(BEGUN)}, OFFER["token"])],
    ids=["hub", "mirror"],
)
def test_a_token_is_in_a_file_of_the_users_alone_and_nowhere_else(node: Node, inputs, env, word):
    node.answers(node.offers())
    done = node.step(inputs, "begin", **env)
    secret = node.job / "secret.json"
    assert word in secret.read_text()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.job.stat().st_mode) == 0o700
    secret.unlink()
    (node.job / "source.json").unlink(missing_ok=True)
    assert word not in json.dumps(node.recorder.calls("docker")) + done.stderr
    assert [path for path in node.home.rglob("*") if path.is_file() and word in path.read_text()] == []


def test_what_is_handed_over_runs_without_this_project(node: Node):
    node.answers(node.offers())
    node.step({**FETCH, "peer_fabric_ips": []}, "begin")
    done = subprocess.run(
        [sys.executable, "-S", "-I", str(node.job / "job.py")],
        env={"SPARK_JOB": str(node.job), "HF_HUB_CACHE": str(node.hub), "PATH": "/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=20,
    )
    # all of ours is there; what only the runtime image has is not
    assert "No module named 'huggingface_hub'" in (node.job / "status.json").read_text(), done.stderr


def test_a_job_that_runs_is_joined_and_not_begun_again(node: Node):
    """A cut session, Ctrl-C: the next up."""
    node.answers(node.offers())
    first = node.step(FETCH, "begin")
    again = node.step(FETCH, "begin")
    assert again.stdout == first.stdout
    assert "a job is already running: watching it" in again.stderr
    assert len(node.docker_runs()) == 1


def test_after_a_reboot_a_new_job_is_begun(node: Node):
    node.answers(node.offers())
    node.step(FETCH, "begin")
    node.running.unlink()
    assert json.loads(node.step(FETCH, "begin").stdout) == BEGUN
    assert len(node.docker_runs()) == 2


@pytest.mark.parametrize("change", [{"revision": "0" * 40}, {"repo": "owner/other"}, {"peer_fabric_ips": ["10.0.0.3"]}])
def test_a_job_with_other_settings_is_ended_first(node: Node, change):
    node.answers(node.offers())
    node.step(FETCH, "begin")
    done = node.step({**FETCH, **change}, "begin")
    assert "ending a running job that has other settings" in done.stderr
    calls = [call[0] for call in node.recorder.calls("docker") if call[0] in ("rm", "run")]
    assert calls == ["run", "rm", "run"], "never two at once"


def test_a_mirror_whose_source_is_another_job_by_now_is_begun_again_with_the_new_one(node: Node):
    node.step(MIRROR, "begin", SPARK_SOURCE=json.dumps(BEGUN))
    node.step(MIRROR, "begin", SPARK_SOURCE=json.dumps(BEGUN))
    assert len(node.docker_runs()) == 1
    node.step(MIRROR, "begin", SPARK_SOURCE=json.dumps({"job": "b2", "offer": {**OFFER, "job": "b2"}}))
    assert len(node.docker_runs()) == 2


def test_a_job_that_failed_is_not_joined(node: Node):
    node.answers(node.offers())
    node.step(FETCH, "begin")
    node.says(state="failed", error="the hub is gone")
    node.step(FETCH, "begin")
    assert len(node.docker_runs()) == 2


def test_a_head_that_is_done_and_only_offers_is_joined_as_long_as_nothing_was_lost_since(node: Node):
    folder = snapshot(node.hub)
    verify(folder)
    node.answers(node.offers())
    node.step(FETCH, "begin")
    node.says()
    assert "watching it" in node.step(FETCH, "begin").stderr
    next(folder.glob("*.safetensors")).unlink()
    node.step(FETCH, "begin")
    assert len(node.docker_runs()) == 2


def test_a_job_that_ends_before_it_serves_the_other_nodes_says_why(node: Node):
    failed = json.dumps({**DONE, "state": "failed", "error": "the mirror cannot listen at 192.168.100.1"})
    node.answers(f"echo '{failed}' >{node.job}/status.json")
    done = node.step(FETCH, "begin")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the checkpoint job ended: the mirror cannot listen at 192.168.100.1" in done.stderr


def test_files_of_root_are_given_to_the_user_in_a_helper_container_and_nothing_outside_the_model(
    node: Node, monkeypatch
):
    """What another tool's container left."""
    folder = snapshot(node.hub)
    (node.hub / "models--other--one").mkdir()
    node.answers(node.offers())
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    done = node.step(FETCH, "begin")
    model = str(folder.parent.parent)
    [chown, _] = node.docker_runs()
    assert chown[:8] == ["run", "--rm", "--user", "0:0", "--network", "none", "--volume", f"{model}:{model}"]
    assert chown[-3:] == [str(mine + 1), str(os.getgid()), model]
    assert "files of models--owner--name belong to another user: giving them to this one" in done.stderr


# --- following ---


def test_a_finished_job_over_a_verified_tree_is_the_end_and_says_what_was_verified_and_when(node: Node):
    folder = snapshot(node.hub)
    verify(folder)
    node.says()
    began = utc_now()
    done = node.step(MIRROR, "follow")
    verified = json.loads(done.stdout)
    assert began <= verified.pop("verified_at") <= utc_now()
    sizes = [len(content) for content in contents(3).values()]
    assert verified == {"snapshot": str(folder), "bytes": sum(sizes), "files": len(sizes)}
    assert "checkpoint: verified 5 of 5 files" in done.stderr


def test_progress_is_shown_while_the_job_runs(node: Node):
    verify(snapshot(node.hub))
    gib = 2**30
    node.says(state="running", phase="downloading", files=[21, 58], bytes=[70 * gib, 155 * gib], rate=95.0 * 2**20)
    ended = json.dumps({**DONE, "notes": ["one note"]})
    again = node.home / "asked"
    asked = f"if [ -f {again} ]; then echo '{ended}' >{node.job}/status.json; fi; touch {again}; echo c1"
    node.recorder.answer("docker", f"case $1 in ps) {asked};; esac")
    done = node.step(FETCH, "follow")
    lines = done.stderr.splitlines()
    assert lines[0] == "checkpoint: downloading 21 of 58 files, 70.0 of 155.0 GiB, 95.0 MiB/s, 15 min left"
    assert "checkpoint: one note" in lines


def test_a_failed_job_ends_the_step_with_its_words(node: Node):
    node.says(state="failed", error="no space left on the disk of the cache (0.0 GiB free): make room")
    done = node.step(MIRROR, "follow")
    assert done.returncode == 1
    assert done.stderr == "no space left on the disk of the cache (0.0 GiB free): make room\n"


def test_what_the_last_job_failed_at_is_no_failure_where_the_tree_was_completed_since(node: Node):
    """By another stack on the same cache: nothing is missing, so no job was begun again."""
    verify(snapshot(node.hub))
    node.says(state="failed", error="the hub is gone")
    assert json.loads(node.step(FETCH, "follow").stdout)["snapshot"].endswith(REVISION)


def test_a_job_that_vanished_is_no_success(node: Node):
    """The node was restarted: its last status is old."""
    snapshot(node.hub)
    node.says(state="running", phase="downloading")
    done = node.step(FETCH, "follow")
    assert done.returncode == 1
    assert "the checkpoint job is gone and left no result" in done.stderr


@pytest.mark.parametrize(("inputs", "action"), [(FETCH, "begin"), (MIRROR, "follow")], ids=["begin", "follow"])
def test_a_python_that_cannot_start_is_told_in_its_own_words(node: Node, inputs: dict[str, Any], action: str):
    """Its container is gone with its log."""
    said = "/usr/bin/python3: error while loading shared libraries: libexpat.so.1"
    node.answers(f"echo '{said}' >{node.job}/output; rm {node.running}")
    begun = node.step(inputs, "begin", SPARK_SOURCE=json.dumps(BEGUN))
    done = begun if action == "begin" else node.step(inputs, "follow")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"the checkpoint job ended: {said}")


def test_a_job_that_vanished_after_its_work_was_done_is(node: Node):
    verify(snapshot(node.hub))
    assert node.step(FETCH, "follow").returncode == 0


def test_the_jobs_word_alone_is_no_evidence(node: Node):
    """It said done, and a shard is not there."""
    folder = snapshot(node.hub)
    verify(folder)
    (folder / names(3)[0]).resolve().unlink()
    node.says()
    done = node.step(FETCH, "follow")
    assert done.returncode == 1
    assert f"owner/name is not verified on this node: {names(3)[0]} is a link to a file that is" in done.stderr
