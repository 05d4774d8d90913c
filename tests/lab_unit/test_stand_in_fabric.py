"""The stand-in fails where NCCL and Gloo would, with GID tables in a folder and this machine's loopback."""

from ipaddress import IPv4Address

import pytest

from lab.runtime.vllm import fabric
from lab.runtime.vllm.fabric import Row
from tests.lab_unit.stand_in_machine import EMPTY, LINK_LOCAL, V4, hca

LOOPBACK = IPv4Address("127.0.0.1")
GOOD = {0: (LINK_LOCAL, "RoCE v2"), 1: (V4, "IB/RoCE v1"), 2: (EMPTY, ""), 3: (V4, "RoCE v2")}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_SYSFS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("=rocep1s0f1,roceP2p1s0f1", ["rocep1s0f1", "roceP2p1s0f1"]),
        ("rocep1", ["rocep1s0f0", "rocep1s0f1"]),
        ("=rocep1", []),
        ("rocep1s0f1:1,roceP2p1s0f1:2", ["rocep1s0f1"]),
    ],
)
def test_the_selector_is_nccls(selector, names):
    assert [name for name in ("rocep1s0f0", "rocep1s0f1", "roceP2p1s0f1") if fabric.selects(selector, name)] == names


@pytest.mark.parametrize("selector", ["^rocep1s0f0", "rocep1s0f1,,roceP2p1s0f1", "rocep1s0f1:abc", "roce*"])
def test_forms_of_a_selector_that_the_stand_in_does_not_read_are_refused(selector):
    with pytest.raises(RuntimeError, match="reads only"):
        fabric.selects(selector, "rocep1s0f1")


def test_a_pinned_index_is_used_and_a_missing_one_is_found_per_device(machine):
    hca(machine, "rocep1s0f1", GOOD)
    hca(machine, "roceP2p1s0f1", {0: (LINK_LOCAL, "RoCE v2"), 6: (V4, "RoCE v2")})
    first, second = Row("rocep1s0f1:1", 3, LOOPBACK), Row("roceP2p1s0f1:1", 6, LOOPBACK)
    assert fabric.check_rdma({"NCCL_IB_HCA": "=rocep1s0f1", "NCCL_IB_GID_INDEX": "3"}) == [first]
    assert sorted(fabric.check_rdma({"NCCL_IB_HCA": "roce"}), key=lambda row: row.index) == [first, second]


def test_rows_of_two_ranks_must_share_a_subnet():
    row = Row("rocep1s0f1:1", 1, LOOPBACK)
    fabric.check_paths([row], {"1": ["127.0.0.2"]}, {})
    fabric.check_paths([], {"1": []}, {})
    # in a ring a peer has a link to another rank as well
    fabric.check_paths([row], {"1": ["127.0.0.2", "169.254.7.2"]}, {"NCCL_IB_SUBNET_AWARE_ROUTING": "1"})
    with pytest.raises(RuntimeError, match="NCCL error: unhandled system error") as end:
        fabric.check_paths([row], {"1": ["127.0.0.2", "169.254.7.2"]}, {})
    assert "remote GID ::ffff:169.254.7.2 (rank 1)" in end.value.warnings[0]  # type: ignore[attr-defined]
    stale = Row("rocep1s0f1:1", 1, IPv4Address("198.51.100.1"))
    with pytest.raises(RuntimeError):
        fabric.check_paths([stale], {"1": ["198.51.100.2"]}, {})


@pytest.mark.parametrize("index", ["0", "1", "2", "7", "010"])
def test_a_wrong_row_dies_in_modify_qp(machine, index):
    hca(machine, "rocep1s0f1", GOOD)
    with pytest.raises(RuntimeError, match="NCCL error: unhandled system error") as end:
        fabric.check_rdma({"NCCL_IB_GID_INDEX": index})
    assert "Call to ibv_modify_qp failed with 61 No data available" in end.value.warnings[0]  # type: ignore[attr-defined]


def test_a_port_that_is_down_is_no_device(machine):
    hca(machine, "rocep1s0f1", GOOD, state="1: DOWN")
    with pytest.raises(RuntimeError) as end:
        fabric.check_rdma({"NCCL_NET": "IB"})
    assert end.value.warnings[0] == "NET/IB : No device found."  # type: ignore[attr-defined]
    assert fabric.check_rdma({}) == [], "without NCCL_NET=IB it falls back to sockets in silence"


def test_an_empty_nccl_variable_is_refused_by_name():
    with pytest.raises(RuntimeError, match=r"NCCL_IB_GID_INDEX, NCCL_IB_HCA: defined but empty"):
        fabric.refuse_empty_variables({"NCCL_IB_HCA": "", "NCCL_IB_GID_INDEX": " ", "NCCL_NET": "IB", "VLLM_X": ""})


def test_gloo_wants_an_interface_that_is_here_and_nccl_the_host_address_on_its_own():
    fabric.check_interfaces({"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}, "127.0.0.1")
    with pytest.raises(RuntimeError, match="Unable to find address for: enP7s7"):
        fabric.check_interfaces({"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "enP7s7"}, "127.0.0.1")
    with pytest.raises(RuntimeError, match="NCCL error: invalid usage"):
        fabric.check_interfaces({"NCCL_SOCKET_IFNAME": "=nowhere0"}, "127.0.0.1")
    with pytest.raises(RuntimeError, match="NCCL error: unhandled system error"):
        fabric.check_interfaces({"NCCL_SOCKET_IFNAME": "lo"}, "198.51.100.9")
