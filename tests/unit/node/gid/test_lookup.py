"""The shipped gid.lookup, run over the GID tables and port states that people have reported."""

import json
import subprocess

import pytest

from gid import sysfs
from gid.lookup import resolve
from gid.table import table_digest
from tests.unit.executables import run_shipped
from tests.unit.node.node_tree import (
    HCA,
    HEAD,
    LOCAL,
    NETDEV,
    T_FOREIGN,
    T_HEAD,
    T_HOLE,
    T_NOIP,
    T_SHIFT,
    T_TWIN,
    T_V6,
    TWIN,
    TWIN_IP,
    TWIN_NETDEV,
    TWIN_ROWS,
    V1,
    V2,
    WORKER,
    Hca,
    Node,
    Rows,
    both,
    build,
    gid_of,
    pair,
)


def run(environment: dict[str, str], **inputs: object) -> "subprocess.CompletedProcess[str]":
    """The command with these inputs."""
    return run_shipped("gid.lookup", {"hca": None, "gid_index": "resolve", **inputs}, apart=False, **environment)


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


# --- the command ---


def test_the_command_prints_one_json_line(tmp_path):
    done = run(build(tmp_path, pair(T_HEAD, TWIN_ROWS, f"{TWIN_IP}/24")), fabric_ip=HEAD)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    resolution = json.loads(done.stdout)
    digest = resolution.pop("table_digest")
    assert len(digest) == 64
    assert resolution == {
        "ifname": NETDEV,
        "hca": f"={HCA},{TWIN}",
        "members": [
            {"hca": HCA, "port": 1, "ifname": NETDEV, "usable": [3]},
            {"hca": TWIN, "port": 1, "ifname": TWIN_NETDEV, "usable": [3]},
        ],
        "gid_index": 3,
        "notes": [],
    }


def test_a_refusal_of_the_command_is_words_on_stderr_and_nothing_on_stdout(tmp_path):
    done = run(build(tmp_path, {HCA: Hca(T_FOREIGN)}), fabric_ip=HEAD, hca=f"={HCA}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "row 3: stale: 203.0.113.7 is not on enp1s0f1np1" in done.stderr


# --- which index ---


@pytest.mark.parametrize(
    ("rows", "ip", "index"),
    [(T_HEAD, HEAD, 3), (T_SHIFT, WORKER, 5), (T_HOLE, HEAD, 4), (T_V6, HEAD, 5)],
    ids=["T-HEAD", "T-SHIFT", "T-HOLE", "T-V6"],
)
def test_the_index_is_the_ipv4_row_of_type_v2(node, rows, ip, index):
    assert node.resolve({HCA: Hca(rows, addresses=[f"{ip}/24"])}, ip=ip)["gid_index"] == index


def test_an_index_that_drifted_is_resolved_again(node):
    before, after = node.resolve({HCA: Hca(T_HEAD)}), node.resolve({HCA: Hca(T_HOLE)})
    assert (before["gid_index"], after["gid_index"]) == (3, 4)
    assert before["table_digest"] != after["table_digest"]


def test_an_unmoved_table_keeps_its_digest_although_another_hca_changes(node):
    alone = node.resolve({HCA: Hca(T_HEAD)})
    beside = node.resolve({HCA: Hca(T_HEAD), "rocep9s0f0": Hca(T_NOIP, "enp9s0f0np0", [])})
    assert alone["table_digest"] == beside["table_digest"]


@pytest.mark.parametrize("change", [{"index": 7}, {"gid": gid_of(WORKER)}, {"type": V1}, {"ndev": TWIN_NETDEV}])
def test_each_part_of_a_row_is_in_the_digest(node, change):
    port = node.table({HCA: Hca(T_HEAD)})["hcas"][0]
    before = table_digest([port])
    port["rows"].reverse()
    assert table_digest([port]) == before
    port["rows"][0].update(change)
    assert table_digest([port]) != before


def test_indexes_are_ordered_as_numbers_not_as_file_names(node):
    rows: Rows = {**LOCAL, 9: (gid_of(HEAD), V2), 10: (gid_of("198.51.100.9"), V2), 11: (gid_of("198.51.100.10"), V2)}
    resolution = node.resolve({HCA: Hca(rows, addresses=[f"{HEAD}/24", "198.51.100.9/24", "198.51.100.10/24"])})
    assert resolution["members"][0]["usable"] == [9, 10, 11]


def test_the_fabric_address_row_is_preferred_to_a_lower_index(node):
    rows: Rows = {2: (gid_of("198.51.100.9"), V2), 7: (gid_of(HEAD), V2)}
    assert node.resolve({HCA: Hca(rows, addresses=["198.51.100.9/24", f"{HEAD}/24"])})["gid_index"] == 7


def test_the_lowest_common_index_is_taken_when_the_fabric_row_is_not_common(node):
    mine: Rows = {3: (gid_of("198.51.100.9"), V2), 5: (gid_of("198.51.100.8"), V2), 6: (gid_of(HEAD), V2)}
    its: Rows = {3: (gid_of(TWIN_IP), V2), 5: (gid_of("203.0.113.8"), V2)}
    hcas = {
        HCA: Hca(mine, addresses=[f"{HEAD}/24", "198.51.100.9/24", "198.51.100.8/24"]),
        TWIN: Hca(its, TWIN_NETDEV, [f"{TWIN_IP}/24", "203.0.113.8/24"]),
    }
    assert node.resolve(hcas)["gid_index"] == 3


def test_twins_without_a_common_index_are_refused_with_both_tables(node):
    for mode in ("resolve", "pin"):
        refusal = node.refusal(pair(T_HEAD, T_TWIN, f"{TWIN_IP}/24"), gid_index=mode)
        assert "no GID index is usable on every HCA" in str(refusal)
        assert f"{HCA} port 1: 3; {TWIN} port 1: 6" in str(refusal)
        assert str(refusal).count("verdict") == 2
        assert "gid_index: unset" in str(refusal)


def test_unset_accepts_twins_without_a_common_index(node):
    resolution = node.resolve(pair(T_HEAD, T_TWIN, f"{TWIN_IP}/24"), gid_index="unset")
    assert resolution["gid_index"] is None
    assert [member["usable"] for member in resolution["members"]] == [[3], [6]]


def test_unset_still_refuses_an_hca_without_a_usable_row(node):
    refusal = node.refusal({HCA: Hca(T_HEAD), TWIN: Hca(T_NOIP, TWIN_NETDEV, [])}, "roce", "unset")
    assert "no GID row that NCCL can use" in str(refusal)


def test_a_forced_index_must_be_usable_on_every_hca(node):
    hcas = pair(T_HEAD, T_TWIN, f"{TWIN_IP}/24")
    assert node.resolve(hcas, f"={HCA}", 3)["gid_index"] == 3
    refusal = node.refusal(hcas, None, 3)
    assert "gid_index 3 is not usable on every HCA" in str(refusal)
    assert str(refusal).count("verdict") == 2


def test_an_index_that_is_not_the_fabric_address_is_noted(node):
    rows: Rows = {1: (gid_of("169.254.7.2"), V2), 2: (gid_of(HEAD), V2)}
    hcas = {HCA: Hca(rows, addresses=["169.254.7.2/16", f"{HEAD}/24"])}
    assert node.resolve(hcas)["notes"] == []
    assert node.resolve(hcas, None, 1)["notes"] == [f"index 1 is 169.254.7.2, not {HEAD}: the peers may not reach that"]


def test_a_row_past_a_long_hole_is_found(node):
    rows: Rows = {**LOCAL, 2: (gid_of(HEAD), V1), 200: (gid_of(HEAD), V2)}
    assert node.resolve({HCA: Hca(rows, slots=256)})["gid_index"] == 200


def test_a_vlan_on_the_netdev_has_its_rows_in_the_same_table(node):
    rows: Rows = {**LOCAL, **both(2, gid_of(TWIN_IP)), 40: (gid_of(HEAD), V2)}
    vlan = f"{NETDEV}.7"
    node.table({HCA: Hca(rows, addresses=[f"{TWIN_IP}/24"])}, {vlan: [f"{HEAD}/24"]})
    root = node.root / "1/class"
    (root / f"infiniband/{HCA}/ports/1/gid_attrs/ndevs/40").write_text(vlan + "\n")
    resolution = resolve(sysfs.read_table(), HEAD)
    assert (resolution["ifname"], resolution["gid_index"], resolution["members"][0]["usable"]) == (vlan, 40, [3, 40])
