"""The pair as one unit: its two containers, when they are kept, and what replaces them."""

import json
import re
from typing import Any

import pytest

from loader import payload
from tests.program.pair import healthy, rank_container
from tests.program.runner import DIGEST, FOLDER, HUB, Engine, Runner
from tests.unit.recipe import DSPARK_HEAD, DSPARK_WORKER, both_ranks

BOTH = pytest.mark.parametrize("stack", ["dev", "example"])


@BOTH
def test_the_worker_starts_before_the_head_and_neither_is_replaced_alone(engine: Engine):
    head, worker = engine.ranks
    assert "worker-engine" in head.after and "head-engine" not in worker.after
    assert (head.replaced_with, worker.replaced_with) == (["worker-engine"], [])
    for rank in (head, worker):
        assert rank.request.deleteBeforeReplace and rank.request.deleteBeforeReplaceDefined
    assert head.labels["spark.after"] == "worker-engine-id"


@BOTH
def test_ranks_carry_whose_they_are_and_what_they_were_started_from(engine: Engine):
    head, worker = engine.ranks
    assert [rank.inputs["name"] for rank in engine.ranks] == [
        f"spark-{head.labels['spark.stack']}-rank{number}" for number in (0, 1)
    ]
    assert (head.labels["spark.rank"], worker.labels["spark.rank"]) == ("0", "1")
    for label in ("spark.stack", "spark.generation", "spark.spec"):
        assert head.labels[label] == worker.labels[label]
    assert set(worker.labels) - {"spark.patches"} == {"spark.stack", "spark.rank", "spark.generation", "spark.spec"}


def test_a_stack_with_patches_mounts_them_read_only_and_names_them(dev: Engine, example: Engine):
    for rank in example.ranks:
        [mount] = [mount for mount in rank.inputs["mounts"] if mount["target"] == "/opt/dspark-patches"]
        assert mount["readOnly"] is True
        assert "issue22@52de6d0c" in rank.labels["spark.patches"].split()
    assert not any(mount["target"] == "/opt/dspark-patches" for rank in dev.ranks for mount in rank.inputs["mounts"])


def test_a_rank_is_this_container(dev: Engine):
    head, worker = (dict(rank.inputs) for rank in dev.ranks)
    for inputs in (head, worker):
        for own in ("labels", "uploads", "envs", "name", "command"):
            del inputs[own]
    health = head.pop("healthcheck")
    assert head == worker
    assert head == {
        "image": f"10.0.2.2:5000/anemll/dspark-vllm-gx10@{DIGEST}",
        "entrypoints": ["/usr/bin/python3", "/opt/spark/rank.py"],
        "networkMode": "host",
        "ipcMode": "host",
        "gpus": "all",
        "devices": [{"hostPath": "/dev/infiniband"}],
        "ulimits": [
            {"name": "memlock", "soft": -1, "hard": -1},
            {"name": "stack", "soft": 67108864, "hard": 67108864},
        ],
        "restart": "no",
        "mustRun": True,
        "destroyGraceSeconds": 20,
        "logDriver": "json-file",
        "logOpts": {"max-size": "50m", "max-file": "3"},
        "mounts": [
            {
                "type": "bind",
                "source": f"{FOLDER}/cache/abababababab",
                "target": "/cache/huggingface",
                "readOnly": False,
            },
            {"type": "bind", "source": HUB, "target": "/cache/huggingface/hub", "readOnly": True},
            {"type": "bind", "source": f"{FOLDER}/tmp", "target": "/tmp", "readOnly": False},
        ],
    }
    assert health == {
        "tests": [
            "CMD",
            "/usr/bin/python3",
            "-c",
            "import urllib.request as r; r.urlopen('http://127.0.0.1:8888/health', timeout=5)",
        ],
        "interval": "30s",
        "timeout": "10s",
        "startPeriod": "8m0s",
        "retries": 3,
    }


def test_a_ranks_command_and_environment_are_those_that_render_shows(dev: Engine):
    def here(argv: list[str]) -> list[str]:
        changed = {"198.51.100.1": "192.168.100.1"}
        return [changed.get(word, word) for word in argv]

    head, worker = dev.ranks
    assert (head.inputs["command"], worker.inputs["command"]) == (here(DSPARK_HEAD), here(DSPARK_WORKER))
    both = both_ranks("dspark")
    assert head.env == {**both, "VLLM_HOST_IP": "192.168.100.1"}
    assert worker.env == {**both, "VLLM_HOST_IP": "192.168.100.2"}
    assert head.inputs["envs"] == sorted(head.inputs["envs"])


def test_a_rank_brings_its_own_first_process_with_all_it_imports(dev: Engine):
    for number, rank in enumerate(dev.ranks):
        files = {item["file"]: item["content"] for item in rank.inputs["uploads"]}
        assert files["/opt/spark/rank.py"] == payload("rank.start")
        assert json.loads(files["/opt/spark/start.json"])["rank"] == number


# --- the live pair ---


def live(spec: str, **changed: Any) -> list[dict[str, Any]]:
    documents = healthy("x86_64")
    for rank, node in enumerate(documents):
        node["containers"] = [rank_container("dev", rank, spec=spec, **changed)]
    return documents


def test_a_live_pair_keeps_its_generation_through_a_change_that_reaches_no_rank(dev: Engine, run_program: Runner):
    spec = dev.ranks[0].labels["spark.spec"]
    decided = run_program.decided("dev", lambda cluster: cluster["readiness"].update(timeout_s=700), live(spec))
    assert (decided.generation.name, decided.said) == ("aaaa1111", [])


def test_a_dead_rank_replaces_both_with_its_reason(dev: Engine, run_program: Runner):
    documents = live(dev.ranks[0].labels["spark.spec"])
    documents[1]["containers"][0].update(running=False, exit_code=0)
    decided = run_program.decided("dev", documents=documents)
    assert decided.generation.name != "aaaa1111"
    assert decided.said[0][1].endswith("worker's rank ended with exit code 0")


# --- the fabric's modes ---


def test_a_pinned_index_is_each_nodes_own_looked_up_one(dev: Engine, run_program: Runner):
    engine = run_program("dev", lambda cluster: cluster.update(fabric={"gid_index": "pin"}))
    assert [rank.env["NCCL_IB_GID_INDEX"] for rank in engine.ranks] == ["3", "6"]
    assert engine.one("head-engine").after >= {"head-gid"}
    # an index that moves on one node replaces both ranks
    assert len({rank.labels["spark.gid"] for rank in engine.ranks}) == 1
    assert "spark.gid" not in dev.ranks[0].labels


def test_any_other_mode_never_takes_over_the_looked_up_index(dev: Engine, changed: Engine, damaged: Engine):
    """resolve, a number, unset. Otherwise a drift would replace a healthy pair."""
    indexes = [[rank.env.get("NCCL_IB_GID_INDEX") for rank in engine.ranks] for engine in (dev, changed, damaged)]
    assert indexes == [[None, None], ["5", "5"], [None, None]]


def test_the_lookup_runs_again_after_a_boot_and_when_the_table_moved(dev: Engine, damaged: Engine):
    def noted(engine: Engine, name: str) -> list[str]:
        note = re.match(r": 'boot ([0-9a-f]{8}) table ([0-9a-f]{8})'; ", engine.one(name).inputs["create"])
        assert note
        return list(note.groups())

    before, after = ([noted(engine, name) for name in ("head-gid", "worker-gid")] for engine in (dev, damaged))
    # the head was booted, the worker's table moved
    assert [[x == y for x, y in zip(*both, strict=True)] for both in zip(before, after, strict=True)] == [
        [False, True],
        [True, False],
    ]
