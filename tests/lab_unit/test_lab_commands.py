"""The lab's commands without a node: refusals, faults, fabric addresses, waits, the status table."""

import json
import os
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab import cli, fabric, faults, report, status
from lab.containers import docker
from lab.containers.pair import ContainerPair
from lab.place import CONTAINERS, HEAD, KINDS, MACHINES, NODES, PAIRS, WORKER, Place
from lab.report import LabError


def test_the_shipped_addresses_give_the_nodes_different_gid_indexes():
    rows = {
        node: [[str(address.ip) for address in port.addresses].index(f"192.168.{100 + at}.{node.rank + 1}") + 1
               for at, port in enumerate(fabric.shipped_ports(node))]
        for node in NODES
    }  # fmt: skip
    assert rows == {HEAD: [1, 1], WORKER: [2, 2]}


def test_no_two_ports_of_a_node_share_a_network():
    for node in NODES:
        networks = [address.network for port in fabric.shipped_ports(node) for address in port.addresses]
        assert not any(one.overlaps(two) for at, one in enumerate(networks) for two in networks[at + 1 :])


def test_an_address_without_a_length_is_a_24():
    assert fabric.parse_addresses(["10.9.9.2", "169.254.7.2/16"]) == [
        IPv4Interface("10.9.9.2/24"),
        IPv4Interface("169.254.7.2/16"),
    ]


def test_every_bad_address_is_named():
    with pytest.raises(LabError) as refusal:
        fabric.parse_addresses(["10.9.9.2", "10.9.9.300", "fe80::1", "10.9.9.2/16"])
    message = str(refusal.value)
    assert "10.9.9.300:" in message
    assert "fe80::1:" in message
    assert "10.9.9.2/16: given twice" in message


@pytest.mark.parametrize(
    ("first", "twin"),
    [("192.168.100.2/24", "192.168.101.2/24"), ("169.254.7.2/16", "169.254.8.2/24"), ("10.9.9.2/30", "10.9.10.2/30")],
)
def test_the_twin_port_gets_the_next_network(first, twin):
    assert str(fabric.on_twin(IPv4Interface(first))) == twin


def test_faults_are_kept_by_rank_and_taken_away_one_by_one(tmp_path):
    place = Place(tmp_path / "new" / "lab")
    faults.put(place, 0, "slow")
    faults.put(place, 1, "die-at-load")
    assert json.loads(place.faults.read_text()) == {"0": "slow", "1": "die-at-load"}
    faults.put(place, 0, "none")
    assert faults.read(place) == {"1": "die-at-load"}
    faults.clear(place)
    assert json.loads(place.faults.read_text()) == {}


def test_a_fault_that_the_stand_in_does_not_know_is_refused_with_those_it_knows(tmp_path):
    with pytest.raises(LabError, match="die-at-load, hang-at-load"):
        faults.put(Place(tmp_path), 0, "explode")
    assert not Place(tmp_path).faults.exists()


@pytest.fixture(params=KINDS)
def lab(tmp_path, monkeypatch, request):
    """A lab of each kind that was never up, on a host without a Docker daemon."""
    monkeypatch.setenv("SPARK_LAB", str(tmp_path / "lab"))
    monkeypatch.setenv("SPARK_LAB_SHARED", str(tmp_path / "lab"))
    monkeypatch.setenv("SPARK_STACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LAB_ACCEL", "tcg")
    monkeypatch.setattr(docker, "find", lambda: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    place = Place(tmp_path / "lab", request.param)
    place.write_down()
    return place


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fault", "2", "slow"], "RANK is 0 or 1"),
        (["fault", "clear", "slow"], "lab fault clear"),
        (["reset", "other"], "no state `other`"),
        (["set", "head", "mem_available_gib=3"], "head is not running"),
        (["snapshot", "clean"], "choose another name"),
        (["ssh", "head", "true"], "head is not running: lab/lab up"),
        (["power-cut", "worker"], "worker is off already"),
        (["power-on", "worker"], "never started: lab/lab up"),
        (["sudo", "head", "off"], "head is not running"),
        (["addresses", "head"], "head is not running"),
    ],
)
def test_a_command_that_cannot_work_says_why_and_the_way_out(lab, capsys, words, says):
    assert cli.main(words) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["ssh", "tail"], ["cable", "away"], ["snapshot", "a b"], ["fault", "0", "explode"], []]
)
def test_wrong_words_are_usage_errors(lab, capsys, words):
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2


def test_status_of_a_lab_that_was_never_up_is_a_table_and_a_failure(lab, capsys):
    assert cli.main(["status"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("not made") == 2
    assert f"states    {'none' if lab.kind == MACHINES else 'clean'}" in shown
    assert f"nodes     {lab.kind}" in shown


def test_a_pair_of_one_kind_is_not_taken_for_the_other(lab, capsys, monkeypatch):
    monkeypatch.setattr("lab.pair.of", lambda place: SimpleNamespace(power=lambda node: "off"))
    other = next(kind for kind in KINDS if kind != lab.kind)
    assert cli.main(["up", "--nodes", other]) == 1
    assert f"this lab's pair is made of {lab.kind}" in capsys.readouterr().err


def test_pairs_side_by_side_share_no_address():
    places = [Place(Path("/lab"), CONTAINERS, number) for number in range(PAIRS)]
    networks = [IPv4Network(place.subnet) for place in places]
    assert not any(one.overlaps(two) for at, one in enumerate(networks) for two in networks[at + 1 :])
    for place, network in zip(places, networks, strict=True):
        own = [place.control, *(place.ssh_address(node)[0] for node in NODES)]
        assert len(set(own)) == 3
        assert all(IPv4Address(address) in list(network.hosts()) for address in own)


def test_without_root_node_containers_are_refused_with_both_ways_out(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError) as refusal:
        docker.ensure()
    assert "need root" in str(refusal.value)
    assert "sudo -E -s" in str(refusal.value)
    assert "--nodes machines" in str(refusal.value)


def test_without_a_docker_daemon_and_a_way_to_start_one_the_refusal_names_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_LAB_SHARED", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(docker, "find", lambda: None)
    monkeypatch.setattr(docker, "on_path", lambda name: None if name == "dockerd" else f"/usr/bin/{name}")
    with pytest.raises(LabError, match=r"no Docker daemon answers here, and dockerd is not installed(.|\n)*make setup"):
        docker.ensure()


def test_a_process_that_took_the_pid_of_the_labs_daemon_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_LAB_SHARED", str(tmp_path))
    own = docker.OwnDaemon()
    monkeypatch.setattr(own, "runtime", tmp_path)
    (tmp_path / "docker.pid").write_text(f"{os.getpid()}\n")
    assert own.pid() is None


def test_names_outside_the_labs_folder_are_its_own(tmp_path):
    names = {ContainerPair(Place(tmp_path / folder)).name("head") for folder in ("one", "two")}
    assert len(names) == 2
    assert all(name.startswith("spark-lab-") for name in names)


def test_an_unknown_accelerator_is_refused(lab, capsys, monkeypatch):
    if lab.kind != MACHINES:
        pytest.skip("of machines")
    monkeypatch.setenv("LAB_ACCEL", "warp")
    assert cli.main(["status"]) == 1
    assert "LAB_ACCEL is 'warp': it may be kvm or tcg" in capsys.readouterr().err


def test_a_gid_index_is_that_of_the_nodes_own_address_and_missing_ones_show():
    tables = {"roceP2p1s0f1": [[1, "169.254.8.2"]], "rocep1s0f1": [[1, "169.254.7.2"], [2, "192.168.100.2"]]}
    assert status.gid_indexes(WORKER, tables) == {"rocep1s0f1": "2", "roceP2p1s0f1": "none"}


def clock(step: float):
    """A clock that goes on by `step` each time it is read."""
    now = -step

    def read() -> float:
        nonlocal now
        now += step
        return now

    return read


def test_a_wait_ends_at_its_limit_with_its_name_and_the_evidence():
    with pytest.raises(LabError, match=r"head: ssh: not within 5 s\n  last lines"):
        report.wait_for(
            "head: ssh", lambda: None, limit_s=5, evidence=lambda: "  last lines", sleep=lambda _: None, clock=clock(1)
        )


def test_a_long_wait_gives_a_sign_of_life(capsys):
    answers = iter([None] * 30 + ["there"])
    answer = report.wait_for("head: ssh", lambda: next(answers), limit_s=60, sleep=lambda _: None, clock=clock(1))
    assert answer == "there"
    progress = capsys.readouterr().err
    assert progress.count("still waiting: head: ssh") == 3
    assert "of at most 60 s" in progress


def test_work_on_both_machines_reports_every_failure():
    def work(node):
        raise LabError(f"{node.name} failed")

    with pytest.raises(LabError, match="head failed\nworker failed"):
        report.each(work, NODES)


def test_results_come_in_the_order_of_the_machines():
    assert report.each(lambda node: node.name, NODES) == ["head", "worker"]
