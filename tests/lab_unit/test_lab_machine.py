"""A machine's QEMU command and pid file, and the image's files that must agree with them."""

import importlib.util
import io
import itertools
import lzma
import os
import shlex
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from lab import access, fabric
from lab.machines import image
from lab.machines.host import is_taken, missing_packages, virtualizes
from lab.machines.machine import FABRIC_PORTS, Machine
from lab.place import CONTAINERS, HEAD, MACHINES, NODE_ROOT, NODES, WORKER, Node, Place


def machine(node: Node, root: Path, accelerator: str = "tcg") -> Machine:
    return Machine(Place(root, MACHINES), node, accelerator, Path("/image"))


def option(command: list[str], name: str) -> list[str]:
    return [value for key, value in itertools.pairwise(command) if key == name]


def test_each_end_of_a_fabric_link_sends_to_where_the_other_listens(tmp_path):
    ends = [
        dict(part.split("=", 1) for part in link.split(",")[1:])
        for node in NODES
        for link in option(machine(node, tmp_path).command(), "-netdev")
        if link.startswith("dgram")
    ]
    sent = {end["remote.path"] for end in ends}
    assert len(sent) == 2 * len(FABRIC_PORTS)
    assert sent == {end["local.path"] for end in ends}


def test_no_socket_path_grows_with_the_folder_of_the_checkout():
    deep = Path("/a-long-folder-name" * 12)
    long = [word for node in NODES for word in machine(node, deep).command() if str(deep) in word]
    assert long == []
    assert len(str(Place(deep).control_sockets)) < 50, "ssh adds 58 bytes to it, and 107 is the limit"


def test_the_image_names_the_macs_that_the_machines_have():
    for node in NODES:
        assert [port.mac for port in fabric.shipped_ports(node)] == [node.mac(port) for port in FABRIC_PORTS]


def test_the_macs_of_the_pair_are_all_different():
    assert len({node.mac(port) for node in NODES for port in (0, 1, 2)}) == 6


def test_nothing_but_ssh_is_forwarded_and_only_on_loopback(tmp_path):
    forwarded = {
        node.name: [
            word
            for netdev in option(machine(node, tmp_path).command(), "-netdev")
            for word in netdev.split(",")
            if word.startswith("hostfwd=")
        ]
        for node in NODES
    }
    assert forwarded == {"head": ["hostfwd=tcp:127.0.0.1:2201-:22"], "worker": ["hostfwd=tcp:127.0.0.1:2202-:22"]}


def test_a_state_of_one_accelerator_is_never_offered_to_the_other(tmp_path):
    assert machine(HEAD, tmp_path, "kvm").disk != machine(HEAD, tmp_path, "tcg").disk


def test_a_state_is_only_offered_to_the_hardware_it_was_kept_on(tmp_path, monkeypatch):
    ours = machine(HEAD, tmp_path)
    kept = {ours.tag("clean"), "stage@00000000", "older"}
    monkeypatch.setattr(Machine, "tags", lambda self: kept)
    assert ours.states() == {"clean"}
    other_cpu = machine(HEAD, tmp_path, "kvm")
    assert other_cpu.states() == set()
    monkeypatch.setattr("lab.machines.host.qemu_version", lambda: "QEMU emulator version 99")
    assert ours.states() == set()


def test_the_folder_of_the_lab_is_not_part_of_the_hardware(tmp_path):
    assert machine(HEAD, tmp_path).hardware == machine(HEAD, tmp_path / "other").hardware


def test_a_pid_file_that_names_another_process_is_not_our_machine(tmp_path):
    ours = machine(HEAD, tmp_path)
    foreign = subprocess.Popen([sys.executable, "-c", "input()", "spark-head"], stdin=subprocess.PIPE, cwd=tmp_path)
    try:
        ours.pid_file.write_text(str(foreign.pid))
        assert ours.pid() is None
        ours.kill()
        assert foreign.poll() is None, "it was left alone"
    finally:
        foreign.communicate(b"\n")


def test_our_qemu_is_found_by_its_name_and_folder(tmp_path):
    lab = tmp_path / "lab"
    lab.mkdir()
    # bash's exec gives this stand-in the argv[0] of QEMU
    words = [
        "exec",
        "-a",
        "qemu-system-x86_64",
        sys.executable,
        "-c",
        "print(flush=True); input()",
        "-name",
        "spark-head",
    ]
    process = subprocess.Popen(
        ["bash", "-c", shlex.join(words)], cwd=lab, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        for node, root in ((HEAD, lab), (WORKER, lab), (HEAD, tmp_path)):
            machine(node, root).pid_file.write_text(str(process.pid))
        assert machine(HEAD, lab).pid() == process.pid
        assert machine(WORKER, lab).pid() is None, "another node's machine"
        assert machine(HEAD, tmp_path).pid() is None, "another lab's machine"
    finally:
        process.communicate(b"\n")


def test_the_kernel_is_told_which_node_it_is(tmp_path):
    for node in NODES:
        (line,) = option(machine(node, tmp_path).command(), "-append")
        assert f"lab.node={node.name}" in line.split()


def test_software_kvm_is_not_taken_for_hardware():
    assert virtualizes("processor : 0\nflags : fpu svm hypervisor\n")
    assert virtualizes("flags\t: fpu vmx\n")
    assert not virtualizes("flags : fpu hypervisor\nbugs : svm\n")
    assert not virtualizes("")


def test_all_missing_packages_are_named_at_once():
    present = {"ssh", "qemu-img", "ssh-keygen"}
    missing = missing_packages(lambda program: program if program in present else None, root=False)
    assert {"qemu-system-x86", "mmdebstrap", "cpio", "uidmap"} <= set(missing)
    assert "openssh-client" not in missing
    assert "qemu-utils" not in missing


def test_root_needs_no_user_namespace():
    assert missing_packages(lambda program: None if program == "newuidmap" else program, root=True) == []


def test_a_port_that_something_listens_on_is_taken(free_port):
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert is_taken(port)
    assert not is_taken(port)


def test_the_image_key_follows_bytes_names_and_modes(tmp_path):
    source = tmp_path / "image"
    source.mkdir()
    script = source / "build"
    script.write_text("one")
    keys = [image.key(source)]
    script.write_text("two")
    keys.append(image.key(source))
    script.chmod(0o755)
    keys.append(image.key(source))
    script.rename(source / "assemble")
    keys.append(image.key(source))
    assert len(set(keys)) == 4
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "vmlinux.pyc").write_text("made by running it")
    assert image.key(source) == keys[-1]


def test_what_a_node_runs_is_executable():
    roots = (NODE_ROOT, image.SOURCE / "root", image.SOURCE.parent.parent / "containers" / "root")
    folders = [root / name for root in roots for name in ("usr/bin", "usr/local/sbin")]
    programs = [file for folder in folders for file in folder.glob("*")]
    programs += [image.SOURCE / name for name in ("build", "assemble", "initrd-init")]
    assert len(programs) > 8
    assert [file for file in programs if not os.access(file, os.X_OK)] == []


def test_the_kernel_is_found_behind_bytes_that_only_look_like_one(tmp_path):
    spec = importlib.util.spec_from_file_location("vmlinux", image.SOURCE / "vmlinux.py")
    assert spec is not None and spec.loader is not None
    vmlinux = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(vmlinux)
    kernel = b"\x7fELF" + bytes(5000)
    packed = lzma.compress(kernel)
    assert vmlinux.extract(b"loader " + packed[:6] + b" no payload" + packed + b"trailing bytes") == kernel
    with pytest.raises(ValueError, match="no xz or zstd payload"):
        vmlinux.extract(b"loader " + lzma.compress(b"not a kernel"))


@pytest.mark.parametrize(
    ("words", "code", "answer"),
    [
        (["-L"], 0, "GPU 0: NVIDIA GB10 (UUID: GPU-5e1ab000-0000-4000-8000-000000000001)\n"),
        (
            ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
            0,
            "NVIDIA GB10, 580.95.05, [N/A]\n",
        ),
        (["--format=csv,noheader", "--query-gpu=memory.used"], 0, "[N/A]\n"),
        (["--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"], 0, ""),
        (["--query-gpu=hue"], 6, ""),
        (["--reset"], 6, ""),
    ],
)
def test_nvidia_smi_answers_as_on_a_gb10_and_refuses_the_rest(words, code, answer):
    command = [str(NODE_ROOT / "usr" / "bin" / "nvidia-smi"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (code, answer)


@pytest.mark.parametrize(
    ("kind", "addresses"),
    [
        (MACHINES, [("127.0.0.1", 2201), ("127.0.0.1", 2202)]),
        (CONTAINERS, [("10.0.2.5", 22), ("10.0.2.6", 22)]),
    ],
)
def test_ssh_config_holds_both_nodes_with_checked_keys_and_absolute_paths(tmp_path, monkeypatch, kind, addresses):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    place = Place(tmp_path / "with space", kind)
    place.root.mkdir()
    place.ssh_config.write_text(access.ssh_config(place, place.nodes))
    for node, (host, port) in zip(NODES, addresses, strict=True):
        command = ["ssh", "-F", str(place.ssh_config), "-G", node.alias]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
        found = dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)
        assert (found["hostname"], found["port"], found["user"]) == (host, str(port), "spark")
        assert found["stricthostkeychecking"] in ("yes", "true")
        assert found["userknownhostsfile"] == str(place.known_hosts)
        assert found["identityfile"] == str(place.key)
        assert found["controlpath"].startswith("/tmp/spark-lab-")


@pytest.mark.parametrize(("kind", "name"), [(MACHINES, "[127.0.0.1]:2201"), (CONTAINERS, "10.0.2.5")])
def test_known_hosts_name_the_port_where_it_is_another(tmp_path, kind, name):
    public = {HEAD: "ssh-ed25519 AAAA"}
    assert access.known_hosts(Place(tmp_path, kind), public) == f"{name} ssh-ed25519 AAAA\n"


@pytest.fixture
def own_keys(tmp_path, monkeypatch):
    """Use keys of the test's own, not those of the checkout's lab."""
    monkeypatch.setenv("SPARK_LAB_SHARED", str(tmp_path / "lab"))


@pytest.mark.skipif(not os.path.exists("/usr/bin/ssh-keygen"), reason="needs ssh-keygen of the lab's host packages")
def test_a_second_prepare_keeps_every_key(tmp_path, own_keys):
    place = Place(tmp_path / "lab")
    access.prepare(place)
    first = {path: path.read_bytes() for path in place.root.rglob("*") if path.is_file()}
    access.prepare(place)
    assert {path: path.read_bytes() for path in place.root.rglob("*") if path.is_file()} == first
    assert place.key.stat().st_mode & 0o077 == 0
    place.control_sockets.rmdir()


@pytest.mark.skipif(not os.path.exists("/usr/bin/ssh-keygen"), reason="needs ssh-keygen of the lab's host packages")
def test_a_seed_lets_the_pair_log_in_to_each_other_by_fabric_address(tmp_path, own_keys):
    place = Place(tmp_path / "lab")
    access.prepare(place)
    with tarfile.open(fileobj=io.BytesIO((place.root / "head.seed").read_bytes())) as seed:
        entries = {entry.name: entry for entry in seed.getmembers()}
        known = seed.extractfile("home/spark/.ssh/known_hosts")
        assert known is not None
        hosts = known.read().decode()
    worker_key = (place.keys / "worker_host.pub").read_text().split()[1]
    assert any(line.startswith("192.168.100.2 ") and worker_key in line for line in hosts.splitlines())
    assert entries["home/spark/.ssh/id_ed25519"].mode == 0o600
    assert entries["home/spark/.ssh/id_ed25519"].uid == 1000
    assert entries["etc/ssh/ssh_host_ed25519_key"].uid == 0
    place.control_sockets.rmdir()
