"""What the facts say of Docker: usable or which way out, whose containers, whose processes."""

import socket
import threading

import pytest

from facts import docker, gather, processes
from facts.document import GpuApp, ListenerFacts
from tests.unit.node.facts.fake_dockerd import CONTAINERS, GPUS, IMAGE, Dockerd


@pytest.fixture
def dockerd(tmp_path, monkeypatch):
    """A dockerd with the containers above, where DOCKER_HOST says."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/d.sock")
    with Dockerd(tmp_path / "d.sock", CONTAINERS) as server:
        yield server


# --- another daemon than the one that we read ---


@pytest.mark.parametrize(
    ("variables", "config", "elsewhere"),
    [
        ({}, None, None),
        ({}, '{"currentContext": "default"}', None),
        ({}, '{"currentContext": "rootless"}', "docker context rootless"),
        ({"DOCKER_CONTEXT": "lab"}, None, "docker context lab"),
        # as docker has it, a host wins over any context
        ({"DOCKER_HOST": "unix:///run/d.sock"}, '{"currentContext": "rootless"}', None),
        ({"DOCKER_HOST": "tcp://198.51.100.9:2375"}, None, "DOCKER_HOST=tcp://198.51.100.9:2375"),
        ({}, "[not JSON", None),
    ],
)
def test_what_sends_the_docker_program_elsewhere_is_told(tmp_path, monkeypatch, variables, config, elsewhere):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if config:
        (tmp_path / "config.json").write_text(config)
    assert docker.elsewhere() == elsewhere


# --- Docker's three ways to be unusable ---


@pytest.mark.parametrize(("installed", "status"), [(False, "missing"), (True, "down")])
def test_no_socket_means_missing_or_down(tmp_path, monkeypatch, installed, status):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(docker, "on_path", lambda program: installed)
    assert docker.read_status([]).status == status


def test_a_socket_that_nobody_serves_is_down(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/d.sock")
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(f"{tmp_path}/d.sock")
    facts = docker.read_status([])
    assert (facts.status, facts.version) == ("down", None)


def test_a_socket_that_closes_without_an_answer_is_down(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/d.sock")
    with socket.create_server(f"{tmp_path}/d.sock", family=socket.AF_UNIX) as activated:
        closer = threading.Thread(target=lambda: activated.accept()[0].close())
        closer.start()
        assert docker.read_status([]).status == "down"
        closer.join()


@pytest.mark.parametrize(
    ("session", "members", "reason"),
    [
        ([], [], "is not in group docker"),
        ([], ["ops"], "was added to group docker after"),
        (["docker"], ["ops"], "look at"),
    ],
)
def test_a_closed_socket_says_whether_the_user_or_the_session_is_to_blame(monkeypatch, session, members, reason):
    import grp
    import pwd

    class Closed(socket.socket):
        def connect(self, address: object) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "socket", Closed)
    monkeypatch.setattr(grp, "getgrnam", lambda name: grp.struct_group((name, "x", 999, members)))
    monkeypatch.setattr(
        pwd, "getpwuid", lambda uid: pwd.struct_passwd(("ops", "x", uid, uid, "", "/home/ops", "/bin/sh"))
    )
    facts = docker.read_status(session)
    assert facts.status == "denied"
    assert facts.detail and reason in facts.detail


def test_an_unusable_docker_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    facts = gather.assemble(*gather.gather(gather.probes_of({"image": IMAGE})))
    assert (facts.containers, facts.image) == (None, None)
    assert facts.docker and facts.docker.status in ("missing", "down")
    assert not {"docker", "containers", "image"} & {problem.probe for problem in facts.problems}


def test_an_image_that_is_not_here_is_absent(dockerd):
    assert docker.read_image(IMAGE.replace("aaaa", "bbbb")).present is False


def test_a_container_removed_while_it_is_asked_for_is_left_out(dockerd):
    del dockerd.answers[f"/containers/{CONTAINERS[0]['Id']}/json"]
    names = [each.name for each in docker.describe(docker.list_containers())]
    assert names == ["someones-vllm", "spark-dev-rank1", "trainer"]


@pytest.mark.parametrize(
    ("host", "variables", "expected"),
    [
        (GPUS, [], True),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, [], True),
        ({"Devices": [{"PathOnHost": "/dev/nvidia0"}]}, [], True),
        ({"Runtime": "nvidia"}, ["NVIDIA_VISIBLE_DEVICES=all"], True),
        ({"Runtime": "nvidia"}, ["NVIDIA_VISIBLE_DEVICES=void"], False),
        ({"Runtime": "nvidia"}, [], False),
        ({"Runtime": "runc"}, ["NVIDIA_VISIBLE_DEVICES=all"], False),
        ({"Devices": [{"PathOnHost": "/dev/infiniband"}]}, None, False),
    ],
)
def test_each_way_to_be_given_the_gpu_is_seen(host, variables, expected):
    assert docker.has_gpu({"Env": variables}, host) is expected


# --- whose process ---


def test_a_published_port_is_named_by_its_container(dockerd):
    listener = ListenerFacts(8080, "0.0.0.0")
    [facts], _ = gather.named([(listener, "1")], [], docker.list_containers(), ask_root=False)
    assert facts.container == "web"


def test_a_process_in_a_container_is_named_by_it(dockerd, monkeypatch):
    monkeypatch.setattr(processes, "container_id", {77: CONTAINERS[2]["Id"]}.get)
    _, [facts] = gather.named([], [GpuApp(77, "python3")], docker.list_containers(), ask_root=False)
    assert facts.container == "trainer"
