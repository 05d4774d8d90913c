"""What the preflight says of the cables: MTU at both ends, PCIe width, as many ports on each node."""

from typing import Any

import pytest

from components.facts.preflight import findings
from tests.program.pair import healthy, typed
from tests.unit.facts.judged import NODES
from tests.unit.stacks import cluster

NETDEV, TWIN = "enp1s0f1np1", "enP2p1s0f1np1"
WHOLE = {"mtu": 9000, "width": 4, "most_width": 4}


def said(head: dict[str, Any], worker: dict[str, Any]) -> list[str]:
    nodes = healthy()
    for node, changed in zip(nodes, (head, worker), strict=True):
        node["links"] = {NETDEV: {**WHOLE, **changed}, TWIN: WHOLE, "enP7s7": {"mtu": 1500}}
    stack = cluster("vision-exp", NODES)
    return [str(item) for item in findings(stack, [typed(item) for item in nodes], "dev")]


def test_a_whole_pair_has_nothing_said_of_its_cables():
    assert said({}, {}) == []


@pytest.mark.parametrize(
    ("head", "worker", "shown"),
    [({}, {"mtu": 1500}, f"worker {NETDEV} 1500"), ({"mtu": 1500}, {"mtu": 1500}, f"head {NETDEV} 1500")],
)
def test_an_mtu_that_differs_or_is_small_is_named_at_both_ends_with_the_command(
    head: dict[str, Any], worker: dict[str, Any], shown: str
):
    [text] = said(head, worker)
    assert shown in text and f"worker {NETDEV} {worker['mtu']}" in text
    assert f"sudo ip link set {NETDEV} mtu 9000" in text


def test_a_card_that_came_up_with_fewer_lanes_is_named():
    [text] = said({"width": 1}, {})
    assert text.startswith(f"head: the PCIe link of {NETDEV} has 1 lanes of 4") and "not a reboot" in text


def test_a_kernel_that_tells_no_width_is_no_finding():
    assert said({"width": None}, {"most_width": None}) == []


def test_a_rail_on_one_node_alone_is_named():
    nodes = healthy()
    del nodes[1]["interfaces"][TWIN]
    texts = [str(item) for item in findings(cluster("vision-exp", NODES), [typed(item) for item in nodes], "dev")]
    assert any(f"the ranks would use head {NETDEV} and {TWIN}, worker {NETDEV}:" in text for text in texts)
