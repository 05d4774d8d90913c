"""Root's rights on a node: sudo where it is allowed, else a privileged container, else a refusal that says both."""

import ctypes
import os
import sys
from types import SimpleNamespace

import pytest

from host import enter_mounts
from host.as_root import NoRoot, RootError, Way, run, way
from tests.unit.executables import Recorder

IMAGE, PYTHON = "repo@sha256:1", "/usr/bin/python3"
SUDO_WORKS, SUDO_REFUSES = 'shift 2; exec "$@"', "echo 'sudo: a password is required' >&2; exit 1"
# runs what follows the program that enters the host
DOCKER_WORKS = f'while [ "$1" != {IMAGE} ]; do shift; done; shift 3; exec "$@"'
DIRECT = Way("root", ())


@pytest.fixture(autouse=True)
def a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def test_sudo_is_the_way_where_it_asks_for_no_password(recorder: Recorder):
    recorder.answer("sudo", SUDO_WORKS)
    recorder.answer("docker", DOCKER_WORKS)
    root = way("dev", IMAGE, PYTHON)
    assert root.by == "sudo" and run(root, ["echo", "a b"], timeout_s=5) == "a b\n"
    assert all(call[0] == "-n" for call in recorder.calls("sudo")), "a prompt would hang the update"
    assert recorder.calls("docker") == []


def test_where_sudo_is_refused_a_privileged_container_is_the_way(recorder: Recorder):
    recorder.answer("sudo", SUDO_REFUSES)
    recorder.answer("docker", DOCKER_WORKS)
    root = way("dev", IMAGE, PYTHON)
    assert root.by == "container" and run(root, ["echo", "a b"], timeout_s=5) == "a b\n"
    call = " ".join(recorder.calls("docker")[0])
    assert "--rm --pull never --privileged --pid host" in call, "it leaves nothing and fetches nothing"
    assert "--label spark.stack=dev --label spark.job=root" in call, "destroy finds one that was left over"


def test_without_a_recorded_image_no_container_is_tried(recorder: Recorder):
    recorder.answer("sudo", SUDO_REFUSES)
    recorder.answer("docker", DOCKER_WORKS)
    with pytest.raises(NoRoot):
        way("dev", None, PYTHON)
    assert recorder.calls("docker") == []


def test_where_neither_is_allowed_both_answers_and_the_way_out_are_said(recorder: Recorder):
    recorder.answer("sudo", SUDO_REFUSES)
    recorder.answer("docker", "echo 'docker: permission denied' >&2; echo \"See 'docker run --help'.\" >&2; exit 126")
    with pytest.raises(NoRoot) as refused:
        way("dev", IMAGE, PYTHON)
    assert str(refused.value) == (
        "this needs root, and no way to root is allowed (sudo: sudo: a password is required; "
        "container: docker: permission denied): let the user of this node run sudo without a password, or add it to "
        "group docker"
    )


def test_a_node_without_sudo_says_so(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(recorder.folder))
    with pytest.raises(NoRoot, match="sudo is not on the PATH of an SSH session"):
        way("dev", None, PYTHON)


def test_who_is_root_already_needs_neither(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    recorder.answer("sudo", SUDO_WORKS)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert way("dev", IMAGE, PYTHON) == DIRECT and recorder.calls("sudo") == []


def test_a_command_that_fails_is_told_in_its_own_words():
    with pytest.raises(RootError, match=r"^`echo .*; exit 1` failed: exportfs: bad host; and more$"):
        run(DIRECT, ["sh", "-c", "echo 'exportfs: bad host' >&2; echo 'and more' >&2; exit 1"], timeout_s=5)
    with pytest.raises(RootError, match="failed: exit code 3"):
        run(DIRECT, ["sh", "-c", "exit 3"], timeout_s=5)


def test_a_command_that_hangs_is_ended_at_its_limit():
    with pytest.raises(RootError, match=r"`sleep 60` was ended after 0\.1 s"):
        run(DIRECT, ["sleep", "60"], timeout_s=0.1)


class TestTheContainersProgram:
    @pytest.fixture
    def entered(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """The C library and exec, replaced; `result` is what setns returns."""
        fake = SimpleNamespace(result=0, did=[])

        def setns(file: int, kind: int) -> int:
            fake.did.append(("setns", os.readlink(f"/proc/self/fd/{file}").partition(":")[0], kind))
            os.close(file)
            return int(fake.result)

        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(setns=setns))
        monkeypatch.setattr(ctypes, "get_errno", lambda: 1)
        monkeypatch.setattr(os, "chdir", lambda path: fake.did.append(("chdir", path)))
        monkeypatch.setattr(os, "execvpe", lambda *arguments: fake.did.append(("exec", *arguments)))
        monkeypatch.setattr(sys, "argv", ["-c", "exportfs", "-r"])
        real = os.open
        monkeypatch.setattr(os, "open", lambda _, flags: real("/proc/self/ns/mnt", flags))
        return fake

    def test_it_runs_the_hosts_program_in_the_hosts_mounts_with_roots_path(self, entered: SimpleNamespace):
        enter_mounts.main()
        environment = {"PATH": enter_mounts.PATH, "LC_ALL": "C"}
        assert entered.did == [
            ("setns", "mnt", 0),
            ("chdir", "/"),
            ("exec", "exportfs", ["exportfs", "-r"], environment),
        ]
        assert "/usr/sbin" in enter_mounts.PATH.split(":"), "exportfs lies there"

    def test_where_the_hosts_mounts_stay_closed_nothing_runs_in_the_containers_own(self, entered: SimpleNamespace):
        entered.result = -1
        with pytest.raises(SystemExit, match="the host's mounts cannot be entered: Operation not permitted"):
            enter_mounts.main()
        assert [what for what, *_ in entered.did] == ["setns"]
