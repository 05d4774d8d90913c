"""A GID index that drifts over a reboot is found again; a node without a usable row stops `up` before any change."""

import pytest

from tests.lab.pair import Stack, ask, environment_of, gid_row, identities, lab, on, words_of


@pytest.fixture(scope="module")
def pair(stack: Stack) -> Stack:
    stack.up()
    return stack


def test_an_index_that_drifted_over_a_reboot_is_used_by_the_next_start(pair: Stack) -> None:
    before = gid_row("worker")
    lab("addresses", "worker", "192.168.100.2/24")
    lab("reboot", "worker")
    after = gid_row("worker")
    assert after != before
    shown = words_of(pair.up().text)
    assert "worker's rank" in shown, "the reason is on the screen: its rank did not survive the reboot"
    assert environment_of("worker", "spark-dev-rank1")["NCCL_IB_GID_INDEX"] == str(after)
    assert pair.outputs()["gid_index"] == {"head": gid_row("head"), "worker": after}
    assert "4183" in ask()


def test_a_node_without_a_usable_row_is_refused_with_the_table_of_each_member(pair: Stack) -> None:
    before = identities()
    held = on("worker", "ip -4 -o addr show dev enP2p1s0f1np1", root=True)
    on("worker", "ip addr flush dev enP2p1s0f1np1", root=True)
    try:
        done = pair.up(lambda cluster: cluster["nodes"][1].update(hca="rocep1s0f1,roceP2p1s0f1"), check=False)
        shown = words_of(done.text)
        assert done.code != 0
        assert "worker: no GID row that NCCL can use" in shown
        assert "rocep1s0f1 port 1" in shown
        assert "roceP2p1s0f1 port 1" in shown
        assert identities() == before, "nothing was changed"
    finally:
        for line in held.splitlines():
            on("worker", f"ip addr add {line.split()[3]} dev enP2p1s0f1np1", root=True)


def test_both_nodes_off_fail_soon_by_name_and_preview_all_the_same_with_facts_off(pair: Stack) -> None:
    lab("power-cut", "head")
    lab("power-cut", "worker")
    try:
        done = pair.preview(check=False)
        shown = words_of(done.text)
        assert done.code != 0
        # two dials of 8 s and the program itself, beside another pair
        assert done.seconds < 30
        assert "head: reading facts: SSH to lab-head" in shown
        assert "worker: reading facts: SSH to lab-worker" in shown
        without = pair.steps(lambda cluster: cluster.update(facts="off"))
        assert without == {}, "no change is shown that is none"
        changed = pair.steps(lambda cluster: (cluster.update(facts="off"), cluster.update(engine={"max_num_seqs": 4})))
        assert {name for name, step in changed.items() if "replace" in step} == {"head-engine", "worker-engine"}
    finally:
        lab("power-on", "head")
        lab("power-on", "worker")
    pair.up()
    assert "4183" in ask()
