"""The head's export: made beside nothing of others, used where it lives already, and taken back without a trace."""

import json
from pathlib import Path

import pytest

from host.as_root import RootError
from nfs import export, server
from nfs.export import ExportInputs, make, remove, serve
from tests.unit.executables import Recorder, run_shipped
from tests.unit.node.facts.fake_dockerd import Dockerd, container
from tests.unit.node.nfs.nfs_node import Node

WORKER = "192.168.100.2"
INPUTS: ExportInputs = {
    "action": "make",
    "stack": "dev",
    "hf_cache": "~/.cache/huggingface",
    "worker_fabric_ips": [WORKER],
    "image": "repo@sha256:1",
    "python": "/usr/bin/python3",
}


@pytest.fixture
def node(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, recorder, monkeypatch)


def take_back(stack: str = "dev") -> None:
    remove(stack, "repo@sha256:1", "/usr/bin/python3")


def test_a_server_that_is_off_is_started_with_the_hub_for_the_worker_alone(node: Node):
    assert make(INPUTS) == {"holder": None, "devices": [f":{node.hub}"]}
    assert node.state() == {"on": True, "enabled": True}, "it must be there after a reboot of the head"
    [line] = node.etab.read_text().splitlines()
    assert line.startswith(f"{node.hub}\t{WORKER}(ro,") and "root_squash" in line
    assert node.grace.read_text() == "Y\n", "the first read would wait for the grace period"


def test_a_hub_behind_a_link_is_exported_by_its_real_path(node: Node, tmp_path: Path):
    (tmp_path / "raid/hub").mkdir(parents=True)
    node.hub.rmdir()
    node.hub.symlink_to(tmp_path / "raid/hub")
    assert make(INPUTS)["devices"] == [f":{tmp_path}/raid/hub"]


def test_made_again_it_changes_nothing_and_needs_no_root(node: Node):
    first, before = make(INPUTS), len(node.recorder.calls("sudo"))
    assert make(INPUTS) == first and len(node.recorder.calls("sudo")) == before


def test_taken_back_the_node_is_as_it_was(node: Node):
    make(INPUTS)
    take_back()
    assert node.state() == {"on": False, "enabled": False}
    assert not node.file("dev").exists() and not export.record_of("dev").exists()
    assert ["stop", "nfs-server.service", "rpcbind.socket"] in node.recorder.calls("systemctl")
    assert not node.file("dev").parent.exists()


def test_a_unit_that_was_enabled_stays_enabled(node: Node):
    node.enabled.touch()
    make(INPUTS)
    take_back()
    assert node.state() == {"on": False, "enabled": True}


def test_taking_back_twice_is_no_failure_and_needs_no_root(node: Node):
    take_back()
    assert node.recorder.calls("sudo") == []


def test_a_server_that_stopped_is_started_again_and_still_handed_back(node: Node):
    make(INPUTS)
    node.sudo("systemctl", "stop", "nfs-server")
    make(INPUTS)
    assert node.on.exists()
    take_back()
    assert node.state() == {"on": False, "enabled": False}


def test_before_a_rank_goes_a_server_that_stopped_serves_again_and_is_still_handed_back(node: Node):
    """The rank's removal would hang with its mount."""
    make(INPUTS)
    asked = len(node.recorder.calls("sudo"))
    serve("dev", "repo@sha256:1", "/usr/bin/python3")
    assert len(node.recorder.calls("sudo")) == asked, "one that serves stays as it is, without root"
    node.sudo("systemctl", "stop", "nfs-server")
    serve("dev", "repo@sha256:1", "/usr/bin/python3")
    assert node.on.exists() and WORKER in node.etab.read_text()
    take_back()
    assert node.state() == {"on": False, "enabled": False}


def test_a_server_that_was_not_ours_is_not_started_and_what_waits_for_it_is_said(
    node: Node, capsys: pytest.CaptureFixture[str]
):
    serve("dev", "repo@sha256:1", "/usr/bin/python3")
    assert "nothing serves NFS on this node" in capsys.readouterr().err
    assert node.recorder.calls("sudo") == []


def test_another_workers_address_replaces_the_old_one(node: Node):
    make(INPUTS)
    make({**INPUTS, "worker_fabric_ips": ["192.168.100.3"]})
    assert "192.168.100.3(" in node.etab.read_text() and f"{WORKER}(" not in node.etab.read_text()


class TestAServerOfOthers:
    def test_one_that_exports_the_tree_is_used_and_left_alone(self, node: Node, capsys: pytest.CaptureFixture[str]):
        node.serve(f"{node.hub} 192.168.100.0/24(rw,fsid=0)", "/srv/films *(ro)")
        assert make(INPUTS) == {"holder": None, "devices": [":/"]}
        assert "is exported already, not by us" in capsys.readouterr().err
        table = node.etab.read_text()
        take_back()
        assert node.changes() == [] and node.etab.read_text() == table and node.on.exists()

    def test_one_that_exports_something_else_is_refused_by_name_with_the_line_to_add(self, node: Node):
        node.serve("/srv/films *(ro)", f"{node.hub} 192.168.100.9(ro)")
        with pytest.raises(SystemExit) as refused:
            make(INPUTS)
        message = str(refused.value)
        assert (
            f"exports {node.hub}, /srv/films and not" in message or f"exports /srv/films, {node.hub} and not" in message
        )
        assert f"add this line to {node.exports} and run exportfs -ra, or set checkpoint.mode: local" in message
        assert f"{node.hub} {WORKER}(ro,sync" in message and node.changes() == []

    def test_one_that_exports_nothing_serves_us_and_runs_on_afterwards(self, node: Node):
        node.serve()
        make(INPUTS)
        assert WORKER in node.etab.read_text()
        take_back()
        assert node.state() == {"on": True, "enabled": True} and node.etab.read_text() == ""

    def test_one_that_is_off_is_not_started_to_publish_what_its_owner_took_away(self, node: Node):
        node.exports.write_text("/srv/films *(ro)\n")
        with pytest.raises(SystemExit, match=r"is off and would export /srv/films and not .*start it, or set"):
            make(INPUTS)
        assert not node.on.exists() and node.changes() == []

    def test_ours_stays_on_for_an_export_that_somebody_added_since(
        self, node: Node, capsys: pytest.CaptureFixture[str]
    ):
        make(INPUTS)
        node.exports.write_text("/srv/films *(ro)\n")
        node.sudo("exportfs", "-r")
        take_back()
        assert node.state() == {"on": True, "enabled": True} and "/srv/films" in node.etab.read_text()
        assert "we started nfs-server, but it stays because it also exports /srv/films" in capsys.readouterr().err

    def test_one_in_a_container_is_named_and_left_to_the_workers_proof(
        self, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        """The recipe's own exporter: a container in the host's network."""
        node.hold_port()
        with Dockerd(tmp_path / "docker.sock", [container("hf-nfs-share")]) as dockerd:
            listed = {"Names": ["/hf-nfs-share"], "Image": "erichough/nfs", "Command": "entrypoint.sh"}
            dockerd.answers["/containers/json"] = [{**listed, "HostConfig": {"NetworkMode": "host"}, "Ports": []}]
            monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
            made = make(INPUTS)
        assert made["holder"] == "hf-nfs-share (erichough/nfs)"
        assert made["devices"] == [":/hub", ":/", f":{node.hub}"]
        assert "2049 is served by hf-nfs-share (erichough/nfs)" in capsys.readouterr().err
        assert node.changes() == []

    def test_one_that_nobody_can_name_is_said_too(self, node: Node, capsys: pytest.CaptureFixture[str]):
        node.hold_port()
        assert "neither this host's nfs-server" in str(make(INPUTS)["holder"])
        assert "a process that is neither this host's nfs-server nor a container" in capsys.readouterr().err


class TestTwoStacks:
    @pytest.fixture
    def both(self, node: Node) -> Node:
        """Stack dev started the server, stack prod came after it."""
        node.ours("prod")
        make(INPUTS)
        make({**INPUTS, "stack": "prod"})
        return node

    def test_the_second_has_an_export_of_its_own(self, both: Node):
        assert both.file("dev").exists() and both.file("prod").exists()
        take_back("dev")
        assert f"{both.hub}\t{WORKER}(" in both.etab.read_text() and both.on.exists()

    @pytest.mark.parametrize("order", [("dev", "prod"), ("prod", "dev")])
    def test_the_last_one_stops_what_the_first_one_started(self, both: Node, order: tuple[str, str]):
        for stack in order:
            take_back(stack)
        assert both.state() == {"on": False, "enabled": False}


class TestWhoMayRead:
    def test_the_folder_with_the_hub_token_is_not_exported(self, node: Node):
        (node.hub.parent / "token").write_text("hf_secret")
        make(INPUTS)
        assert {line.split("\t")[0] for line in node.etab.read_text().splitlines()} == {str(node.hub)}

    def test_a_hub_that_is_closed_to_others_is_refused_with_the_way_to_open_it(self, node: Node):
        node.hub.chmod(0o750)
        with pytest.raises(SystemExit, match=f"{node.hub} has mode 750.*run `chmod o\\+rx {node.hub}`, or set"):
            make(INPUTS)

    def test_a_home_that_is_closed_to_others_does_not_matter(self, node: Node):
        """Ubuntu's homes have 0750; on the lab's kernel a worker reads through one with 0700."""
        node.home.chmod(0o700)
        assert make(INPUTS)["devices"] == [f":{node.hub}"]


@pytest.mark.parametrize(("point", "crossed"), [("", False), ("/models--a--b", True), ("-old", False)])
def test_a_mount_inside_the_tree_is_exported_with_it(node: Node, point: str, crossed: bool):
    """Without crossmnt it looks empty to a worker."""
    with node.mounts.open("a") as mounts:
        mounts.write(f"2 1 8:2 / {node.hub}{point} rw - ext4 /dev/sdb rw\n")
    make(INPUTS)
    assert ("crossmnt" in node.file("dev").read_text()) is crossed


def test_a_node_without_an_nfs_server_is_told_how_to_get_one(node: Node):
    (node.recorder.folder / "exportfs").unlink()
    with pytest.raises(SystemExit, match=r"run `sudo apt install nfs-kernel-server`, or set checkpoint\.mode: local"):
        make(INPUTS)
    assert node.changes() == []


def test_an_export_that_the_server_did_not_take_is_a_failure(node: Node):
    node.recorder.answer("exportfs", f": >{node.etab}")
    with pytest.raises(SystemExit, match=r"is not exported although .* says so: `sudo exportfs -rv` tells why"):
        make(INPUTS)


def test_a_start_that_broke_off_is_taken_back_too(node: Node):
    works = (node.recorder.folder / "systemctl").read_text()
    (node.recorder.folder / "systemctl").write_text(works.replace("restart) ", "restart) echo no threads >&2; exit 1;"))
    with pytest.raises(RootError, match=r"`systemctl enable nfs-server && systemctl restart .* failed: no threads"):
        make(INPUTS)
    take_back()
    assert node.state() == {"on": False, "enabled": False}
    assert not node.file("dev").exists() and not export.record_of("dev").exists()


def test_without_our_folder_nothing_is_begun(node: Node):
    with pytest.raises(SystemExit, match="run pulumi up again, it makes the folder first"):
        make({**INPUTS, "stack": "other"})


def test_the_script_says_what_root_said_and_the_way_out(node: Node, monkeypatch: pytest.MonkeyPatch):
    node.recorder.answer("sudo", "echo 'sudo: a password is required' >&2; exit 1")
    node.enabled.touch()
    export.record_of("dev").write_text(json.dumps({"enabled": True, "units": ["nfs-server.service"]}))
    done = run_shipped("nfs.export", {**INPUTS, "action": "remove"}, HOME=str(node.home), PATH=node.recorder.path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("nfs: the export cannot be changed: this needs root")
    assert "sudo: a password is required" in done.stderr and done.stderr.endswith("or set checkpoint.mode: local\n")


def test_a_node_without_systemd_says_what_is_missing(node: Node):
    (node.recorder.folder / "systemctl").unlink()
    path = str(node.recorder.folder)
    done = run_shipped("nfs.export", INPUTS, HOME=str(node.home), PATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("systemctl cannot be used: No such file or directory: does this node run systemd")


def test_a_port_of_another_number_or_one_that_is_only_used_is_not_held(node: Node):
    node.sockets.write_text("sl\n0: 00000000:0801 0100007F:1234 01\n1: 00000000:1F90 00000000:0000 0A\n")
    assert not server.port_is_held()
