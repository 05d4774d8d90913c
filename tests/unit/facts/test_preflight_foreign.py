"""Rules on what is not ours: ports, names and the GPU."""

from typing import Any

import pytest

from tests.program.pair import rank_container
from tests.unit.facts.judged import HEAD, Node, gpu, judge, listener, one, texts


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (
            listener(8888, pid=71, process="nginx"),
            "head: port 8888 is held by nginx (pid 71) on 0.0.0.0: stop it, or change engine.port",
        ),
        (
            listener(8888, address="::", container="openwebui"),
            "head: port 8888 is held by container openwebui on ::: stop it, or change engine.port",
        ),
        (
            listener(25000),
            "head: port 25000 is held by a process of another user on 0.0.0.0: stop it, or change engine.master_port",
        ),
        (
            listener(8888, container="spark-prod-rank0"),
            "head: port 8888 is held by container spark-prod-rank0 on 0.0.0.0: stop it, or change engine.port",
        ),
    ],
    ids=["process", "container", "another-user", "another-stack"],
)
def test_a_foreign_holder_of_a_port_is_named(held: dict[str, Any], text: str):
    assert one(judge(lambda node: node.update(listeners=[held]), on=HEAD)) == text


@pytest.mark.parametrize("seen_as", ["spark-dev-rank0", None], ids=["by-root", "by-a-user"])
def test_ports_of_our_own_running_rank_are_not_a_finding(seen_as: str | None):
    """root sees the container behind the port, another user sees nothing."""

    def serving(node: Node) -> None:
        node["containers"] = [rank_container("dev", 0)]
        node["listeners"] = [listener(8888, container=seen_as), listener(25000, container=seen_as)]

    assert judge(serving, on=HEAD) == []


def test_a_dead_rank_of_ours_does_not_account_for_a_port():
    def dead(node: Node) -> None:
        node["containers"] = [rank_container("dev", 0, running=False)]
        node["listeners"] = [listener(8888)]

    assert "another user" in one(judge(dead, on=HEAD))


def test_a_process_with_a_name_holds_a_port_also_beside_our_rank():
    def both(node: Node) -> None:
        node["containers"] = [rank_container("dev", 0)]
        node["listeners"] = [listener(8888, pid=71, process="nginx")]

    assert "held by nginx" in one(judge(both, on=HEAD))


def test_a_container_of_our_name_without_our_label_is_not_ours_to_replace():
    squatter = {**rank_container("dev", 1), "labels": {}, "running": False}
    assert one(judge(lambda node: node.update(containers=[squatter]))) == (
        "worker: container spark-dev-rank1 exists without our label, so it is not ours to replace: rename or remove it"
    )


def test_a_foreign_container_on_the_gpu_is_refused_by_name_and_ours_is_not():
    foreign = {**rank_container("x", 0), "name": "ollama", "labels": {}}
    other = {**rank_container("prod", 1), "name": "spark-prod-rank1"}
    idle = {**foreign, "name": "stopped", "running": False}
    plain = {**foreign, "name": "grafana", "gpu": False}
    mine = rank_container("dev", 1)
    assert texts(judge(lambda node: node.update(containers=[foreign, other, idle, plain, mine]))) == [
        "worker: container ollama (not ours) holds the GPU's memory: stop it first",
        "worker: container spark-prod-rank1 (of stack prod) holds the GPU's memory: stop it first",
    ]


def test_a_foreign_process_on_the_gpu_is_refused_by_name():
    """On either node, with the memory it holds where the driver tells."""
    app = {"pid": 99, "name": "python3", "used_mib": 4096, "container": None}
    assert one(judge(gpu(app), on=HEAD)) == (
        "head: process python3 (pid 99, 4,096 MiB) holds the GPU's memory: stop it first"
    )
    assert one(judge(gpu({**app, "used_mib": None}))) == (
        "worker: process python3 (pid 99) holds the GPU's memory: stop it first"
    )


@pytest.mark.parametrize("container", ["spark-dev-rank1", None])
def test_our_own_rank_on_the_gpu_is_not_a_finding(container: str | None):
    def serving(node: Node) -> None:
        node["containers"] = [rank_container("dev", 1)]
        gpu({"pid": 99, "name": "VLLM::Worker", "container": container})(node)

    assert judge(serving) == []
