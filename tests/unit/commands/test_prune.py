"""scripts/spark prune: what it keeps for whom, what it shows, and that it removes only when told.

The nodes' part runs in this process, but for one list that goes through `ssh` as it is called.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.settings import base
from components.ssh.node_script import run_script
from components.ssh.target import Resolved, SshError, Target
from scripts.commands import prune as verb
from tests.unit.executables import Recorder, run_shipped
from tests.unit.node import hub_cache as cache
from tests.unit.node.hub_cache import NEW, OLD, OTHER
from tests.unit.operators import Engine, Shown, Spark
from tests.unit.servers import Answer, Request, body, serving
from tests.unit.stacks import NODES, raw

REPO = "deepseek-ai/DeepSeek-V4-Flash-DSpark"
SSH = """
for line; do :; done
case " $* " in
  *" -G "*) printf 'hostname spark\\nuser ops\\nport 22\\n' ;;
  *) exec sh -c "$line" ;;
esac
"""


class Pair:
    """A project with stack `home`, whose two nodes have OLD and NEW in their caches, and somebody else's model."""

    def __init__(self, project: Path, ssh: Recorder) -> None:
        self.project = project
        self.hubs = [project / name / "hub" for name in ("head", "worker")]
        for hub in self.hubs:
            cache.snapshot(hub, OLD, {"model-1": "one", "encoder.py": "old"}, REPO)
            cache.snapshot(hub, NEW, {"model-1": "one", "encoder.py": "new"}, REPO)
            cache.snapshot(hub, OLD, {"weights": "theirs"}, OTHER)
        self.nodes = [{**node, "hf_cache": str(hub.parent)} for node, hub in zip(NODES, self.hubs, strict=True)]
        self.stack("home", NEW)
        ssh.answer("ssh", SSH)
        self.off = ""

    def stack(self, name: str, revision: str, mode: str = "local") -> None:
        cluster = raw("dspark", {"nodes": self.nodes, "checkpoint": {"revision": revision, "mode": mode}})
        text = yaml.safe_dump({"config": {"spark-stack:cluster": cluster}})
        (self.project / f"Pulumi.{name}.yaml").write_text(text)

    def run_script(self, target: Target, resolved: Resolved, name: str, inputs: Any, *, timeout_s: int) -> str:
        """In place of the one that goes through `ssh`."""
        if target.host == self.off:
            raise SshError(f"SSH to {target.host} failed")
        done = run_shipped(name, inputs, DOCKER_HOST=os.environ["DOCKER_HOST"])
        if done.returncode:
            raise SshError(done.stderr.strip())
        return done.stdout

    def revisions(self) -> list[set[str]]:
        folders = [cache.folder(hub, REPO) / "snapshots" for hub in self.hubs]
        return [{path.name for path in folder.glob("*")} for folder in folders]


def no_containers(_: Request) -> Answer:
    return body([])


@pytest.fixture
def pair(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(base, "PROJECT_DIR", tmp_path)
    with serving(no_containers, tmp_path / "docker.sock") as (where, _):
        monkeypatch.setenv("DOCKER_HOST", where)
        made = Pair(tmp_path, recorder)
        monkeypatch.setattr(verb, "run_script", made.run_script)
        yield made


@pytest.fixture
def prune(spark: Spark) -> Any:
    def run(*arguments: str, typed: str = "") -> Shown:
        return spark("prune", "--stack", "home", *arguments, typed=typed)

    return run


def test_it_lists_what_is_removable_and_what_stays_and_removes_after_a_typed_yes(pair: Pair, prune: Any):
    shown = prune(typed="yes\n")
    lines = [line.split(maxsplit=4) for line in shown.out.splitlines()]
    head = next(number for number, line in enumerate(lines) if line[0] == "head")
    assert lines[head][:3] == ["head", "(spark-a.example.net)", str(pair.hubs[0])]
    assert lines[head + 1][0] == "removable" and "revision 3c5ed1f0  no stack file names it" in lines[head + 1][4]
    assert lines[head + 2][0] == "stays" and "named by Pulumi.home.yaml" in lines[head + 2][4]
    assert [line.split()[:4] for line in shown.out.splitlines()].count(["stays", "other", "models:", "1"]) == 2
    assert ' from head (spark-a.example.net), worker (spark-b.example.net)? Only "yes" removes: ' in shown.out
    assert shown.out.count(" removed, ") == 2 and shown.out.rstrip().endswith("free now")
    assert (shown.code, shown.err, pair.revisions()) == (0, "", [{NEW}, {NEW}])
    assert all(cache.folder(hub, OTHER).is_dir() for hub in pair.hubs)


@pytest.mark.parametrize("typed", ["", "\n", "y\n", "YES\n", "no\n"])
def test_anything_but_yes_removes_nothing(pair: Pair, prune: Any, typed: str):
    shown = prune(typed=typed)
    assert (shown.code, shown.out.splitlines()[-1].endswith("nothing was removed")) == (0, True)
    assert pair.revisions() == [{OLD, NEW}, {OLD, NEW}]


def test_with_yes_on_the_command_line_it_does_not_ask_and_a_second_run_has_nothing_to_do(pair: Pair, prune: Any):
    assert "Only" not in prune("--yes").out
    assert pair.revisions() == [{NEW}, {NEW}]
    again = prune("--yes")
    assert again.out.count("nothing is removable") == 2 and "removed" not in again.out


def test_what_another_stack_names_stays_and_the_list_says_which(pair: Pair, prune: Any):
    pair.stack("dev", OLD)
    pair.stack("dev.two", OLD)
    shown = prune("--yes")
    assert "revision 3c5ed1f0  named by Pulumi.dev.two.yaml, Pulumi.dev.yaml" in shown.out
    assert pair.revisions() == [{OLD, NEW}, {OLD, NEW}]


def test_the_example_is_not_a_stack_and_a_file_without_a_cluster_names_nothing(pair: Pair, prune: Any):
    pair.stack("example", OLD)
    (pair.project / "Pulumi.new.yaml").write_text("encryptionsalt: v1:x\n")
    prune("--yes")
    assert pair.revisions() == [{NEW}, {NEW}]


@pytest.mark.parametrize(
    "text", ["config: [\n", "config: {spark-stack:cluster: {profile: dspark}}", "config: {spark-stack:cluster: 3}"]
)
def test_a_stack_file_that_does_not_say_what_it_needs_stops_it_before_a_node_is_asked(
    pair: Pair, prune: Any, text: str
):
    (pair.project / "Pulumi.prod.yaml").write_text(text)
    shown = prune("--yes")
    assert (shown.code, shown.out) == (1, "") and shown.err.startswith("Pulumi.prod.yaml ")
    assert pair.revisions() == [{OLD, NEW}, {OLD, NEW}]


def test_a_node_that_is_off_is_named_and_the_other_one_is_pruned(pair: Pair, prune: Any):
    pair.off = "spark-b.example.net"
    shown = prune("--yes")
    assert shown.code == 1 and "SSH to spark-b.example.net" in shown.err
    assert pair.revisions() == [{NEW}, {OLD, NEW}]


def test_a_node_whose_checkpoint_job_runs_is_listed_and_left(pair: Pair, prune: Any):
    holder = os.open(pair.hubs[1], os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        shown = prune("--yes")
    finally:
        os.close(holder)
    assert (shown.code, shown.out.count("  removable  ")) == (1, 2)
    assert shown.err == "worker (spark-b.example.net): a checkpoint job runs: wait until it ends, then list again\n"
    assert pair.revisions() == [{NEW}, {OLD, NEW}]


def test_in_mode_nfs_a_workers_own_copy_is_removable_and_the_heads_stays(pair: Pair, prune: Any):
    pair.stack("home", NEW, "nfs")
    shown = prune("--yes")
    assert shown.out.count("a copy of its own: this node reads the revision from the head") == 1
    assert pair.revisions()[0] == {NEW}
    assert not cache.folder(pair.hubs[1], REPO).exists(), "the worker kept nothing of the model"


def test_a_workers_own_copy_that_another_stack_wants_stays(pair: Pair, prune: Any):
    pair.stack("home", NEW, "nfs")
    pair.stack("prod", NEW, "nfs")
    prune("--yes")
    assert pair.revisions() == [{NEW}, {NEW}]


def test_a_stack_that_is_not_there_names_those_that_are(pair: Pair, prune: Any):
    pair.stack("lab", OLD)
    assert prune("--stack", "pear").err == "there is no Pulumi.pear.yaml: use one of home, lab\n"


def test_a_refused_stack_shows_its_problems(pair: Pair, prune: Any):
    pair.stack("home", "main")
    assert "checkpoint/revision: 'main' is not a commit" in prune().err


def test_json_lists_without_asking_and_removes_only_with_yes(pair: Pair, prune: Any, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(verb, "run_script", run_script)
        shown = prune("--json", typed="yes\n")
    head, worker = json.loads(shown.out)["nodes"]
    assert (head["role"], worker["host"], shown.err) == ("head", "spark-b.example.net", "")
    assert [row["what"] for row in head["candidates"]] == ["revision 3c5ed1f0"] and "removed" not in head
    assert pair.revisions() == [{OLD, NEW}, {OLD, NEW}]
    pair.off = "spark-b.example.net"
    shown = prune("--json", "--yes")
    head, worker = json.loads(shown.out)["nodes"]
    assert head["removed"] > 0 and worker["problem"] == shown.err.strip() == "SSH to spark-b.example.net failed"
    assert (shown.code, pair.revisions()) == (1, [{NEW}, {OLD, NEW}])


def test_every_stack_file_is_read_by_the_engine_where_there_is_one(pair: Pair, prune: Any, engine: Engine):
    pair.stack("dev", NEW)
    engine.config(raw("dspark", {"nodes": pair.nodes, "checkpoint": {"revision": OLD}}))
    assert "revision 3c5ed1f0  named by Pulumi.dev.yaml, Pulumi.home.yaml" in prune("--yes").out
    assert pair.revisions() == [{OLD}, {OLD}]


def test_an_engine_that_cannot_read_the_stack_stops_it(pair: Pair, prune: Any, engine: Engine):
    shown = prune("--yes")
    assert (shown.code, shown.out) == (1, "") and shown.err.count("\n") == 1 and "no stack named" in shown.err
    assert pair.revisions() == [{OLD, NEW}, {OLD, NEW}]


def test_a_stack_file_by_another_name_counts_and_so_does_the_one_that_it_replaces(pair: Pair, prune: Any):
    elsewhere = pair.project / "folder" / "changed.yaml"
    elsewhere.parent.mkdir()
    (pair.project / "Pulumi.home.yaml").rename(elsewhere)
    pair.stack("home", OLD)
    shown = prune("--yes", "--config-file", str(elsewhere))
    assert "named by Pulumi.home.yaml" in shown.out and "named by changed.yaml" in shown.out
    assert pair.revisions() == [{OLD, NEW}, {OLD, NEW}]
