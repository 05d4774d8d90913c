"""Rules on the fabric, over states that people have reported."""

from typing import Any

import pytest

from tests.program.pair import gid, healthy
from tests.unit.facts.judged import HEAD, NODES, Node, judge, one, texts


def rows(node: Node, number: int) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = node["hcas"][number]["rows"]
    return listed


def test_indexes_that_differ_between_the_nodes_are_the_normal_case():
    assert [rows(node, 0)[0]["index"] for node in healthy()] == [3, 6] and judge() == []


def test_one_number_for_both_nodes_is_refused_with_each_members_table():
    """The head's row is at 3, the worker's at 6, and the stack forces 3."""
    text = one(judge(stack={"fabric": {"gid_index": 3}}))
    assert text.splitlines() == [
        "worker: gid_index 3 is not usable on every HCA (usable: rocep1s0f1 port 1: 6; roceP2p1s0f1 port 1: 6)",
        "rocep1s0f1 port 1, 4: ACTIVE, enp1s0f1np1 (192.168.100.2/24)",
        "  index  gid            type     netdev       verdict",
        "  6      192.168.100.2  RoCE v2  enp1s0f1np1  usable",
        "roceP2p1s0f1 port 1, 4: ACTIVE, enP2p1s0f1np1 (192.168.101.2/24)",
        "  index  gid            type     netdev         verdict",
        "  6      192.168.101.2  RoCE v2  enP2p1s0f1np1  usable",
        "Use gid_index: resolve.",
    ]


def test_members_without_a_common_index_are_refused_with_both_sets_or_left_to_nccl():
    """One HCA has {3}, its twin {6}."""

    def twin(node: Node) -> None:
        rows(node, 0)[0]["index"] = 3

    text = one(judge(twin))
    assert "no GID index is usable on every HCA (usable: rocep1s0f1 port 1: 3; roceP2p1s0f1 port 1: 6)" in text
    assert "gid_index: unset" in text
    assert judge(twin, stack={"fabric": {"gid_index": "unset"}}) == []


def test_a_row_of_an_address_that_is_gone_is_shown_as_stale():

    def foreign(node: Node) -> None:
        rows(node, 0)[0]["gid"] = gid("203.0.113.7")

    text = one(judge(foreign))
    assert "no GID row that NCCL can use" in text
    assert "stale: 203.0.113.7 is not on enp1s0f1np1" in text


def test_twins_in_one_subnet_are_a_warning():
    """NVIDIA's own playbook shows it, so it must not stop anybody."""

    def same_subnet(node: Node) -> None:
        node["interfaces"]["enP2p1s0f1np1"] = [{"ip": "192.168.100.12", "prefix": 24}]
        rows(node, 1)[0]["gid"] = gid("192.168.100.12")

    text, unlike = texts(judge(same_subnet), "warning")
    assert unlike.startswith("nodes: the ranks would use head enp1s0f1np1 and enP2p1s0f1np1, worker enp1s0f1np1: ")
    assert text.startswith("worker: ") and "enP2p1s0f1np1 is in the subnet of 192.168.100.2" in text


def test_half_of_a_qsfp_port_is_a_warning():
    """The selector names one function, the other has an address of its own."""
    half = {"nodes": [NODES["nodes"][0], {**NODES["nodes"][1], "hca": "=rocep1s0f1"}]}
    text, _ = texts(judge(stack=half), "warning")
    assert "roceP2p1s0f1 port 1, the other half of the QSFP port, could be used too: add it to hca" in text


def test_a_fabric_address_that_is_on_no_interface_is_refused_with_the_interfaces_there_are():
    """As after a reboot that lost the address."""

    def gone(node: Node) -> None:
        node["interfaces"]["enp1s0f1np1"] = []

    text = one(judge(gone, on=HEAD))
    assert text.splitlines()[:3] == [
        "head: fabric address 192.168.100.1 is on no interface of this node; the interfaces are",
        "  enP2p1s0f1np1: 192.168.101.1/24",
        "  enp1s0f1np1: no IPv4 address",
    ]


def test_a_link_local_fabric_address_is_a_warning():
    """It is another one after the next boot."""

    def link_local(node: Node) -> None:
        node["interfaces"]["enp1s0f1np1"] = [{"ip": "169.254.9.2", "prefix": 16}]
        rows(node, 0)[0]["gid"] = gid("169.254.9.2")

    stack = {"nodes": [NODES["nodes"][0], {**NODES["nodes"][1], "fabric_ip": "169.254.9.2"}]}
    text = one(judge(link_local, stack=stack), "warning")
    assert "169.254.9.2 is link-local and changes at a boot" in text


def test_an_address_before_the_fabrics_on_gloos_netdev_is_a_warning():
    """A real vLLM of the lab's image waited at the rendezvous: Gloo had bound the link-local address."""
    addresses = [{"ip": "169.254.9.2", "prefix": 16}, {"ip": "192.168.100.2", "prefix": 24}]
    text = one(judge(lambda node: node["interfaces"].update(enp1s0f1np1=addresses)), "warning")
    assert "enp1s0f1np1 has 169.254.9.2 before 192.168.100.2, and Gloo binds a netdev's first address" in text
    assert judge(lambda node: node["interfaces"].update(enp1s0f1np1=addresses[::-1])) == []


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("1: DOWN", ["its state is 1: DOWN", "Check the QSFP cable at both ends."]),
        ("5: ACTIVE_DEFER", ["its state is 5: ACTIVE_DEFER"]),
        (None, ["its state cannot be read"]),
    ],
)
def test_a_port_that_is_not_active_says_so_and_sends_nobody_to_the_selector(state: str | None, says: list[str]):
    def down(node: Node) -> None:
        for port in node["hcas"]:
            port.update(state=state, rows=[])

    text = one(judge(down))
    assert all(part in text for part in says), text


def test_an_hca_that_is_not_there_is_another_text_than_one_that_is_down():
    """A powered-off port takes its HCA with it."""
    text = one(judge(lambda node: node.update(hcas=[])))
    assert "present: none, /sys/class/infiniband is empty" in text

    named = {"nodes": [NODES["nodes"][0], {**NODES["nodes"][1], "hca": "=rocep9s0f0"}]}
    assert "rocep1s0f1 port 1 (4: ACTIVE)" in one(judge(stack=named))


def test_an_interface_that_is_not_there_is_refused_with_those_that_are():
    """The cable is in the other socket."""
    stack = {"nodes": [NODES["nodes"][0], {**NODES["nodes"][1], "ifname": "enp1s0f0np0"}]}
    assert one(judge(stack=stack)) == (
        "worker: there is no netdev enp1s0f0np0 (present: enP2p1s0f1np1, enp1s0f1np1): leave ifname out, or correct it"
    )


@pytest.mark.parametrize("missing", [{"hcas": None}, {"interfaces": None}, {"hcas": None, "interfaces": None}])
def test_a_table_that_could_not_be_read_stops_the_stack_and_says_why(missing: dict[str, None]):
    unread = {**missing, "problems": [{"probe": "table", "error": "netlink refused"}]}
    said = judge(lambda node: node.update(unread))
    assert texts(said) == [
        "worker: the GID table could not be read, so no rank could use the fabric: see the problems above"
    ]
    assert texts(said, "warning") == ["worker: could not read table: netlink refused"]


@pytest.mark.parametrize("name", ["NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE"])
def test_gpudirect_is_a_warning_on_a_gpu_that_has_none(name: str):
    text = one(judge(stack={"fabric": {"nccl": {name: 1}}}), "warning")
    assert text == f"fabric/nccl/{name}: a GB10 has no GPUDirect RDMA, so this does nothing or fails: remove it"


def test_any_other_nccl_variable_is_the_stacks_own_affair():
    assert judge(stack={"fabric": {"nccl": {"NCCL_GIN_ENABLE": 0}}}) == []
