"""An API key that nobody sees, refusals before any change, and what a destroy leaves behind."""

import json
from typing import Any

from lab.place import HEAD
from tests.lab.checkpoint import verified
from tests.lab.pair import NODES, Stack, api, ask, identities, inspect, on, place, words_of

KEY = "sk-lab-9f3b5c7d1e2a4860"


def test_an_api_key_guards_the_endpoint_and_is_nowhere_to_be_read(stack: Stack) -> None:
    stack.api_key = KEY
    try:
        shown = stack.up(lambda cluster: cluster.update(engine={"host": "0.0.0.0"})).text
    finally:
        stack.api_key = None
    for at in ("http://127.0.0.1:8888", "http://192.168.100.1:8888"):
        assert api("/v1/models", at=at)[0] == 401
        assert api("/v1/models", at=at, key=KEY)[0] == 200
    assert "4183" in ask(key=KEY)
    url = stack.outputs()["api_url"]
    assert url == f"http://{place().ssh_address(HEAD)[0]}:8888/v1", "the host that ssh knows the head by"
    smoke = stack.spark("smoke", "--config-file", str(stack.changed)).text
    assert f"reach    {url} answers this machine" in smoke
    texts = {
        "smoke": smoke,
        "the screen": shown,
        "the state": stack.pulumi("stack", "export", "--stack", "dev").text,
        "the stack file": stack.changed.read_text(),
    }
    for rank, node in enumerate(NODES):
        container = f"spark-dev-rank{rank}"
        texts[f"docker inspect on {node}"] = json.dumps(inspect(node, container))
        texts[f"the log on {node}"] = on(node, f"docker logs {container} 2>&1")
        texts[f"argv of all processes on {node}"] = on(
            node, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", root=True, check=False
        )
    assert [where for where, text in texts.items() if KEY in text] == []
    kept = on("head", "stat -c %a ~/.local/share/spark-stack/dev/secrets/api_key").strip()
    assert kept == "600"


def test_the_other_recipe_is_another_profile_in_the_stack_file(stack: Stack) -> None:
    def text_model(cluster: dict[str, Any]) -> None:
        cluster["profile"] = "0731"
        # they are made for the real image alone
        cluster["patches"] = "off"
        del cluster["checkpoint"]["revision"]

    stack.up(text_model)
    outputs = stack.outputs()
    assert outputs["models"] == ["deepseek-v4-flash-0731"]
    assert outputs["model"]["revision"] == "9e165c30e2704aec5d9d593cce3eebd58bbef1cb"
    assert verified(stack) == {"head": "local", "worker": "local"}
    log = on("head", "docker logs spark-dev-rank0 2>&1")
    assert f"GPU KV cache size: {outputs['kv_pool']['kv_tokens']:,} tokens" in log
    assert api("/v1/models")[1]["data"][0]["id"] == "deepseek-v4-flash-0731"
    both = on("worker", "ls ~/.cache/huggingface/hub | grep -c models--deepseek-ai").strip()
    assert both == "2", "the checkpoint of the other profile is kept"


def test_a_stack_file_with_five_mistakes_is_refused_with_five_lines(stack: Stack) -> None:
    stack.up()
    before = identities()

    def five_mistakes(cluster: dict[str, Any]) -> None:
        cluster["engine"] = {"max_num_seq": 6, "port": 70000}
        cluster["checkpoint"]["revision"] = "main"
        cluster["nodes"][1]["fabric_ip"] = "ops@192.168.100.2"
        cluster["fabric"] = {"gid_index": "3abc"}

    done = stack.up(five_mistakes, check=False)
    assert done.code != 0
    said = done.text.rpartition("the settings of this stack were refused:")[2].splitlines()[1:]
    complaints = [line.strip() for line in said[: said.index(next(line for line in said if "error:" in line))]]
    assert [complaint.split(":")[0] for complaint in complaints] == [
        "nodes/1/fabric_ip",
        "checkpoint/revision",
        "engine/port",
        "engine/max_num_seq",
        "fabric/gid_index",
    ]
    assert identities() == before


def test_destroy_removes_everything_of_ours_and_nothing_else(stack: Stack) -> None:
    stack.up()
    image = stack.outputs()["image"]
    for node in NODES:
        on(node, f"docker run -d --name bystander --entrypoint sleep {image} 3600")
        on(node, "docker volume create kept; mkdir -p ~/.local/share/spark-stack-notes; touch ~/.local/share/kept")
    shards = {
        node: on(node, "find ~/.cache/huggingface -type f | sort | xargs sha256sum | sha256sum") for node in NODES
    }
    shown = words_of(stack.destroy().text)
    assert "deleted" in shown
    for node in NODES:
        containers = on(node, "docker ps -a --format '{{.Names}}'").split()
        assert containers == ["bystander"]
        assert on(node, "docker volume ls -q").split() == ["kept"]
        assert on(node, "find / -xdev -path '*spark-stack/dev*' 2>/dev/null", root=True, check=False).strip() == ""
        assert on(node, "ls ~/.local/share").split() == ["kept", "spark-stack-notes"]
        assert on(node, f"docker image inspect -f ok {image}").strip() == "ok", "the image stays"
        after = on(node, "find ~/.cache/huggingface -type f | sort | xargs sha256sum | sha256sum")
        assert after == shards[node], "the checkpoint stays, to the byte"
        on(
            node,
            "docker rm -f bystander; docker volume rm kept; rm -r ~/.local/share/kept ~/.local/share/spark-stack-notes",
        )
