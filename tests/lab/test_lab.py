"""The lab's own commands on node-containers: what belongs to a node, states, and that nothing is left behind."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.containers import docker
from lab.containers.pair import ContainerPair
from lab.place import HEAD
from tests.lab.pair import LAB, NODES, PROJECT_DIR, Stack, gid_row, lab, on, place, words_of

PORT = "/sys/class/infiniband/rocep1s0f1/ports/1"


def carrier(node: str) -> tuple[str, str]:
    """The netdev's carrier and the state of its HCA's port, as the node sees them."""
    found = on(node, f"cat /sys/class/net/enp1s0f1np1/carrier {PORT}/state").splitlines()
    return found[0], found[1]


def test_what_a_kernel_owns_is_the_nodes_own_and_new_at_each_boot(stack: Stack) -> None:
    before = {node: on(node, "cat /proc/sys/kernel/random/boot_id") for node in NODES}
    assert len(set(before.values())) == 2
    lab("reboot", "worker")
    after = {node: on(node, "cat /proc/sys/kernel/random/boot_id") for node in NODES}
    assert after["head"] == before["head"] and after["worker"] != before["worker"]
    assert on("worker", "cat /sys/class/net/enP2p1s0f1np1/mtu").strip() == "9000"
    on("head", "ping -c 1 -W 5 -M do -s 8900 192.168.101.2")


def test_a_preview_judges_the_memory_the_gpu_and_the_disk_that_a_test_gives_a_node(stack: Stack) -> None:
    lab("set", "head", "mem_available_gib=50", "gpu_name=NVIDIA A100")
    lab("set", "worker", "disk_mib=20")
    try:
        shown = words_of(stack.preview(check=False).text)
        assert "head: 50.0 GiB of memory are available" in shown
        assert "and /home/spark/.cache/huggingface has 20.0 MiB free" in shown
        assert on("head", "nvidia-smi --query-gpu=name --format=csv,noheader").strip() == "NVIDIA A100"
    finally:
        lab("set", "head", "mem_available_gib=116", "gpu_name=NVIDIA GB10")
        lab("set", "worker", "disk_mib=0")


def test_a_nodes_wall_clock_can_be_wrong(stack: Stack) -> None:
    def ahead() -> int:
        head, worker = (int(on(node, "date +%s")) for node in NODES)
        return worker - head

    lab("set", "worker", "clock_s=3600")
    assert 3590 < ahead() < 3610
    lab("set", "worker", "clock_s=0")
    assert abs(ahead()) < 10


def test_a_gid_table_follows_the_addresses_and_keeps_the_rows_of_what_stays(stack: Stack) -> None:
    before = gid_row("head")
    steps = "ip addr add 10.9.9.2/24 dev {0}; ip addr del 192.168.100.1/24 dev {0}; ip addr add 10.9.8.2/24 dev {0}"
    on("head", steps.format("enp1s0f1np1") + "; ip addr add 192.168.100.1/24 dev enp1s0f1np1; sleep 1", root=True)
    assert gid_row("head") > before
    on("head", "ip addr del 10.9.9.2/24 dev enp1s0f1np1; ip addr del 10.9.8.2/24 dev enp1s0f1np1", root=True)


def test_a_cable_that_is_out_and_a_peer_without_power_take_the_carrier_and_nothing_else(stack: Stack) -> None:
    assert carrier("head") == ("1", "4: ACTIVE")
    lab("cable", "out")
    assert [carrier(node) for node in NODES] == [("0", "1: DOWN")] * 2
    lab("cable", "in")
    assert [carrier(node) for node in NODES] == [("1", "4: ACTIVE")] * 2
    lab("power-cut", "worker")
    assert carrier("head") == ("0", "1: DOWN")
    assert "192.168.100.1/24" in on("head", "ip -4 -o addr show dev enp1s0f1np1")
    lab("power-on", "worker")
    assert carrier("head") == ("1", "4: ACTIVE")


def test_a_kept_state_brings_back_the_disks_of_both_nodes(stack: Stack) -> None:
    for node in NODES:
        on(node, f"echo {node} >~/kept; docker volume create kept")
    lab("snapshot", "two-files")
    for node in NODES:
        on(node, "rm ~/kept; docker volume rm kept")
    lab("reset", "two-files")
    for node in NODES:
        assert on(node, "cat ~/kept; docker volume ls -q").split() == [node, "kept"]
    lab("reset")
    assert on("head", "ls ~/kept 2>/dev/null; docker volume ls -q; true") == ""


@pytest.fixture
def another(stack: Stack, guard: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[ContainerPair]:
    """A second pair beside this file's pair."""
    root = place().root.parent / "another"
    guard(root)
    monkeypatch.setenv("SPARK_LAB", str(root))
    lab("up", "--nodes", "containers", "--pair", "15", "--fresh")
    yield ContainerPair(place())
    lab("down", "--discard")


def left(pair: ContainerPair) -> list[str]:
    """Everything that a pair has on the daemon."""
    daemon = docker.find()
    assert daemon is not None, "this file's own pair runs on it"
    return [name for kind in ("container", "network", "volume") for name in daemon.ours(kind, pair.place.identity)]


def veths() -> set[str]:
    links = subprocess.run(["ip", "-json", "link", "show", "type", "veth"], capture_output=True, text=True, check=True)
    return {link["ifname"] for link in json.loads(links.stdout)}


def test_down_leaves_nothing_of_the_pair_and_all_of_everything_else(another: ContainerPair) -> None:
    daemon = docker.find()
    assert daemon is not None
    image = daemon.run("image", "ls", "--quiet", "--filter", f"label={docker.LABEL}=image").split()[0]
    foreign = f"{another.name('head')}-theirs"
    daemon.run("run", "--detach", "--name", foreign, "--network", "none", image, "sleep", "600")
    try:
        assert len(left(another)) == 6
        during = veths()
        field = "{{.GraphDriver.Data.MergedDir}}"
        folders = [daemon.run("inspect", "--format", field, another.name(node)) for node in NODES]
        assert [folder for folder in folders if folder not in Path("/proc/mounts").read_text()] == []
        lab("down", "--discard")
        assert left(another) == []
        assert len(during - veths()) >= 2
        assert daemon.run("inspect", "--format", "{{.State.Running}}", foreign) == "true"
        assert [folder for folder in folders if folder in Path("/proc/mounts").read_text()] == []
        lab("down", "--discard")
    finally:
        daemon.run("rm", "--force", foreign)


def test_a_process_that_is_killed_takes_its_pair_with_it(another: ContainerPair) -> None:
    guarded = "import subprocess, sys; subprocess.Popen([sys.argv[1], 'guard'], stdin=subprocess.PIPE); input()"
    process = subprocess.Popen(["python3", "-c", guarded, str(LAB)], stdin=subprocess.PIPE, cwd=PROJECT_DIR)
    assert len(left(another)) == 6
    process.kill()
    process.communicate()
    end = time.monotonic() + 120
    while left(another):
        assert time.monotonic() < end, f"still there: {left(another)}"
        time.sleep(0.5)


def listens(address: str) -> bool:
    try:
        socket.create_connection((address, 8888), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_nothing_of_a_node_is_forwarded_to_the_control_host(stack: Stack) -> None:
    addresses = ("127.0.0.1", place().ssh_address(HEAD)[0])
    before = [listens(address) for address in addresses]
    on("head", "nohup python3 -m http.server 8888 --bind 127.0.0.1 >/dev/null 2>&1 & sleep 1")
    assert on("head", "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8888/").strip() == "200"
    assert [listens(address) for address in addresses] == before
    on("head", "pkill -f 'http.server 8888'")
