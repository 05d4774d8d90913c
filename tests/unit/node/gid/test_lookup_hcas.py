"""Which HCAs a rank gets on a node, and the refusals that name them."""

from typing import Any

import pytest

from gid import sysfs
from gid.lookup import Refusal, resolve
from gid.table import format_table
from tests.unit.node.node_tree import (
    GLOBAL_V6,
    HCA,
    HEAD,
    LINK_LOCAL,
    LOCAL,
    NETDEV,
    T_FOREIGN,
    T_HEAD,
    T_NOIP,
    T_TWIN,
    T_V6,
    TWIN,
    TWIN_IP,
    TWIN_NETDEV,
    TWIN_ROWS,
    V1,
    V2,
    Hca,
    Node,
    gid_of,
    pair,
)


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


# --- which HCAs ---


def test_the_twin_joins_when_it_has_a_subnet_of_its_own(node):
    resolution = node.resolve(pair(T_HEAD, TWIN_ROWS, f"{TWIN_IP}/24"))
    assert (resolution["hca"], resolution["notes"]) == (f"={HCA},{TWIN}", [])


@pytest.mark.parametrize(
    ("addresses", "state", "why"),
    [
        (["198.51.100.11/24"], "4: ACTIVE", f"its netdev {TWIN_NETDEV} is in the subnet of {HEAD}"),
        (["198.51.0.9/16"], "4: ACTIVE", f"its netdev {TWIN_NETDEV} is in the subnet of {HEAD}"),
        ([], "4: ACTIVE", f"its netdev {TWIN_NETDEV} has no fixed IPv4 address"),
        (["169.254.3.4/16"], "4: ACTIVE", f"its netdev {TWIN_NETDEV} has no fixed IPv4 address"),
        ([f"{TWIN_IP}/24"], "1: DOWN", "its state is 1: DOWN"),
    ],
    ids=["same subnet", "wider subnet", "no address", "link-local", "down"],
)
def test_a_twin_that_cannot_help_stays_out_and_a_note_says_why(node, addresses, state, why):
    resolution = node.resolve(pair(T_HEAD, TWIN_ROWS, *addresses, state=state))
    assert resolution["hca"] == f"={HCA}"
    assert resolution["notes"] == [f"{TWIN} port 1, the other half of the QSFP port, is not used: {why}"]


def test_twins_are_told_by_their_pcie_function_when_names_say_nothing(node):
    hcas = {
        "mlx5_0": Hca(T_NOIP, "enp1s0f0np0", ["192.0.2.9/24"], pci="0000:01:00.0"),
        "mlx5_1": Hca(T_HEAD, pci="0000:01:00.1"),
        "mlx5_3": Hca(TWIN_ROWS, TWIN_NETDEV, [f"{TWIN_IP}/24"], pci="0002:01:00.1"),
    }
    assert node.resolve(hcas)["hca"] == "=mlx5_1,mlx5_3"


def test_a_twin_with_an_address_but_no_row_for_it_is_refused_not_dropped(node):
    refusal = node.refusal(pair(T_HEAD, T_NOIP, f"{TWIN_IP}/24"))
    assert "no GID row that NCCL can use" in str(refusal)
    assert f"{TWIN} port 1: no row holds {TWIN_IP} of netdev {TWIN_NETDEV}" in str(refusal)


def test_a_usable_twin_that_the_selector_leaves_out_is_noted(node):
    resolution = node.resolve(pair(T_HEAD, TWIN_ROWS, f"{TWIN_IP}/24"), f"={HCA}")
    assert (resolution["hca"], len(resolution["members"])) == (f"={HCA}", 1)
    assert resolution["notes"] == [f"{TWIN} port 1, the other half of the QSFP port, could be used too: add it to hca"]


def test_a_sibling_that_is_down_is_ignored_and_noted_when_it_was_named(node):
    hcas = pair(T_HEAD, T_TWIN, f"{TWIN_IP}/24", state="1: DOWN")
    named = node.resolve(hcas, f"={HCA},{TWIN}")
    assert (named["gid_index"], [member["hca"] for member in named["members"]]) == (3, [HCA])
    assert named["notes"] == [f"{TWIN} port 1 is not used: its state is 1: DOWN"]
    assert node.resolve(hcas, "roce")["notes"] == []


def test_a_name_of_the_selector_that_matches_nothing_is_noted(node):
    resolution = node.resolve({HCA: Hca(T_HEAD)}, f"={HCA},rocep1s0f9")
    assert resolution["notes"] == [
        f"'rocep1s0f9' of hca '={HCA},rocep1s0f9' matches no HCA; present: {HCA} port 1 (4: ACTIVE)"
    ]


# --- refusals ---


@pytest.mark.parametrize("selector", [None, f"={HCA}"], ids=["derived", "selected"])
@pytest.mark.parametrize(
    ("state", "link_layer", "why"),
    [
        ("1: DOWN", "Ethernet", "its state is 1: DOWN"),
        ("5: ACTIVE_DEFER", "Ethernet", "its state is 5: ACTIVE_DEFER"),
        (None, "Ethernet", "its state cannot be read"),
        ("4: ACTIVE", "Unspecified", "its link layer is Unspecified"),
    ],
)
def test_a_port_that_is_not_open_is_told_apart_from_a_wrong_name(node, selector, state, link_layer, why):
    refusal = node.refusal({HCA: Hca(T_HEAD, state=state, link_layer=link_layer)}, selector)
    assert "but none can be opened" in str(refusal)
    assert f"{HCA} port 1: {why}" in str(refusal)
    assert "Check the QSFP cable" in str(refusal)


def test_an_absent_hca_is_refused_with_those_that_are_present(node):
    refusal = node.refusal({HCA: Hca(T_HEAD)}, "=rocep1s0f0")
    assert "hca '=rocep1s0f0' picks no HCA of this node" in str(refusal)
    assert f"present: {HCA} port 1 (4: ACTIVE)" in str(refusal)
    assert "cable" not in str(refusal)


def test_a_fabric_address_on_a_netdev_without_an_hca_is_refused(node):
    with pytest.raises(Refusal, match=r"wlP9s9 holds 192\.0\.2\.7 but belongs to no HCA; present: rocep1s0f1"):
        resolve(node.table({HCA: Hca(T_HEAD)}, {"wlP9s9": ["192.0.2.7/24"]}), "192.0.2.7")


def test_facts_without_a_table_are_refused_not_taken_for_a_node_without_hcas():
    table: Any = {"hcas": None, "interfaces": None}
    with pytest.raises(Refusal, match="could not be read"):
        resolve(table, HEAD)


def test_a_fabric_address_on_no_interface_is_refused_with_what_is_there(node):
    refusal = node.refusal({HCA: Hca(T_NOIP, addresses=[])})
    assert f"fabric address {HEAD} is on no interface" in str(refusal)
    assert f"{NETDEV}: no IPv4 address" in str(refusal)


@pytest.mark.parametrize(
    ("rows", "addresses", "why"),
    [
        (T_NOIP, [], f"netdev {TWIN_NETDEV} has no IPv4 address"),
        (T_FOREIGN, ["203.0.113.1/24"], f"row 3: stale: 203.0.113.7 is not on {TWIN_NETDEV}"),
        (
            {**LOCAL, 2: (gid_of(HEAD), V2)},
            ["203.0.113.1/24"],
            f"{HEAD} is not on {TWIN_NETDEV} but on {NETDEV}",
        ),
        ({**LOCAL, 2: (gid_of(TWIN_IP), V1)}, ["203.0.113.1/24"], "its IPv4 rows are all IB/RoCE v1, none is RoCE v2"),
        ({}, [], "its GID table is empty"),
    ],
    ids=["T-NOIP", "T-FOREIGN", "of another netdev", "only v1", "empty"],
)
def test_an_hca_without_a_usable_row_is_refused_with_the_reason_and_every_table(node, rows, addresses, why):
    refusal = node.refusal({HCA: Hca(T_HEAD), TWIN: Hca(rows, TWIN_NETDEV, addresses)}, f"={HCA},{TWIN}")
    assert "no GID row that NCCL can use" in str(refusal)
    assert f"{TWIN} port 1: " in str(refusal)
    assert why in str(refusal)
    assert f"{HCA} port 1, 4: ACTIVE, {NETDEV} ({HEAD}/24)" in str(refusal)


def test_the_table_shows_each_row_with_its_verdict(node):
    table = node.table({HCA: Hca({**T_V6, 6: (gid_of("203.0.113.7"), V2)})})
    shown = [line.split(maxsplit=1) for line in format_table(table["hcas"], table["interfaces"]).splitlines()]
    assert shown == [
        ["rocep1s0f1", "port 1, 4: ACTIVE, enp1s0f1np1 (198.51.100.1/24)"],
        ["index", f"{'gid':39}  type        netdev       verdict"],
        ["0", f"{LINK_LOCAL}  IB/RoCE v1  enp1s0f1np1  type is IB/RoCE v1, not RoCE v2"],
        ["1", f"{LINK_LOCAL}  RoCE v2     enp1s0f1np1  link-local IPv6"],
        ["2", f"{GLOBAL_V6}  IB/RoCE v1  enp1s0f1np1  type is IB/RoCE v1, not RoCE v2"],
        ["3", f"{GLOBAL_V6}  RoCE v2     enp1s0f1np1  IPv6, not an IPv4 address"],
        ["4", f"{HEAD:39}  IB/RoCE v1  enp1s0f1np1  type is IB/RoCE v1, not RoCE v2"],
        ["5", f"{HEAD:39}  RoCE v2     enp1s0f1np1  usable"],
        ["6", f"{'203.0.113.7':39}  RoCE v2     enp1s0f1np1  stale: 203.0.113.7 is not on enp1s0f1np1"],
    ]


def test_a_link_local_fabric_address_is_noted(node):
    resolution = node.resolve(
        {HCA: Hca({3: (gid_of("169.254.3.4"), V2)}, addresses=["169.254.3.4/16"])}, ip="169.254.3.4"
    )
    assert resolution["notes"] == ["169.254.3.4 is link-local and changes at a boot: give the fabric fixed addresses"]


def test_the_addresses_of_this_machine_come_from_the_kernel(monkeypatch):
    monkeypatch.delenv("SPARK_SYSFS", raising=False)
    monkeypatch.delenv("SPARK_ADDRESSES", raising=False)
    assert {"ip": "127.0.0.1", "prefix": 8} in sysfs.read_interfaces()["lo"]


def test_the_hca_of_the_fabric_address_comes_first(node):
    resolution = node.resolve({HCA: Hca(TWIN_ROWS, NETDEV, [f"{TWIN_IP}/24"]), TWIN: Hca(T_HEAD, TWIN_NETDEV)})
    assert (resolution["ifname"], resolution["hca"]) == (TWIN_NETDEV, f"={TWIN},{HCA}")


# --- a ring: the ranks meet at an address that is on no HCA ---

LAN = {"enP7s7": ["10.20.0.1/24"]}


def ring(node: Node, links: list[str], **twin: Any) -> dict[str, Any]:
    table = node.table(pair(T_HEAD, T_TWIN, f"{TWIN_IP}/24", **twin), LAN)
    return dict(resolve(table, "10.20.0.1", None, "resolve", links))


def test_the_hcas_of_a_nodes_links_are_used_and_nccl_chooses_each_ones_index(node):
    resolution = ring(node, [HEAD, TWIN_IP])
    assert (resolution["ifname"], resolution["hca"]) == ("enP7s7", f"={HCA},{TWIN}")
    assert (resolution["gid_index"], resolution["notes"]) == (None, [])


def test_a_link_that_is_missing_or_down_is_named(node):
    with pytest.raises(Refusal, match=r"link 192\.0\.2\.77: no interface of this node has it"):
        ring(node, [HEAD, "192.0.2.77"])
    with pytest.raises(Refusal, match=f"{TWIN_NETDEV} holds the link {TWIN_IP}, but none can be opened"):
        ring(node, [HEAD, TWIN_IP], state="1: DOWN")
    with pytest.raises(Refusal, match=r"link 10\.20\.0\.1: enP7s7 holds it but belongs to no HCA"):
        ring(node, ["10.20.0.1"])
