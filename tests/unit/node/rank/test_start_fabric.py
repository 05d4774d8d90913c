"""The fabric's variables that a rank gives its engine, from the tables of its node at that moment."""

import pytest

from gid import sysfs
from rank import start
from tests.unit.node.node_tree import HCA, HEAD, NETDEV, T_HEAD, T_HOLE, T_NOIP, TWIN, TWIN_ROWS, Hca, pair
from tests.unit.node.rank.container import Container

FABRIC = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_GID_INDEX")


def fabric(env: dict[str, str]) -> dict[str, str]:
    return {name: env[name] for name in FABRIC if name in env}


def test_the_fabric_is_set_from_this_nodes_own_tables(container: Container):
    container.hcas = pair(T_HEAD, TWIN_ROWS, "203.0.113.1/24")
    assert fabric(container.started()) == {
        "NCCL_IB_HCA": f"={HCA},{TWIN}",
        "NCCL_SOCKET_IFNAME": NETDEV,
        "TP_SOCKET_IFNAME": NETDEV,
        "GLOO_SOCKET_IFNAME": NETDEV,
        "NCCL_IB_GID_INDEX": "3",
    }


def test_an_index_that_drifted_is_resolved_again_at_the_next_start(container: Container):
    """Slot 3 became a hole, the row is at 4 now."""
    before = container.started()
    container.hcas = {HCA: Hca(T_HOLE)}
    after = container.started()
    assert (before["NCCL_IB_GID_INDEX"], after["NCCL_IB_GID_INDEX"]) == ("3", "4")


def test_interface_names_that_the_image_bakes_in_are_overridden(container: Container):
    baked = dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "enP7s7")
    env = container.started(**baked)
    assert [env[name] for name in baked] == [NETDEV] * 3


def test_interfaces_of_the_stack_file_are_taken_as_they_are(container: Container):
    container.start["ifnames"] = dict.fromkeys(FABRIC[1:4], "enp1s0f1np1.100") | {"GLOO_SOCKET_IFNAME": "enP7s7"}
    env = container.started()
    assert {name: env[name] for name in FABRIC[1:4]} == container.start["ifnames"]


def test_a_selector_of_the_stack_file_is_handed_on_as_it_is(container: Container):
    container.hcas = pair(T_HEAD, TWIN_ROWS, "203.0.113.1/24")
    container.start["hca"] = "=rocep1s0f1:1"
    done = container.run()
    assert f"spark: note: {TWIN} port 1, the other half of the QSFP port, could be used too" in done.stdout
    assert "NCCL_IB_HCA==rocep1s0f1:1\0" in (container.folder / "engine.env").read_text()


def test_empty_nccl_variables_are_left_out_and_set_ones_kept(container: Container):
    """An empty one hides /etc/nccl.conf."""
    done = container.run(NCCL_IB_MERGE_NICS="", NCCL_GIN_ENABLE="0", OTHER="")
    assert (
        "spark: NCCL_IB_MERGE_NICS is empty, which would hide /etc/nccl.conf: leaving it out"
        in done.stdout.splitlines()
    )
    text = (container.folder / "engine.env").read_text()
    assert "NCCL_IB_MERGE_NICS" not in text and "NCCL_GIN_ENABLE=0\0" in text and "OTHER=\0" in text


@pytest.mark.parametrize("inherited", ["", "5"])
def test_unset_leaves_the_index_to_nccl_whatever_the_image_says(inherited: str, container: Container):
    container.start["gid_index"] = "unset"
    env = container.started(NCCL_IB_GID_INDEX=inherited)
    assert "NCCL_IB_GID_INDEX" not in env


def test_unset_says_so_and_still_needs_a_usable_row(container: Container):
    container.start["gid_index"] = "unset"
    assert f"spark: fabric {HCA} on {NETDEV}, GID index left to NCCL" in container.run().stdout
    container.hcas = {HCA: Hca(T_NOIP)}
    (container.folder / "engine.env").unlink()
    assert "no GID row that NCCL can use" in container.refused()[1]


def test_a_pinned_index_is_kept_while_it_is_usable(container: Container):
    container.start["gid_index"] = "pin"
    assert container.started(NCCL_IB_GID_INDEX="3")["NCCL_IB_GID_INDEX"] == "3"


def test_a_pinned_index_that_drifted_is_refused_with_the_table(container: Container):
    """Another one would be a change that no preview showed."""
    container.start["gid_index"] = "pin"
    container.hcas = {HCA: Hca(T_HOLE)}
    lines = container.refused(NCCL_IB_GID_INDEX="3")
    assert lines[1] == f"spark: error: gid_index 3 is not usable on every HCA (usable: {HCA} port 1: 4)"
    assert ["spark:", "4", HEAD, "RoCE", "v2", NETDEV, "usable"] in [line.split() for line in lines]


def test_a_forced_number_must_be_usable_too(container: Container):
    container.start["gid_index"] = 1
    lines = container.refused()
    assert "gid_index 1 is not usable" in lines[1]


@pytest.mark.parametrize(
    ("hcas", "reason"),
    [
        ({HCA: Hca(T_HEAD, addresses=[])}, f"fabric address {HEAD} is on no interface of this node"),
        ({HCA: Hca(T_HEAD, state="1: DOWN")}, "none can be opened"),
        ({HCA: Hca(T_NOIP)}, "no GID row that NCCL can use"),
    ],
    ids=["no-address", "cable-out", "no-row"],
)
def test_a_fabric_that_cannot_be_used_ends_the_start_with_the_reason(
    hcas: dict[str, Hca], reason: str, container: Container
):
    container.hcas = hcas
    lines = container.refused()
    assert lines[1].startswith("spark: error: ") and reason in lines[1]


def test_interfaces_that_the_kernel_does_not_list_end_the_start_in_words(
    container: Container, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def unread() -> None:
        raise OSError(1, "netlink refused to list the addresses")

    monkeypatch.setattr(sysfs, "read_table", unread)
    with pytest.raises(SystemExit) as ended:
        start.set_fabric(container.start, {})
    assert ended.value.code == 1
    assert capsys.readouterr().out == (
        "spark: error: the interfaces of this node cannot be read: [Errno 1] netlink refused to list the addresses\n"
    )
