"""The shipped facts.gather, run as it is over SSH on a made-up Spark; then its probes one by one."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from facts import gather, processes
from facts.document import ContainerFacts, ListenerFacts, Problem
from gid.lookup import resolve
from hub.files import INDEX
from loader import payload
from tests.unit.node.facts.fake_dockerd import CONTAINERS, IMAGE, RANK_LABELS, SECRET, Dockerd
from tests.unit.node.node_tree import HCA, HEAD, NETDEV, T_HEAD, Hca, build
from tests.unit.node.snapshots import ENCODER, REPO, REVISION, names, shard, snapshot


def tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """The document of one run over SSH's way, and its words."""
    root = tmp_path_factory.mktemp("spark")
    home = root / "home"
    model = snapshot(home / ".cache/huggingface/hub").parent.parent
    (model / f"snapshots/{REVISION}" / names(3)[1]).resolve().unlink()
    (home / ".local/share/spark-stack/dev").mkdir(parents=True)
    (home / ".local/share/spark-stack/dev/.spark-stack").write_text("dev\n")
    tool(root / "bin", "sudo", "exit 1")
    apps = f'*compute*) echo "{os.getpid()}, /usr/bin/python3, [N/A]";;'
    tool(root / "bin", "nvidia-smi", f'case "$*" in {apps} *) echo "580.95.05";; esac')
    with socket.create_server(("127.0.0.1", 0)) as listener, Dockerd(root / "d.sock", CONTAINERS):
        port = listener.getsockname()[1]
        environment = {
            **build(root / "sys", {HCA: Hca(T_HEAD)}),
            "HOME": str(home),
            "PATH": f"{root}/bin:/usr/bin:/bin",
            "DOCKER_HOST": f"unix://{root}/d.sock",
        }
        inputs = {"stack": "dev", "image": IMAGE, "ports": [port], "a new key": 1}
        inputs |= {"repo": REPO, "revision": REVISION, "shards": 3, "encoding_file": ENCODER}
        done = subprocess.run(
            [sys.executable, "-I", "-", json.dumps(inputs)],
            input=payload("facts.gather"),
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    return done.stdout, {"port": port, "root": root}


@pytest.fixture(scope="module")
def document(facts):
    text = facts[0]
    assert text.startswith("---spark-facts---\n")
    assert text.endswith("\n---end---\n")
    return json.loads(text.partition("\n")[2].removesuffix("---end---\n"))


def test_one_json_document_stands_between_the_markers_and_nothing_failed(document):
    assert document["problems"] == []
    assert document["kernel"] == os.uname().release
    assert document["memory"]["MemTotal"] > document["memory"]["MemAvailable"] > 0


def test_the_document_is_a_table_that_the_control_host_resolves(document):
    assert document["interfaces"][NETDEV] == [{"ip": HEAD, "prefix": 24}]
    assert [row["index"] for row in document["hcas"][0]["rows"]] == [0, 1, 2, 3]
    assert resolve(document, HEAD)["gid_index"] == 3


def test_ours_are_listed_in_any_state_and_foreign_containers_while_they_hold_the_gpu(document):
    listed = {each["name"]: each for each in document["containers"]}
    assert sorted(listed) == ["someones-vllm", "spark-dev-rank0", "spark-dev-rank1", "trainer"]
    assert (listed["trainer"]["gpu"], listed["someones-vllm"]["vllm"]) == (True, True)
    assert listed["spark-dev-rank0"] == {
        "id": CONTAINERS[0]["Id"],
        "name": "spark-dev-rank0",
        "labels": RANK_LABELS,
        "running": True,
        "exit_code": 0,
        "oom_killed": False,
        "error": None,
        "gpu": True,
        "vllm": False,
    }
    ended = listed["spark-dev-rank1"]
    assert (ended["running"], ended["exit_code"], ended["oom_killed"]) == (False, 137, True)


def test_no_environment_command_or_foreign_label_of_a_container_leaves_the_node(facts):
    assert "spark-dev-rank0" in facts[0]
    assert SECRET not in facts[0]


def test_docker_and_image_are_described(document, facts):
    assert document["docker"] == {
        "status": "ok",
        "detail": None,
        "version": "27.5.1",
        "api_version": "1.47",
        "root_dir": str(facts[1]["root"]),
        "storage_driver": "overlay2",
        "cli": shutil.which("docker") is not None,
        "elsewhere": None,
    }
    variables = ["GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "VLLM_HOST_IP"]
    assert document["image"] == {"present": True, "architecture": "arm64", "env": variables}
    assert document["disk"]["docker_root"]["free_bytes"] > 0


def test_a_listener_is_named_by_its_process(document, facts):
    listener = next(each for each in document["listeners"] if each["pid"] == os.getpid())
    assert (listener["port"], listener["address"]) == (facts[1]["port"], "127.0.0.1")
    assert listener["process"] == Path("/proc/self/comm").read_text().strip()


def test_the_gpu_is_described_although_unified_memory_hides_what_is_used(document):
    assert document["gpu"]["driver"] == "580.95.05"
    (app,) = document["gpu"]["apps"]
    assert (app["pid"], app["name"], app["used_mib"]) == (os.getpid(), "/usr/bin/python3", None)


def test_the_cache_path_is_the_nodes_own(document, facts):
    disk = document["disk"]["hf_cache"]
    assert disk["path"] == f"{facts[1]['root']}/home/.cache/huggingface"
    assert disk["unwritable"] is None and disk["free_bytes"] > 0


def test_what_the_checkpoint_lacks_is_listed_and_what_is_here_is_counted(document, facts):
    folder = facts[1]["root"] / f"home/.cache/huggingface/hub/models--owner--name/snapshots/{REVISION}"
    (gap,) = document["checkpoint"]["gaps"]
    assert gap.startswith(f"{names(3)[1]} ")
    here = 2 * len(shard()) + (folder / INDEX).stat().st_size + (folder / ENCODER).stat().st_size
    assert document["checkpoint"]["bytes_present"] == here
    assert document["checkpoint"]["revisions"] == [REVISION]


def test_our_folder_is_known_by_its_mark(document):
    assert document["folder"] is True
    assert gather.assemble(*gather.gather(gather.probes_of({"stack": "no-such-stack"}))).folder is False


# --- the command's edges ---


def test_a_probe_that_breaks_or_hangs_costs_only_itself(monkeypatch):
    monkeypatch.setattr(gather, "LIMIT_S", 0.2)
    hung = threading.Event()

    def breaks() -> object:
        raise KeyError("gone")

    began = time.monotonic()
    results, problems = gather.gather({"good": lambda: 1, "breaks": breaks, "hangs": lambda: hung.wait(5)})
    assert time.monotonic() - began < 2
    hung.set()
    assert results == {"good": 1, "breaks": None, "hangs": None}
    assert problems == [Problem("breaks", "KeyError: 'gone'"), Problem("hangs", "no answer within 0 s")]


def test_a_command_that_is_not_there_or_fails_says_so(tmp_path):
    with pytest.raises(OSError, match="no-such-tool is not on PATH"):
        processes.run("no-such-tool")
    tool(tmp_path, "broken", "echo first; echo 'no devices were found'; exit 9")
    with pytest.raises(OSError, match="broken ended with 9: no devices were found"):
        processes.run(str(tmp_path / "broken"))


def test_a_late_sudo_is_not_known_instead_of_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(processes, "COMMAND_LIMIT_S", 0.2)
    tool(tmp_path, "sudo", "exec sleep 5")
    results, problems = gather.gather({"sudo_n": gather.may_sudo})
    assert (results, [problem.probe for problem in problems]) == ({"sudo_n": None}, ["sudo_n"])
    tool(tmp_path, "sudo", "echo 'sudo: a password is required' >&2; exit 1")
    monkeypatch.setattr(processes, "COMMAND_LIMIT_S", 10.0)
    assert gather.may_sudo() is False


# --- ports, disk ---


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")]
)
def test_listeners_of_both_families_are_seen_with_their_address(family, address):
    try:
        listener = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {address}")
    with listener, socket.create_connection(listener.getsockname()[:2]), listener.accept()[0]:
        port, inode = listener.getsockname()[1], str(os.fstat(listener.fileno()).st_ino)
        sockets = processes.listening({port})
    # the connection to it is none, and another process may listen on this port of another address
    assert [entry for entry in sockets if entry[:2] == (port, address)] == [(port, address, inode)]
    assert inode not in [entry[2] for entry in processes.listening({port})]


def test_root_is_asked_for_a_foreign_process_only_while_no_rank_of_ours_runs(monkeypatch):
    asked: list[str] = []

    def answer(inode: str) -> int:
        asked.append(inode)
        return os.getpid()

    monkeypatch.setattr(processes, "owner_as_root", answer)
    blank = dict.fromkeys(["docker", "table", "gpu", "system", "user", "memory", "image"])
    blank |= dict.fromkeys(["hf_cache", "checkpoint", "job", "nfs", "patches", "folder", "earlyoom", "links"])
    for running in (True, False):
        listeners = [(ListenerFacts(8888, "0.0.0.0"), "42")]
        ours = [ContainerFacts("a1", "spark-dev-rank0", running, {"spark.stack": "dev"})]
        facts = gather.assemble({**blank, "containers": (ours, []), "sudo_n": True, "listeners": listeners}, [])
        assert facts.listeners and facts.listeners[0].pid == (None if running else os.getpid())
    assert asked == ["42"]


def test_a_cache_that_is_not_there_yet_has_the_disk_of_its_nearest_folder(tmp_path):
    facts = gather.cache_disk(f"{tmp_path}/raid/huggingface", REPO)
    system = os.statvfs(tmp_path)
    assert 0 < facts.free_bytes <= system.f_blocks * system.f_frsize and facts.unwritable is None


def test_the_first_folder_that_refuses_a_write_is_named(tmp_path, monkeypatch):
    blobs = str(snapshot(tmp_path / "hub").parent.parent / "blobs")
    assert gather.cache_disk(str(tmp_path), REPO).unwritable is None
    # root may write anywhere, so the answer of the kernel is put in place of a mode
    monkeypatch.setattr(os, "access", lambda path, mode: path != blobs)
    facts = gather.cache_disk(str(tmp_path), REPO)
    assert facts.unwritable == blobs


def test_memory_of_a_kernel_without_cma_is_null_not_zero(monkeypatch):
    monkeypatch.setattr(gather, "read_text", lambda path: "MemTotal:  100 kB\nCmaTotal:  7 kB")
    facts = gather.memory()
    assert (facts.MemTotal, facts.CmaTotal, facts.CmaFree) == (100, 7, None)
