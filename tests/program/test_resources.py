"""What the shipped stack files declare, in which order, with which options."""

import json
import re
import shlex
from typing import Any

import pytest

from components.verified import verification
from loader import payload
from tests.program.pair import healthy
from tests.program.runner import API_KEY, DIGEST, REPORT, VERIFIED, Engine, Runner

BOTH = pytest.mark.parametrize("stack", ["dev", "example"])
SCRIPTS = {
    "head-folder": "host.our_folder",
    "head-gid": "gid.lookup",
    "head-image-pull": "host.pull_image",
    "head-checkpoint-job": "download.step",
    "head-checkpoint": "download.step",
    "head-page-cache": "host.purge_page_cache",
    "worker-folder": "host.our_folder",
    "worker-gid": "gid.lookup",
    "worker-image-pull": "host.pull_image",
    "worker-checkpoint-job": "download.step",
    "worker-checkpoint": "download.step",
    "worker-page-cache": "host.purge_page_cache",
}
REMOTE = "command:remote:Command"


@BOTH
def test_the_shipped_stack_declares_these_resources_and_no_others(engine: Engine, stack: str):
    patched = ["head-patches", "worker-patches"] if stack == "example" else []
    declared = sorted(
        (item.kind.split(":")[-1], item.name) for item in engine.declared if item.kind != "pulumi:pulumi:Stack"
    )
    assert declared == sorted(
        [
            *(("Node", role) for role in ("head", "worker")),
            *(("docker", role) for role in ("head", "worker")),
            *(
                (kind, f"{role}-{kind.lower()}")
                for kind in ("Fabric", "Image", "Checkpoint")
                for role in ("head", "worker")
            ),
            *(("RemoteImage", f"{role}-image") for role in ("head", "worker")),
            *(("Command", name) for name in [*SCRIPTS, *patched, "ready"]),
            *(("Patches", name) for name in patched),
            *(("Container", f"{role}-engine") for role in ("head", "worker")),
            ("Engine", "engine"),
            ("Readiness", "readiness"),
        ]
    )


@BOTH
def test_every_resource_lies_under_a_component(engine: Engine):
    for item in engine.resources:
        assert item.request.parent.split("::")[-2].split("$")[-1].startswith("spark:"), item.name


# --- the scripts on the nodes ---


@BOTH
@pytest.mark.parametrize(("name", "script"), SCRIPTS.items())
def test_a_script_goes_to_its_node_on_stdin_under_a_limit(name: str, script: str, engine: Engine):
    inputs = engine.one(name).inputs
    # variables from another step come before it
    assert inputs["stdin"].endswith(payload(script))
    for verb in ("create", "update", "delete"):
        if verb in inputs:
            assert re.match(r"(: '[^']*'; )?timeout -k 10 \d+ python3 -I - '\{.*\}'$", inputs[verb])


@BOTH
def test_our_folder_is_new_only_where_the_state_knows_none_and_goes_with_the_stack(engine: Engine):
    inputs = engine.one("worker-folder").inputs
    asked = {verb: json.loads(shlex.split(inputs[verb])[-1]) for verb in ("create", "update", "delete")}
    assert [(verb, inputs["action"], inputs["new"]) for verb, inputs in asked.items()] == [
        ("create", "make", True),
        ("update", "make", False),
        ("delete", "remove", False),
    ]


@BOTH
def test_a_connection_checks_the_host_key_and_tries_once(engine: Engine):
    hosts = {"dev": ("lab-head", "lab-worker"), "example": ("spark-a.example.net", "spark-b.example.net")}
    reached = set()
    for item in engine.of_kind(REMOTE):
        connection = item.inputs["connection"]
        reached.add(connection["host"])
        assert connection["hostKey"] == f"ssh-ed25519 AAAA-{connection['host']}"
        assert (connection["user"], connection["dialErrorLimit"], connection["perDialTimeout"]) == ("ops", 1, 20)
        assert "privateKey" not in connection, "an agent's key must not be stored"
    assert reached in [set(pair) for pair in hosts.values()]


@BOTH
def test_a_scripts_stdout_is_data_and_its_stderr_is_shown(engine: Engine):
    for item in engine.of_kind(REMOTE):
        assert (item.inputs["logging"], item.inputs["addPreviousOutputInEnv"]) == ("stderr", False), item.name
        assert "environment" not in item.inputs, "sshd refuses variables that it was not told to accept"


@BOTH
def test_what_undoes_itself_on_removal_is_removed_before_it_is_created_again(engine: Engine):
    """By default a replaced command is deleted last, and its removal would undo the new one."""
    for item in engine.of_kind(REMOTE):
        assert item.request.deleteBeforeReplace == ("delete" in item.inputs), item.name


@BOTH
def test_the_docker_provider_uses_the_ssh_program_without_a_prompt(engine: Engine):
    for provider in engine.of_kind("pulumi:providers:docker"):
        options = json.loads(provider.inputs["sshOpts"])
        assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "ControlMaster=auto", "ConnectTimeout=8"} <= set(options)


def test_the_docker_provider_of_a_node_is_the_nodes_own(dev: Engine, example: Engine):
    def hosts(engine: Engine) -> dict[str, str]:
        return {item.name: item.inputs["host"] for item in engine.of_kind("pulumi:providers:docker")}

    assert hosts(dev) == {"head": "ssh://lab-head", "worker": "ssh://lab-worker"}
    assert hosts(example) == {"head": "ssh://ops@spark-a.example.net", "worker": "ssh://ops@spark-b.example.net"}
    for engine in (dev, example):
        for role in ("head", "worker"):
            for name in (f"{role}-image", f"{role}-engine"):
                assert f"::{role}::" in engine.one(name).request.provider


@BOTH
def test_nothing_starts_before_what_it_needs(engine: Engine):
    for role in ("head", "worker"):
        assert engine.one(f"{role}-gid").after == {f"{role}-folder"}
        assert engine.one(f"{role}-image-pull").after == {f"{role}-folder"}
        assert engine.one(f"{role}-image").after == {f"{role}-image-pull"}
        head = {"head-checkpoint-job"} if role == "worker" else set()
        assert engine.one(f"{role}-checkpoint-job").after == {f"{role}-folder", f"{role}-image"} | head
        assert engine.one(f"{role}-checkpoint").after == {f"{role}-checkpoint-job"}
        # the page cache is freed when no node writes a checkpoint any more
        assert engine.one(f"{role}-page-cache").after >= {"head-checkpoint", "worker-checkpoint"}
        needed = {f"{role}-{name}" for name in ("gid", "image", "page-cache", "folder")}
        assert needed <= engine.one(f"{role}-engine").after


@BOTH
def test_images_are_pinned_and_stay(engine: Engine):
    for image in engine.of_kind("docker:index/remoteImage:RemoteImage"):
        assert re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image.inputs["name"])
        assert image.inputs["keepLocally"] is True
        assert engine.one(image.name.replace("-image", "-engine")).inputs["image"] == image.inputs["name"]


# --- readiness and outputs ---


@BOTH
def test_the_gate_opens_after_every_rank_and_runs_again_for_other_ranks(engine: Engine):
    ready = engine.one("ready")
    assert ready.after == {"head-engine", "worker-engine"}
    assert ready.inputs["environment"]["SPARK_RANKS"] == "head-engine-id,worker-engine-id"
    assert "triggers" not in ready.inputs, "a trigger would show it as replaced beside the ranks"
    assert ready.inputs["logging"] == "stderr"
    watched = json.loads(ready.inputs["environment"]["SPARK_WAIT"])
    assert [node["role"] for node in watched["nodes"]] == ["head", "worker"]
    assert watched["base_url"] == "http://127.0.0.1:8888"


def test_the_outputs_are_what_a_person_and_a_script_ask_for(dev: Engine):
    assert {name: value for name, value in dev.outputs.items() if name != "generation"} == {
        "api_url": "http://127.0.0.1:8888/v1",
        "api_reach": dev.outputs["api_reach"],
        "models": ["deepseek-v4-flash-dspark"],
        "kv_pool": {
            "kv_memory_gib": 17.21,
            "kv_tokens": 2_555_830,
            "context_tokens": 1_048_576,
            "max_concurrency": 2.44,
            "expected_kv_tokens": None,
        },
        "gid_index": {"head": 3, "worker": 6},
        "hca": {"head": "=rocep1s0f1,roceP2p1s0f1", "worker": "=rocep1s0f1,roceP2p1s0f1"},
        "image": f"10.0.2.2:5000/anemll/dspark-vllm-gx10@{DIGEST}",
        "model": {
            "repo": "deepseek-ai/DeepSeek-V4-Flash-DSpark",
            "revision": "3c5ed1f0a94b27d86ef1a0b9c2d4e87f5a6b0c13",
        },
        "checkpoint": {role: {"how": "local", **VERIFIED[role]} for role in ("head", "worker")},
        "start": {name: REPORT.get(name) for name in dev.outputs["start"]},
    }
    assert dev.outputs["generation"] == dev.ranks[0].labels["spark.generation"]


def test_an_address_that_is_bound_reaches_output_probe_and_health_check(changed: Engine):
    url = "http://[2001:db8::10]:9000"
    assert changed.outputs["api_url"] == f"{url}/v1"
    assert json.loads(changed.one("ready").inputs["environment"]["SPARK_WAIT"])["base_url"] == url
    assert f"{url}/health" in changed.ranks[0].inputs["healthcheck"]["tests"][-1]


# --- a preview before anything exists ---


def test_a_first_preview_shows_every_resource_with_nothing_known_of_the_nodes(run_program: Runner):
    engine = run_program("dev", engine=Engine(have_run=False))
    assert [item.name for item in (*engine.ranks, engine.one("ready"))] == ["head-engine", "worker-engine", "ready"]


def test_a_checkpoint_that_an_earlier_release_verified_says_nothing_until_its_step_runs_again():
    assert verification("local", '{"snapshot": "/x"}') is None


# --- repairs ---


def test_a_healthy_node_triggers_nothing_and_keeps_what_the_state_has(dev: Engine):
    for name in SCRIPTS:
        command = dev.one(name)
        assert "triggers" not in command.inputs and "triggers" in command.request.ignoreChanges, name


def test_what_a_node_lacks_is_a_readable_trigger_of_the_step_that_repairs_it(damaged: Engine):
    lacks = "worker mirrors 41.0 MiB from head: model-00007-of-00048.safetensors is missing and 1 more"
    reasons = {
        # the head's job serves what the worker lacks
        "head-checkpoint-job": f"{lacks} (after no job yet)",
        "worker-checkpoint-job": f"{lacks} (after no job yet)",
        "worker-checkpoint": f"{lacks} (after no job yet)",
        "worker-image-pull": "the image is missing",
    }
    assert [text for _, text in damaged.said if text.startswith("checkpoint")] == [
        f"checkpoint deepseek-ai/DeepSeek-V4-Flash-DSpark at 3c5ed1f0: {lacks}"
    ]
    for name in SCRIPTS:
        command = damaged.one(name)
        triggered = [trigger.split(" (generation ")[0] for trigger in command.inputs.get("triggers", [])]
        assert triggered == ([reasons[name]] if name in reasons else []), name
        assert ("triggers" in command.request.ignoreChanges) == (name not in reasons), name


def at_work(state: str) -> list[dict[str, Any]]:
    """A pair whose head has a checkpoint job of this stack in that state."""
    documents = healthy("x86_64")
    labels = {"spark.stack": "dev", "spark.job": "checkpoint"}
    documents[0].update(
        checkpoint={"gaps": ["model-00007-of-00048.safetensors is missing"]},
        containers=[{"id": "c1", "name": "spark-dev-checkpoint", "labels": labels, "running": True}],
        job={"id": "a1", "state": state},
    )
    return documents


@pytest.mark.parametrize(("state", "runs"), [("running", True), ("failed", False), ("done", False)])
def test_a_head_whose_job_has_ended_starts_it_again(run_program: Runner, state: str, runs: bool):
    """Its job stays for a while, for its peers: an `up` meanwhile must not read the old status."""
    assert run_program.decided("dev", documents=at_work(state)).plans[0].job_runs is runs


def test_a_running_job_is_followed_and_a_folder_that_is_gone_is_made_again_with_all_that_lies_in_it(
    run_program: Runner,
):
    documents = at_work("running")
    documents[1]["folder"] = False
    engine = run_program("dev", documents=documents, secrets={"api_key": API_KEY})
    triggered = {item.name for item in engine.of_kind("command:remote:Command") if "triggers" in item.inputs}
    assert triggered == {"head-checkpoint", "worker-folder", "worker-image-pull", "worker-api-key"}
