"""From settings and facts to findings: what a stack may do about them, and that all are shown at once."""

from collections.abc import Callable
from typing import Any

import pytest

from components.facts.preflight import PreflightError, check, findings
from tests.program.pair import healthy, typed
from tests.unit.facts.judged import GIB_KB, HEAD, NODES, WORKER, Node, gpu, judge, listener, one, texts
from tests.unit.stacks import cluster


def test_a_healthy_pair_has_no_finding():
    assert judge() == []
    assert judge(profile="dspark", stack={"checkpoint": {"revision": "a" * 40}}) == []


def test_without_facts_only_the_settings_are_judged():
    stack = cluster(change={**NODES, "engine": {"gpu_memory_utilization": 0.9}})
    assert [item.where for item in findings(stack, [], "dev")] == ["engine/gpu_memory_utilization"]


@pytest.mark.parametrize(
    ("docker", "text"),
    [
        (
            {"status": "missing", "detail": "there is no /var/run/docker.sock"},
            "worker: Docker is not installed: install it and the NVIDIA container toolkit "
            "(there is no /var/run/docker.sock)",
        ),
        (
            {"status": "denied", "detail": "ops is not in group docker"},
            "worker: Docker refuses user ops: add it to group docker and open a new connection "
            "(ops is not in group docker)",
        ),
        (
            {"status": "down", "detail": "connection refused"},
            "worker: dockerd does not answer: start it (systemctl start docker) (connection refused)",
        ),
        (None, "worker: dockerd does not answer: start it (systemctl start docker) (no answer)"),
    ],
    ids=["missing", "denied", "down", "probe-failed"],
)
def test_docker_that_cannot_be_used_says_which_of_three_ways_out(docker: object, text: str):
    closed = {"docker": docker, "containers": None, "image": None}
    assert texts(judge(lambda node: node.update(closed))) == [text]


def test_containers_that_could_not_be_read_stop_the_stack():
    """Otherwise a serving pair would look like none, and be replaced."""
    unread = {"containers": None, "problems": [{"probe": "containers", "error": "timed out"}]}
    said = judge(lambda node: node.update(unread))
    assert texts(said) == ["worker: the containers could not be read, so what runs there is unknown: try again"]
    assert texts(said, "warning") == ["worker: could not read containers: timed out"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"elsewhere": "docker context rootless"},
            "worker: docker context rootless sends the docker program to another",
        ),
        ({"cli": False}, "worker: the docker program is not on the PATH of an SSH session"),
    ],
)
def test_a_docker_program_that_our_steps_cannot_use_is_refused(change: dict[str, object], text: str):
    [said] = texts(judge(lambda node: node["docker"].update(change)))
    assert said.startswith(text)


@pytest.mark.parametrize(
    ("version", "refused"), [("1.44", True), ("1.45", False), ("1.100", False), ("1.47-rc", False)]
)
def test_docker_must_know_the_mounts_that_ranks_use(version: str, refused: bool):
    said = texts(judge(lambda node: node["docker"].update(api_version=version)))
    assert said == (
        [f"worker: Docker speaks API {version}, but ranks need 1.45 for their mounts: update Docker"] * refused
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"kernel": "6.17.0-1030-nvidia"},
            "nodes: kernel differs (head 6.17.0-1032-nvidia, worker 6.17.0-1030-nvidia): update them together",
        ),
        ({"os": "DGX OS 6"}, "nodes: OS differs (head DGX OS 7, worker DGX OS 6): update them together"),
        (
            {"gpu": {"driver": "570.1", "apps": []}},
            "nodes: driver differs (head 580.159.03, worker 570.1): update them together",
        ),
        ({"gpu": None}, "nodes: driver differs (head 580.159.03, worker None): update them together"),
    ],
)
def test_nodes_that_differ_are_a_warning_side_by_side(change: dict[str, Any], text: str):
    assert one(judge(lambda node: node.update(change)), "warning") == text


def test_a_docker_of_another_version_or_storage_is_a_warning():
    said = texts(judge(lambda node: node["docker"].update(version="29.0.1", storage_driver="overlayfs")), "warning")
    assert said == [
        "nodes: Docker differs (head 28.5.2, worker 29.0.1): update them together",
        "nodes: storage driver differs (head overlay2, worker overlayfs): update them together",
    ]


def test_what_an_image_bakes_in_is_a_warning_only_where_no_rank_overrides_it():
    def baked(node: Node) -> None:
        node["image"]["env"] = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "VLLM_HOST_IP", "NCCL_ALGO"]

    assert one(judge(baked), "warning") == (
        "worker: the image itself sets NCCL_ALGO: override it in fabric.nccl unless you want its value"
    )


def test_a_probe_that_failed_is_a_warning():
    text = one(judge(lambda node: node.update(problems=[{"probe": "gpu", "error": "no nvidia-smi"}])), "warning")
    assert text == "worker: could not read gpu: no nvidia-smi"


ALLOWED: list[tuple[str, Callable[[Node], object]]] = [
    ("memory", lambda node: node["memory"].update(MemAvailable=90 * GIB_KB)),
    ("kernel", lambda node: node["memory"].update(CmaTotal=32, CmaFree=64)),
    ("foreign_gpu", gpu({"pid": 99, "name": "python3"})),
    ("docker_api", lambda node: node["docker"].update(api_version="1.44")),
]


@pytest.mark.parametrize(("rule", "change"), ALLOWED, ids=[rule for rule, _ in ALLOWED])
def test_a_rule_that_the_stack_allows_warns_instead(rule: str, change: Callable[[Node], object]):
    refused, allowed = one(judge(change)), one(judge(change, stack={"allow": [rule]}), "warning")
    assert allowed == f"{refused} (allowed by this stack)"


def test_a_high_share_of_memory_can_be_allowed():
    stack = {"allow": ["high_utilization"], "engine": {"gpu_memory_utilization": 0.87}}
    assert "allowed by this stack" in one(judge(stack=stack), "warning")


def test_allowing_one_rule_allows_no_other():
    change = dict(ALLOWED)["kernel"]
    assert texts(judge(change, stack={"allow": ["memory", "foreign_gpu"]}))


def test_every_error_of_both_nodes_is_shown_at_once_after_every_warning():
    documents = healthy()
    documents[HEAD]["listeners"] = [listener(8888, pid=71, process="nginx")]
    documents[HEAD]["earlyoom"] = True
    documents[WORKER]["docker"] = {"status": "down", "detail": "refused"}
    documents[WORKER]["disk"] = None
    warned: list[str] = []
    stack = cluster(change={**NODES, "engine": {"gpu_memory_utilization": 0.87}})
    with pytest.raises(PreflightError) as caught:
        check(stack, [typed(item) for item in documents], "dev", warned.append)
    assert [line.split(":")[0] for line in caught.value.lines] == [
        "engine/gpu_memory_utilization",
        "head",
        "worker",
        "worker",
    ]
    assert str(caught.value).startswith("preflight stopped this stack; nothing was changed:\n  engine/")
    assert any(line.startswith("head: earlyoom") for line in warned)


def test_warnings_alone_stop_nothing():
    documents = healthy()
    documents[HEAD]["earlyoom"] = True
    warned: list[str] = []
    check(cluster(change=NODES), [typed(item) for item in documents], "dev", warned.append)
    assert len(warned) == 1
