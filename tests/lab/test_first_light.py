"""From clean nodes to an answer, and what changes nothing on a converged pair."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.commands.smoke import trouble
from tests.lab.checkpoint import verified
from tests.lab.pair import (
    MODEL,
    NODES,
    PROJECT_DIR,
    Stack,
    api,
    ask,
    environment_of,
    gid_row,
    identities,
    inspect,
    on,
    project,
    ranks,
    words_of,
)


@pytest.fixture(scope="module")
def first_up(stack: Stack) -> str:
    return stack.up().text


def test_one_up_takes_clean_nodes_to_an_answer(stack: Stack, first_up: str) -> None:
    assert "4183" in ask()
    served = api("/v1/models")[1]["data"]
    assert served[0]["id"] == "deepseek-v4-flash-dspark"
    assert served[0]["max_model_len"] == 1048576


def test_the_outputs_are_the_ranks_own_numbers(stack: Stack, first_up: str) -> None:
    outputs = stack.outputs()
    log = on("head", "docker logs spark-dev-rank0 2>&1")
    pool = outputs["kv_pool"]
    assert f"Available KV cache memory: {pool['kv_memory_gib']} GiB" in log
    assert f"GPU KV cache size: {pool['kv_tokens']:,} tokens" in log
    assert f"{pool['context_tokens']:,} tokens per request: {pool['max_concurrency']:.2f}x" in log
    assert outputs["gid_index"] == {node: gid_row(node) for node in NODES}
    assert verified(stack) == {"head": "local", "worker": "local"}
    assert outputs["image"] == ranks()[0]["Config"]["Image"]
    assert outputs["generation"] == ranks()[1]["Config"]["Labels"]["spark.generation"]


def test_smoke_asks_the_running_pair_and_shows_the_way_to_its_api(
    stack: Stack, first_up: str, free_port: Callable[[], int]
) -> None:
    document = json.loads(stack.spark("smoke", "--json").text)
    assert "4183" in document["answer"] and document["outputs"] == stack.outputs()
    assert document["tunnel"][-3:] == ["-F", str(project() / ".lab" / "ssh_config"), "lab-head"]
    [thinking] = document["checks"]
    assert (thinking["name"], thinking["content"]) == ("thinking", "4183.") and "4183" in thinking["reasoning"]
    assert document["outputs"]["api_reach"].startswith("on the head; from elsewhere through ssh -N")
    # the tunnel brings the API here, to a port of this test's own: another pair may have a tunnel at 8888
    here = free_port()
    opened = subprocess.Popen([word.replace("8888:", f"{here}:", 1) for word in document["tunnel"]])
    try:
        end = time.monotonic() + 30
        while (problem := trouble(f"http://127.0.0.1:{here}/v1", MODEL)) and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        opened.terminate()
        opened.wait(10)
    assert problem is None


def test_the_four_efforts_are_four_prompts(stack: Stack, first_up: str) -> None:
    """Through the checkpoint's own encoder, and the edited mapping that leads to it."""
    thinking = [{"thinking": True, "reasoning_effort": effort} for effort in ("low", "high", "max")]
    said = []
    for template in ({"thinking": False}, *thinking):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Write prose"}], "max_tokens": 32}
        message = api("/v1/chat/completions", {**body, "chat_template_kwargs": template})[1]["choices"][0]["message"]
        said.append((message["reasoning"] is None, message["content"]))
    assert [none for none, _ in said] == [True, False, False, False]
    # the stand-in's text is a function of the prompt
    assert len({text for _, text in said}) == 4


def test_each_rank_has_its_own_nodes_gid_index_and_no_empty_nccl_variable(stack: Stack, first_up: str) -> None:
    found = [environment_of(node, f"spark-dev-rank{rank}") for rank, node in enumerate(NODES)]
    rows = [gid_row(node) for node in NODES]
    assert rows[0] != rows[1], "no index fits both nodes"
    assert [env["NCCL_IB_GID_INDEX"] for env in found] == list(map(str, rows))
    for env in found:
        # the image names its builder's netdev for Gloo
        assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == "enp1s0f1np1"
        assert [name for name, value in env.items() if name.startswith("NCCL_") and not value] == []


def test_progress_and_the_first_answer_are_on_the_screen(first_up: str) -> None:
    shown = words_of(first_up)
    # at most one line a second, so which phases are on the screen depends on the machine
    assert re.search(r"head (loads|waits|starts|profiles|sizes|captures)", shown)
    assert "What is 47 x 89? 4183" in shown


def test_a_second_up_changes_nothing_and_restarts_nothing(stack: Stack, first_up: str) -> None:
    before = identities()
    stack.up(None, "--expect-no-changes")
    assert identities() == before


def test_a_changed_engine_setting_previews_as_exactly_two_replaced_ranks(stack: Stack, first_up: str) -> None:
    def fewer_streams(cluster: dict[str, Any]) -> None:
        cluster["engine"] = {"max_num_seqs": 4}

    steps = stack.steps(fewer_streams)
    replaced = {name for name, operation in steps.items() if "replace" in operation}
    assert replaced == {"head-engine", "worker-engine"}
    rest = {name: operation for name, operation in steps.items() if name not in replaced}
    assert rest == {"head-page-cache": "update", "worker-page-cache": "update", "ready": "update"}
    shown = words_of(stack.preview(fewer_streams).text)
    assert '"6" => "4"' in shown, "the flag's old and new value are readable"
    assert '"24" => "16"' in shown, "and so is what is derived from it"


def test_a_change_that_does_not_reach_the_ranks_replaces_nothing(stack: Stack, first_up: str) -> None:
    def more_patience(cluster: dict[str, Any]) -> None:
        cluster["readiness"]["timeout_s"] = 900

    assert [name for name, operation in stack.steps(more_patience).items() if "replace" in operation] == []


def test_ownership_is_a_label_and_the_ranks_hold_no_more_than_they_need(stack: Stack, first_up: str) -> None:
    head, worker = ranks()
    for rank, found in enumerate((head, worker)):
        labels = found["Config"]["Labels"]
        assert (labels["spark.stack"], labels["spark.rank"]) == ("dev", str(rank))
        assert found["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
        hub = next(mount for mount in found["Mounts"] if mount["Destination"] == "/cache/huggingface/hub")
        assert hub["RW"] is False, "a rank cannot harm the checkpoint"
    assert head["Config"]["Labels"]["spark.generation"] == worker["Config"]["Labels"]["spark.generation"]


def test_neither_state_nor_labels_hold_a_secret_a_key_or_a_path_of_the_control_host(
    stack: Stack, first_up: str
) -> None:
    state = stack.pulumi("stack", "export", "--stack", "dev").text
    labels = json.dumps([inspect(node, f"spark-dev-rank{rank}")["Config"]["Labels"] for rank, node in enumerate(NODES)])
    key = (PROJECT_DIR / ".lab" / "id_lab").read_text()
    passphrase = (PROJECT_DIR / "lab" / "passphrase").read_text().strip()
    for text in (state, labels):
        assert "PRIVATE KEY" not in text
        assert key.splitlines()[1] not in text
        assert passphrase not in text
        assert str(PROJECT_DIR) not in text
        assert str(Path.home()) + "/" not in text
