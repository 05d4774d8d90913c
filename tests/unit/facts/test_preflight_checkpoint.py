"""Rules on the checkpoint before a step begins: room, rights, a folder that containers see, a hub that says yes."""

from collections.abc import Callable

import pytest

from components.facts.preflight import findings
from tests.program.pair import healthy, typed
from tests.unit.facts.judged import GIB, HEAD, NODES, Node, judge, one
from tests.unit.stacks import cluster

# --- disk ---


def checkpoint(node: Node, gaps: list[str], present_gib: float, free_gib: float) -> None:
    node["checkpoint"] = {"gaps": gaps, "bytes_present": int(present_gib * GIB)}
    node["disk"]["hf_cache"].update(path="/raid/hf", free_bytes=int(free_gib * GIB))


def test_a_checkpoint_that_does_not_fit_shows_what_is_missing_and_what_is_free():
    """Other recipes check only that the disk has room for a whole copy, or nothing at all."""
    text = one(judge(lambda node: checkpoint(node, ["there is no snapshot"], 0, 100)))
    assert text == (
        "worker: the checkpoint lacks 156.3 GiB on this node, and /raid/hf has 100.0 GiB free, of which 5.0 GiB must "
        "stay free: make room (scripts/spark prune lists what is removable), or set hf_cache to a larger disk"
    )


def test_a_complete_checkpoint_needs_no_room():
    assert judge(lambda node: checkpoint(node, [], 156.3, 147)) == []
    assert judge(lambda node: checkpoint(node, [], 156.3, 0)) == []


def test_only_what_is_missing_of_a_checkpoint_needs_room():
    half = ["model-00048-of-00048.safetensors is missing"]
    assert judge(lambda node: checkpoint(node, half, 150, 12)) == []
    assert "lacks 6.3 GiB" in one(judge(lambda node: checkpoint(node, half, 150, 11)))


def test_a_checkpoint_that_could_not_be_read_counts_as_missing():
    def unread(node: Node) -> None:
        checkpoint(node, [], 0, 100)
        node["checkpoint"] = None

    assert "lacks 156.3 GiB" in one(judge(unread))


def test_a_cache_that_the_user_may_not_write_is_refused_by_the_folder():
    text = one(judge(lambda node: node["disk"]["hf_cache"].update(unwritable="/raid")))
    assert text == "worker: ops cannot write to /raid: chown it, or set hf_cache"


def test_a_disk_that_could_not_be_read_stops_the_stack():
    text = "worker: the disk of the Hugging Face cache could not be read"
    assert one(judge(lambda node: node.update(disk=None))) == text
    assert one(judge(lambda node: node["disk"].update(hf_cache=None))) == text


def test_an_image_that_does_not_fit_is_refused_by_dockers_own_disk():
    """Docker's root may be on another disk than /."""

    def full(node: Node) -> None:
        node["image"]["present"] = False
        node["disk"]["docker_root"].update(path="/data/docker", free_bytes=10 * GIB)

    text = one(judge(full))
    assert "/data/docker has 10.0 GiB free" in text and "about 25 GiB" in text


def test_a_models_folder_of_root_does_not_stop_us_since_the_step_takes_it_over():
    """Other recipes download as root, which leaves files of root in the user's cache."""
    folder = "/home/ops/.cache/huggingface/hub/models--deepseek-ai--DeepSeek-V4-Flash-Vision-Exp/blobs"
    text = one(judge(lambda node: node["disk"]["hf_cache"].update(unwritable=folder)), "warning")
    assert text == f"worker: {folder} belongs to another user: the checkpoint's step will give it to ops"


def test_a_worker_that_reads_the_heads_copy_needs_no_room():
    reading = {"checkpoint": {"mode": "nfs"}}
    assert judge(lambda node: checkpoint(node, ["there is no snapshot"], 0, 1), stack=reading) == []
    assert "lacks" in one(judge(lambda node: checkpoint(node, ["there is no snapshot"], 0, 1), on=HEAD, stack=reading))


def test_a_models_folder_that_leads_out_of_the_cache_is_refused_before_a_container_finds_nothing():
    text = one(judge(lambda node: node["checkpoint"].update(outside="/raid/models--owner--name")))
    assert "is a link to /raid/models--owner--name, outside the cache, where no container can follow it" in text


# --- the hub ---


def hub(status: int | None, reason: str = "no", code: str = "") -> Callable[[Node], object]:
    return lambda node: node["checkpoint"].update(
        gaps=["there is no snapshot"], hub_error={"status": status, "message": reason, "code": code}
    )


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (
            None,
            "head: the hub https://huggingface.co cannot be reached from this node (no), and the checkpoint is not ",
        ),
        (
            401,
            "head: the hub https://huggingface.co does not give out deepseek-ai/DeepSeek-V4-Flash-Vision-Exp without ",
        ),
        (403, "(status 403): accept its licence at https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash-Vision-Exp, "),
        (404, "head: the hub https://huggingface.co has no revision 86f746b36186f0e567729a5c06a8c918caba82a9 of "),
    ],
)
def test_a_hub_that_will_not_give_the_rest_stops_before_anything_changes(status: int | None, text: str):
    assert text in one(judge(hub(status), on=HEAD))


def test_a_repository_that_the_hub_does_not_have_is_not_called_gated():
    """It answers both with 401."""
    text = one(judge(hub(401, code="RepoNotFound"), on=HEAD))
    assert "has no repository deepseek-ai/DeepSeek-V4-Flash-Vision-Exp that it shows without an account" in text
    assert "correct checkpoint.repo" in text and "licence" not in text
    assert "accept its licence" in one(judge(hub(401, code="GatedRepo"), on=HEAD))


def test_a_failing_hub_is_a_warning_and_a_closed_one_is_left_to_the_token():
    assert "answers with status 503" in one(judge(hub(503), on=HEAD), "warning")
    documents = healthy()
    hub(401)(documents[HEAD])
    stack = cluster("vision-exp", NODES)
    assert findings(stack, [typed(item) for item in documents], "dev", has_hf_token=True) == []


@pytest.mark.parametrize(("state", "rules"), [(None, 0), ("running", 0), ("failed", 1)])
def test_a_running_job_needs_no_answer_from_the_hub_and_one_that_failed_does(state: str | None, rules: int):
    """A head's failed job stays for a moment, to inform its peers."""

    def working(node: Node) -> None:
        hub(None)(node)
        job = {"spark.stack": "dev", "spark.job": "checkpoint"}
        node["containers"] = [{"id": "1", "name": "spark-dev-checkpoint", "labels": job, "running": True, "vllm": True}]
        node["job"] = {"id": "a1", "state": state} if state else None

    assert len(judge(working, on=HEAD)) == rules


@pytest.mark.parametrize(("answers", "refused"), [("Connection refused", True), (None, False)])
def test_a_head_without_an_nfs_server_is_refused_unless_somebody_serves_its_cache(answers: str | None, refused: bool):
    """Otherwise the step would find out after the download."""
    nodes = healthy()
    nodes[0]["nfs"], nodes[1]["nfs"] = {"tools": False}, {"refused": answers}
    stack = cluster("vision-exp", {**NODES, "checkpoint": {"mode": "nfs"}})
    said = [str(item) for item in findings(stack, [typed(item) for item in nodes], "dev") if item.level == "error"]
    assert said == [
        "head: checkpoint.mode is nfs, but it has no NFS server: sudo apt install nfs-kernel-server, or use local"
    ] * int(refused)
