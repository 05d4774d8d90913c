"""Three nodes in a ring without a switch: each two share a link, and the ranks meet on the management network."""

from typing import Any

from tests.lab.pair import Stack, ask, environment_of, on, place, words_of

RING = True
LINKS = [["192.168.112.1", "192.168.113.1"], ["192.168.112.2", "192.168.123.2"], ["192.168.113.3", "192.168.123.3"]]


def three(cluster: dict[str, Any]) -> None:
    """The stack file of a ring. The dev stack's image is the stand-in, which takes any number of ranks."""
    cluster["nodes"] = [
        {"ssh": node.alias, "fabric_ip": place().ssh_address(node)[0], "links": links}
        for node, links in zip(place().nodes, LINKS, strict=True)
    ]
    cluster["engine"] = {"tensor_parallel_sizes": [2, 3]}


def test_one_up_converges_three_nodes_and_a_second_changes_nothing(stack: Stack) -> None:
    stack.up(three)
    assert "4183" in ask()
    for rank, node in enumerate(place().nodes):
        env = environment_of(node.name, f"spark-dev-rank{rank}")
        assert (env["NCCL_IB_HCA"], env.get("NCCL_IB_GID_INDEX")) == ("=rocep1s0f0,rocep1s0f1", None)
        assert env["VLLM_HOST_IP"] == place().ssh_address(node)[0]
        assert env["NCCL_IB_SUBNET_AWARE_ROUTING"] == "1"
        assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == "eth0"
    assert stack.steps(three) == {}


def test_a_link_that_is_down_is_named_at_preview(stack: Stack) -> None:
    on("worker2", "ip link set enp1s0f1np1 down", root=True)
    try:
        shown = words_of(stack.preview(three, check=False).text)
    finally:
        on("worker2", "ip link set enp1s0f1np1 up", root=True)
    assert "worker2: enp1s0f1np1 holds the link 192.168.123.3, but none can be opened" in shown


def test_destroy_leaves_no_container_and_no_folder_of_ours_on_any_node(stack: Stack) -> None:
    stack.destroy()
    for node in place().nodes:
        assert on(node.name, "docker ps -aq; ls -A ~/.local/share/spark-stack 2>/dev/null; true").strip() == ""
