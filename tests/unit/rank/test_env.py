"""The whole environment of every rank, as the two systems we replace start theirs."""

import pytest

from components.rank.build import start_inputs
from components.rank.env import at_start, node_env, rank_env, shared_env
from tests.unit.recipe import FOUND_AT_START, both_ranks
from tests.unit.stacks import cluster, node


@pytest.mark.parametrize("profile", ["0731", "dspark", "vision-exp"])
def test_a_rank_gets_this_environment(profile: str):
    stack, both = cluster(profile), both_ranks(profile)
    assert rank_env(stack, 0) == {**both, "VLLM_HOST_IP": "198.51.100.1"}
    assert rank_env(stack, 1) == {**both, "VLLM_HOST_IP": "198.51.100.2"}


def test_a_stack_changes_adds_and_takes_out_variables():
    mine = {"CUDAToolkit_ROOT": "/usr/local/cuda", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": 900, "DG_JIT_USE_NVRTC": None}
    stack = cluster(change={"engine": {"extra_env": mine}, "fabric": {"nccl": {"NCCL_NVLS_ENABLE": None}}})
    env = rank_env(stack, 0)
    assert (env["CUDAToolkit_ROOT"], env["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"]) == ("/usr/local/cuda", "900")
    assert not {"DG_JIT_USE_NVRTC", "NCCL_NVLS_ENABLE"} & set(env)


def test_each_kind_of_socket_may_have_a_netdev_of_its_own():
    own = node(1, ifname="enp1s0f0np0", socket_ifnames={"gloo": "enP7s7"})
    names = {name: value for name, value in rank_env(cluster(change=own), 1).items() if name.endswith("_IFNAME")}
    assert names == {
        "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "TP_SOCKET_IFNAME": "enp1s0f0np0",
    }


@pytest.mark.parametrize("gid_index", ["resolve", "pin", "unset", 3])
def test_only_variables_of_the_fabric_may_differ_between_the_ranks(gid_index: object):
    own = {**node(0, ifname="enp1s0f0np0", hca="rocep1s0f0"), "fabric": {"gid_index": gid_index}}
    stack = cluster(change=own)
    head, worker = rank_env(stack, 0), rank_env(stack, 1)
    differing = {name for name in {*head, *worker} if head.get(name) != worker.get(name)}
    assert differing <= {"VLLM_HOST_IP", *FOUND_AT_START}


@pytest.mark.parametrize(
    ("gid_index", "index", "later"),
    [
        ("resolve", None, FOUND_AT_START),
        ("pin", None, FOUND_AT_START),
        ("unset", None, FOUND_AT_START[:-1]),
        (0, "0", FOUND_AT_START[:-1]),
        (3, "3", FOUND_AT_START[:-1]),
    ],
)
def test_the_gid_index_is_in_the_environment_only_where_the_stack_file_gives_it(
    gid_index: object, index: str | None, later: list[str]
):
    stack = cluster(change={"fabric": {"gid_index": gid_index}})
    for rank in (0, 1):
        assert rank_env(stack, rank).get("NCCL_IB_GID_INDEX") == index
        assert at_start(rank_env(stack, rank), stack.fabric.gid_index) == later
        assert start_inputs(stack, rank)["gid_index"] == gid_index


def test_a_named_interface_is_set_for_nccl_torch_and_gloo_alike_and_on_its_own_node_alone():
    stack = cluster(change=node(1, ifname="enP2p1s0f0np0", hca="=rocep1s0f0,roceP2p1s0f0"))
    assert node_env(stack, 1) == {
        "VLLM_HOST_IP": "198.51.100.2",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
        "NCCL_SOCKET_IFNAME": "enP2p1s0f0np0",
        "TP_SOCKET_IFNAME": "enP2p1s0f0np0",
        "GLOO_SOCKET_IFNAME": "enP2p1s0f0np0",
    }
    assert at_start(node_env(stack, 1), "resolve") == ["NCCL_IB_GID_INDEX"]
    assert node_env(stack, 0) == {"VLLM_HOST_IP": "198.51.100.1"}


def test_nccl_variables_of_the_stack_file_reach_every_rank_as_text():
    stack = cluster(change={"fabric": {"nccl": {"NCCL_GIN_ENABLE": 0, "NCCL_DEBUG": "INFO"}}})
    for rank in (0, 1):
        env = rank_env(stack, rank)
        assert (env["NCCL_GIN_ENABLE"], env["NCCL_DEBUG"]) == ("0", "INFO")


def test_further_variables_of_the_engine_reach_every_rank_as_text():
    stack = cluster(change={"engine": {"extra_env": {"VLLM_LOGGING_LEVEL": "DEBUG", "OMP_NUM_THREADS": 4, "X": 0.5}}})
    assert {name: shared_env(stack)[name] for name in ("VLLM_LOGGING_LEVEL", "OMP_NUM_THREADS", "X")} == {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "OMP_NUM_THREADS": "4",
        "X": "0.5",
    }


@pytest.mark.parametrize("gid_index", ["resolve", "pin", "unset", 3])
def test_no_variable_is_ever_empty(gid_index: object):
    stack = cluster(change={"fabric": {"gid_index": gid_index}})
    assert [name for rank in (0, 1) for name, value in rank_env(stack, rank).items() if not value] == []
