"""From a node's document to typed facts, and what is said when a node cannot be read."""

import json
from typing import Any

import pytest

from components.facts.gathering import FactsError, gather, inputs_of
from components.facts.generation import LiveRank
from components.facts.node_facts import parse
from components.settings.sections import NodeSettings
from components.ssh.target import Resolved, SshError, Target
from facts.document import BEGIN, END
from gid.members import Refusal
from tests.program.pair import document, healthy, rank_container, typed
from tests.unit.stacks import cluster, node

TARGETS = [(Target(name), Resolved(name, "ops", 22, [], [])) for name in ("spark-a", "spark-b")]


def printed(value: object) -> str:
    return f"{BEGIN}\n{json.dumps(value)}\n{END}\n"


def test_what_a_login_prints_around_the_document_does_not_matter():
    facts = parse(f"Welcome to DGX Spark\n{printed(document(1, 3))}logout\n")
    assert (facts.boot_id, facts.kernel) == ("boot-1", "6.17.0-1032-nvidia")


def test_a_newer_document_with_more_in_it_is_accepted():
    assert parse(printed({**document(1, 3), "battery": "none"})).boot_id == "boot-1"


@pytest.mark.parametrize(
    "text", ["", "bash: python3: command not found", f"{BEGIN}\n{{", f"{END}{BEGIN}", f"{BEGIN}\nnot json\n{END}"]
)
def test_anything_but_a_document_is_refused(text: str):
    with pytest.raises(ValueError):
        parse(text)


def test_a_document_of_failed_probes_is_a_document():
    bare = dict.fromkeys(document(1, 3)) | {"problems": [{"probe": "gpu", "error": "nvidia-smi is not on PATH"}]}
    facts = parse(printed({key: value for key, value in bare.items()}))
    assert facts.problems[0].probe == "gpu" and facts.containers is None


def test_the_facts_decide_the_gid_index_as_the_node_itself_would():
    head, worker = (typed(item) for item in healthy())
    nodes = [NodeSettings.model_validate({"ssh": "x", "fabric_ip": f"192.168.100.{last}"}) for last in (1, 2, 9)]
    assert head.resolution(nodes[0], "resolve")["gid_index"] == 3
    assert worker.resolution(nodes[1], "resolve")["gid_index"] == 6
    with pytest.raises(Refusal, match="on no interface of this node"):
        head.resolution(nodes[2], "resolve")


def test_a_rank_is_found_by_its_labels_and_by_nothing_else():
    mine = rank_container("dev", 0, exit_code=None)
    other_stack = rank_container("other", 0, generation="bbbb2222")
    named_alike = {**rank_container("dev", 0), "labels": {}}
    renamed = {**mine, "name": "something-else"}
    node1 = document(1, 3)
    assert typed({**node1, "containers": [other_stack, named_alike]}).live_rank("dev", 0, "head") is None
    assert typed({**node1, "containers": [other_stack, renamed]}).live_rank("dev", 0, "head") == LiveRank(
        role="head", running=True, generation="aaaa1111", spec="feedfeedfeed"
    )
    assert typed({**node1, "containers": [mine]}).live_rank("dev", 1, "worker") is None


def test_how_a_rank_ended_is_kept():
    dead = rank_container("dev", 1, running=False, exit_code=137, oom_killed=True, error=None)
    rank = typed({**document(2, 6), "containers": [dead]}).live_rank("dev", 1, "worker")
    assert rank and (rank.running, rank.exit_code, rank.oom_killed, rank.error) == (False, 137, True, "")


@pytest.mark.parametrize(
    ("checkpoint", "gap"),
    [
        ({"gaps": [], "bytes_present": 1}, None),
        ({"gaps": ["model-00007-of-00048.safetensors is missing"]}, "model-00007-of-00048.safetensors is missing"),
        ({"gaps": ["a is missing", "b is missing", "c is missing"]}, "a is missing and 2 more"),
        (None, "the cache could not be read"),
    ],
)
def test_what_a_checkpoint_lacks_is_one_readable_reason(checkpoint: object, gap: str | None):
    assert typed({**document(1, 3), "checkpoint": checkpoint}).checkpoint_gap() == gap


@pytest.mark.parametrize(
    ("facts", "gap"),
    [
        ({}, None),
        ({"folder": False}, "our folder is missing"),
        # a repair removes first, so what could not be read is left alone
        ({"folder": None}, None),
        ({"image": {"present": False}}, "the image is missing"),
        ({"folder": False, "image": {"present": False}}, "our folder is missing"),
        ({"image": None}, "the image is missing"),
    ],
)
def test_a_missing_folder_or_image_is_one_readable_reason(facts: dict[str, Any], gap: str | None):
    node = typed({**document(1, 3), **facts})
    assert node.image_gap() == gap
    assert node.folder_gap() == (gap if facts.get("folder") is False else None)


def test_each_node_is_asked_about_what_its_own_rank_needs():
    stack = cluster("dspark", node(1, hf_cache="/raid/hf"))
    head, worker = inputs_of(stack, 0, "dev"), inputs_of(stack, 1, "dev")
    assert head == {
        "stack": "dev",
        "hf_cache": "~/.cache/huggingface",
        "repo": "deepseek-ai/DeepSeek-V4-Flash-DSpark",
        "revision": "3c5ed1f0a94b27d86ef1a0b9c2d4e87f5a6b0c13",
        "shards": 48,
        "encoding_file": "encoding/encoding_dsv4.py",
        "image": "ghcr.io/anemll/dspark-vllm-gx10@"
        "sha256:a83948492cf13df455170fb42885f5ef4db54fefe0feff0f841ecbff464ac9d8",
        "ports": [8888, 25000],
        "endpoint": "https://huggingface.co",
        "patches": None,
        "exports": False,
        "head_fabric_ip": None,
    }
    assert (worker["hf_cache"], worker["ports"]) == ("/raid/hf", [])
    assert (worker["endpoint"], worker["head_fabric_ip"]) == (None, None), "a worker downloads nothing"
    reading = cluster("dspark", {"checkpoint": {"mode": "nfs"}})
    patched = [inputs_of(cluster("vision-exp"), rank, "dev")["patches"] for rank in (0, 1)]
    assert [asked and asked["fetches"] for asked in patched] == [True, False], "only the head fetches patches"
    assert [inputs_of(reading, rank, "dev")["head_fabric_ip"] for rank in (0, 1)] == [None, "198.51.100.1"]
    assert [inputs_of(reading, rank, "dev")["exports"] for rank in (0, 1)] == [True, False]


def reader(**answers: str | Exception):
    """A reader that answers by host."""

    def read(target: Target, resolved: Resolved, inputs: object) -> str:
        answer = answers[target.host.replace("-", "_")]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return read


def test_the_facts_come_in_rank_order():
    texts = [printed(item) for item in healthy()]
    facts = gather(cluster(), TARGETS, "dev", reader(spark_a=texts[0], spark_b=texts[1]))
    assert [item.boot_id for item in facts] == ["boot-1", "boot-2"]


def test_every_node_that_cannot_be_read_has_a_line_and_the_way_to_preview_without():
    broken = reader(spark_a=SshError("SSH to spark-a failed"), spark_b="bash: python3: command not found")
    with pytest.raises(FactsError) as caught:
        gather(cluster(), TARGETS, "dev", broken)
    assert str(caught.value).splitlines() == [
        "the nodes could not be read:",
        "  head: reading facts: SSH to spark-a failed",
        "  worker: reading facts: what came back is not a facts document: "
        "no document between ---spark-facts--- and ---end---",
        "  facts: off in the stack file previews without the nodes",
    ]


def test_a_login_shell_that_prints_is_named_before_it_breaks_the_steps():
    texts = [printed(item) for item in healthy()]
    with pytest.raises(FactsError, match=r"worker: reading facts: the login shell prints 'Welcome!' before"):
        gather(cluster(), TARGETS, "dev", reader(spark_a=texts[0], spark_b=f"Welcome!\n\n{texts[1]}"))


def test_one_node_that_cannot_be_read_is_enough_to_stop():
    with pytest.raises(FactsError) as caught:
        gather(cluster(), TARGETS, "dev", reader(spark_a=printed(document(1, 3)), spark_b=SshError("off")))
    assert caught.value.lines[0] == "worker: reading facts: off"
