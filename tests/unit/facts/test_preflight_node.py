"""Rules on kernel, image and memory, over states that people have reported."""

import pytest

from tests.program.pair import rank_container
from tests.unit.facts.judged import GIB_KB, Node, judge, one, texts

KERNEL_WAY_OUT = "so NCCL would fail with ENOMEM: boot 6.17, or add kho=off to the kernel command line"


def test_a_kernel_whose_cma_counts_are_off_cannot_register_memory():
    """This rule also finds builds that no list has."""
    text = one(judge(lambda node: node["memory"].update(CmaTotal=32, CmaFree=64)))
    assert text == (
        "worker: kernel 6.17.0-1032-nvidia cannot register memory for RDMA "
        f"(CmaFree is above CmaTotal in /proc/meminfo), {KERNEL_WAY_OUT}"
    )


def test_a_kernel_known_for_it_is_refused_unless_its_command_line_has_the_work_around():
    bad = {"kernel": "7.0.0-1019-nvidia"}
    errors = texts(judge(lambda node: node.update(bad)))
    assert errors == [
        "worker: kernel 7.0.0-1019-nvidia cannot register memory for RDMA "
        f"(a known fault of this version), {KERNEL_WAY_OUT}"
    ]
    assert texts(judge(lambda node: node.update(bad, kho_off=True))) == []


def test_a_kernel_without_cma_is_sound():
    assert judge(lambda node: node["memory"].update(CmaTotal=None, CmaFree=None)) == []


def test_another_machine_than_a_spark_is_refused():
    assert one(judge(lambda node: node.update(machine="x86_64"))) == (
        "worker: this node is amd64, but the stack is for arm64: check that nodes[].ssh is a Spark"
    )


def test_an_image_for_another_machine_is_refused_before_it_fails_to_execute():
    text = one(judge(lambda node: node["image"].update(architecture="amd64")))
    assert text == "worker: the image is for amd64, but this node is arm64: use the digest for arm64"


def test_too_little_memory_shows_need_and_have():
    text = one(judge(lambda node: node["memory"].update(MemAvailable=90 * GIB_KB)))
    assert text == (
        "worker: 90.0 GiB of memory are available; gpu_memory_utilization 0.835 takes 101.0 of 121.0, and the engine's "
        "processes 9 beside it: free memory on the node (`ps aux --sort -rss`), or lower the setting"
    )


@pytest.mark.parametrize(("available", "level"), [(109, "error"), (111, "warning"), (112, None)])
def test_the_host_needs_memory_beside_the_engines_share(available: int, level: str | None):
    said = judge(lambda node: node["memory"].update(MemAvailable=available * GIB_KB))
    assert [item.level for item in said] == ([level] if level else [])


def test_page_cache_does_not_count_as_used_memory():
    """MemFree is low after staging the checkpoint, MemAvailable is not."""
    assert judge(lambda node: node["memory"].update(MemFree=20 * GIB_KB)) == []


def test_what_our_own_rank_holds_does_not_count_as_used_memory():
    def serving(node: Node) -> None:
        node["memory"].update(MemAvailable=5 * GIB_KB)
        node["containers"] = [rank_container("dev", 1)]

    assert judge(serving) == []


def test_a_dead_rank_of_ours_does_not_account_for_missing_memory():
    """A crashed engine may not have given its memory back."""

    def dead(node: Node) -> None:
        node["memory"].update(MemAvailable=60 * GIB_KB)
        node["containers"] = [rank_container("dev", 1, running=False, exit_code=1)]

    assert "60.0 GiB of memory are available" in one(judge(dead))


def test_a_node_that_hides_memory_is_a_warning():
    text = one(judge(lambda node: node["memory"].update(MemTotal=113 * GIB_KB)), "warning")
    assert text == "worker: 113.0 GiB of memory, where a healthy node shows 119 or more: find what hides it"


@pytest.mark.parametrize("memory", [None, {"MemTotal": 0}])
def test_memory_that_could_not_be_read_stops_the_stack(memory: object):
    assert one(judge(lambda node: node.update(memory=memory))) == "worker: /proc/meminfo could not be read"


@pytest.mark.parametrize(("share", "refused"), [(0.86, False), (0.87, True)])
def test_a_share_that_has_starved_hosts_is_refused(share: float, refused: bool):
    said = texts(judge(stack={"engine": {"gpu_memory_utilization": share}}))
    assert said == [
        "engine/gpu_memory_utilization: 0.87 leaves the host too little; above 0.86 it has starved: "
        "use at most 0.86, or list high_utilization under allow"
    ] * int(refused)


def test_a_capture_size_below_a_full_step_is_a_warning():
    text = one(judge(stack={"engine": {"max_cudagraph_capture_size": 40}}), "warning")
    assert text == (
        "engine/max_cudagraph_capture_size: 40 is below max_num_seqs x (num_speculative_tokens + 1) = 42: "
        "full batches fall off the captured graphs (about 12 % at six streams); leave it out"
    )


def test_earlyoom_is_a_warning():
    assert one(judge(lambda node: node.update(earlyoom=True)), "warning").startswith("worker: earlyoom runs")
