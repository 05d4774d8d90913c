"""A worker's proof: the very mount of its rank, every shard read through it, and a message for each way it can fail."""

import csv
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.console import utc_now
from hub.files import gaps
from loader import payload
from nfs import proof
from nfs.proof import ProofInputs, Unproven, check_server, first_proven, mount_argument, prove, with_cause
from tests.unit.executables import Recorder
from tests.unit.node.snapshots import ENCODER, REPO, REVISION, contents, names, snapshot

HUB_DEVICE = ":/home/spark/.cache/huggingface/hub"
OPTIONS = "nfsvers=4.2,ro,nconnect=8,hard,timeo=600"
INPUTS: ProofInputs = {
    "head_fabric_ip": "127.0.0.1",
    "options": OPTIONS,
    "repo": REPO,
    "revision": REVISION,
    "shards": 3,
    "encoding_file": ENCODER,
    "image": "repo@sha256:1",
    "python": "/usr/bin/python3",
    "stack": "dev",
    "timeout_s": 20,
}
# dockerd's message about a mount, from Docker 26
MOUNT_FAILED = (
    "docker: Error response from daemon: error while mounting volume '/var/lib/docker/volumes/e7/_data': failed to "
    "mount local volume: mount :/hub:/var/lib/docker/volumes/e7/_data, flags: 0x1, data: addr=192.168.100.1,hard: {}."
)
ANSWER = struct.pack(">7I", 1 << 31 | 24, 0x73706B, 1, 0, 0, 0, 0)

Reply = Callable[[bytes], bytes]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Reply], None]]:
    """An NFS server for one call: it answers with what `reply` makes of that call."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr(proof, "PORT", listening.getsockname()[1])
        monkeypatch.setattr(proof, "ANSWER_S", 0.3)

        def run(reply: Reply) -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(reply(connection.recv(1024)))
                connection.recv(1)

        def start(reply: Reply) -> None:
            threading.Thread(target=run, args=(reply,), daemon=True).start()

        yield start


@pytest.fixture
def docker(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A docker that runs the check on this machine, with `tmp_path`/hub for its mount."""
    monkeypatch.setattr(proof, "check_server", lambda _: None)
    monkeypatch.setattr(proof, "HUB", str(tmp_path / "hub"))
    run = f'while [ "$1" != - ]; do shift; done; exec {sys.executable} -IS "$@"'
    recorder.answer("docker", f'[ "$1" = rm ] || {{ {run}; }}')
    return recorder


def failing_docker(recorder: Recorder, reason: str) -> None:
    recorder.answer("docker", f'[ "$1" = rm ] || {{ echo "{reason}"; echo "See \'docker run --help\'."; exit 125; }}')


def found(*faults: str) -> str:
    """A line of shell that says what the check in the container would."""
    return f"echo '{json.dumps({'faults': faults, 'shards': 3, 'bytes': 9})}'"


def refused(devices: list[str] | None = None, timeout_s: float = 20) -> str:
    with pytest.raises(SystemExit) as ended:
        first_proven(devices or [HUB_DEVICE], {**INPUTS, "timeout_s": timeout_s})
    return str(ended.value)


class TestTheServer:
    def test_one_that_answers_nfs_4_is_good(self, serve: Callable[[Reply], None]):
        calls: list[bytes] = []

        def reply(call: bytes) -> bytes:
            calls.append(call)
            return ANSWER

        serve(reply)
        check_server("127.0.0.1")
        [call] = calls
        record, *fields = struct.unpack(">11I", call)
        assert record == 1 << 31 | len(call) - 4 and fields[1:6] == [0, 2, 100003, 4, 0], "NULL of NFS 4"

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (b"SSH-2.0-OpenSSH_9.6p1 Ubuntu-3ubuntu13\r\n", "is not an NFS server"),
            (struct.pack(">7I", 1 << 31 | 32, 0x73706B, 1, 0, 0, 0, 2), "does not speak NFS 4"),
            (struct.pack(">7I", 1 << 31 | 24, 0x73706B, 1, 1, 0, 0, 0), "does not speak NFS 4"),
        ],
        ids=["not NFS", "other versions", "denied"],
    )
    def test_one_that_answers_something_else_is_told_from_it(
        self, serve: Callable[[Reply], None], answer: bytes, reason: str
    ):
        serve(lambda _: answer)
        with pytest.raises(Unproven, match=reason):
            check_server("127.0.0.1")

    def test_one_that_takes_the_call_and_says_nothing_is_given_up_soon(self, serve: Callable[[Reply], None]):
        """dockerd would stay in its mount, and could not be interrupted."""
        serve(lambda _: b"")
        with pytest.raises(Unproven, match="timed out: something drops the packets"):
            check_server("127.0.0.1")

    def test_one_that_is_not_running_is_refused_before_docker_is_asked(
        self, recorder: Recorder, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
    ):
        recorder.answer("docker")
        monkeypatch.setattr(proof, "PORT", free_port())
        reason = refused()
        assert "cannot be read from 127.0.0.1: port" in reason and "the NFS server is not running" in reason
        assert reason.endswith("or set checkpoint.mode: local") and recorder.calls("docker") == []

    @given(st.binary(max_size=40))
    def test_no_answer_is_taken_for_a_good_one_but_the_good_one(self, answer: bytes):
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.MonkeyPatch.context() as patch:
            theirs.sendall(answer)
            theirs.shutdown(socket.SHUT_WR)
            patch.setattr(socket, "create_connection", lambda *_, **__: ours)
            with pytest.raises(Unproven):
                check_server("127.0.0.1")


class TestTheMount:
    @given(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), min_size=1))
    def test_docker_reads_back_each_field_whatever_the_path_holds(self, path: str):
        [fields] = csv.reader([mount_argument("192.168.100.1", f":/{path}", OPTIONS)])
        assert f"volume-opt=device=:/{path}" in fields
        assert f"volume-opt=o=addr=192.168.100.1,{OPTIONS}" in fields, "its commas are the option's own"

    def test_it_is_a_volume_without_a_name_and_without_dockers_read_only(self):
        """A named one would outlive its options; dockerd refuses read-only for one without a name."""
        [fields] = csv.reader([mount_argument("192.168.100.1", HUB_DEVICE, OPTIONS)])
        assert not any(field.startswith(("src", "source", "ro", "readonly")) for field in fields)

    @pytest.mark.parametrize(
        ("kernel", "reason"),
        [
            ("permission denied", "permission denied: it is not exported to this node's fabric address"),
            ("no such file or directory", "no such file or directory: the server does not export this folder"),
            ("protocol not supported", "protocol not supported: the server does not speak NFS 4.2"),
            ("no such device", "no such device: this node's kernel has no NFS client: sudo apt install nfs-common"),
        ],
    )
    def test_one_that_fails_is_told_in_the_kernels_words_with_their_cause(
        self, docker: Recorder, kernel: str, reason: str
    ):
        failing_docker(docker, MOUNT_FAILED.format(kernel))
        assert f"127.0.0.1: {HUB_DEVICE}: {reason}. Look at the head" in refused()

    def test_an_image_that_is_not_there_is_not_fetched_by_the_proof(self, docker: Recorder):
        failing_docker(docker, "docker: Error response from daemon: No such image: repo@sha256:1.")
        assert "the runtime image is not on this node: run pulumi up" in refused()
        [run] = [call for call in docker.calls("docker") if call[0] == "run"]
        assert run[run.index("--pull") + 1] == "never"

    def test_one_that_never_comes_is_ended_and_its_container_removed(self, docker: Recorder):
        docker.answer("docker", '[ "$1" = rm ] || exec sleep 20')
        with pytest.raises(
            Unproven, match=r"no answer within 0 s, in the mount itself: the server or the fabric is down"
        ):
            prove(HUB_DEVICE, INPUTS, 0.1)
        assert docker.calls("docker")[-1] == ["rm", "--force", "--volumes", "spark-dev-proof"]

    def test_a_container_that_its_mount_holds_is_named_and_waited_for_no_longer(
        self, docker: Recorder, monkeypatch: pytest.MonkeyPatch
    ):
        """A hard mount cannot be left while the server is silent; on the lab it went by itself once it was back."""
        monkeypatch.setattr(proof, "REMOVAL_S", 0.1)
        docker.answer("docker", "exec sleep 20")
        with pytest.raises(Unproven, match="the container spark-dev-proof ends when it answers again"):
            prove(HUB_DEVICE, INPUTS, 0.1)

    def test_reading_that_stops_half_way_says_how_far_it_came(self, docker: Recorder):
        docker.answer(
            "docker", '[ "$1" = rm ] || { echo "nfs: mounted"; echo "nfs: 7 of 48 shards read"; exec sleep 20; }'
        )
        with pytest.raises(Unproven, match="after `nfs: 7 of 48 shards read`"):
            prove(HUB_DEVICE, INPUTS, 0.3)


class TestTheReading:
    @pytest.fixture
    def complete(self, tmp_path: Path) -> Path:
        """The snapshot as the worker sees it."""
        return snapshot(tmp_path / "hub")

    def test_a_complete_checkpoint_is_proven_in_a_container_of_the_stack_that_leaves_nothing(
        self, complete: Path, docker: Recorder, capsys: pytest.CaptureFixture[str]
    ):
        began = utc_now()
        verified = first_proven([HUB_DEVICE], INPUTS)
        assert began <= verified["verified_at"] <= utc_now()
        size = sum(len(content) for path, content in contents(3).items() if path in names(3))
        assert (verified["device"], verified["shards"], verified["bytes"]) == (HUB_DEVICE, 3, size)
        assert capsys.readouterr().err == f"nfs: mounting 127.0.0.1{HUB_DEVICE}\nnfs: mounted\n"
        removed, run = docker.calls("docker")
        assert removed[0] == "rm", "one that an interrupted update left over would hold the name"
        assert "--rm" in run and "spark.stack=dev" in run and mount_argument("127.0.0.1", HUB_DEVICE, OPTIONS) in run

    def test_the_first_device_that_proves_it_is_the_answer(self, complete: Path, docker: Recorder):
        fail = MOUNT_FAILED.format("no such file or directory")
        docker.answer("docker", f'case "$*" in *=:/hub*) echo "{fail}"; exit 125 ;; rm*) ;; *) {found()} ;; esac')
        assert first_proven([":/hub", HUB_DEVICE], INPUTS)["device"] == HUB_DEVICE

    def test_each_device_that_fails_is_named(self, docker: Recorder):
        docker.answer("docker", f'[ "$1" = rm ] || {found("there is no snapshot")}')
        reason = refused([":/hub", ":/"])
        assert ":/hub: there is no snapshot" in reason and "; :/: there is no snapshot" in reason

    def test_a_server_that_is_not_ours_is_named(self, docker: Recorder):
        failing_docker(docker, MOUNT_FAILED.format("permission denied"))
        with pytest.raises(
            SystemExit, match=r"Port 2049 of the head is held by hf-share \(erichough/nfs\), which is not"
        ):
            first_proven([":/hub", ":/"], INPUTS, "hf-share (erichough/nfs)")

    def test_a_truncated_shard_is_named_with_what_else_is_wrong(self, complete: Path, docker: Recorder):
        first, second, _ = names(3)
        (complete / first).resolve().write_bytes(b"x")
        (complete / second).unlink()
        assert f"{first} has no safetensors header (1 bytes) (and 1 more)" in refused()

    def test_a_link_that_leads_out_of_the_export_says_so(self, complete: Path, docker: Recorder):
        [first, *_] = names(3)
        (complete / first).unlink()
        (complete / first).symlink_to("/raid/blob")
        docker.answer("docker", f'[ "$1" = rm ] || {found(*gaps(complete, 3, ENCODER))}')
        assert f"{first} is a link to a file that is not there: it is missing on the head, or leads out" in refused()

    def test_what_is_closed_to_others_is_refused_with_the_command_that_opens_it(self, complete: Path, docker: Recorder):
        """Root of a worker is nobody on the head; here the check for a complete snapshot meets such a file."""
        docker.answer("docker", f'[ "$1" = rm ] || {found("m-1 cannot be read: Permission denied")}')
        assert (
            "m-1 cannot be read: Permission denied: closed to others on the head: "
            "run `chmod -R o+rX /home/spark/.cache/huggingface/hub/models--owner--name` there"
        ) in refused()

    def test_a_check_that_breaks_is_told_by_its_last_line(self, complete: Path, docker: Recorder):
        docker.answer(
            "docker", '[ "$1" = rm ] || { echo "nfs: mounted"; echo Traceback; echo "ValueError: x"; exit 1; }'
        )
        assert f"{HUB_DEVICE}: ValueError: x." in refused()


def test_a_message_without_a_known_cause_stays_as_it_is():
    assert with_cause("the moon is full") == "the moon is full"


def test_as_it_is_shipped_it_carries_the_check_for_a_complete_snapshot(tmp_path: Path, docker: Recorder):
    """On a node there is no file to read them from."""
    kept = tmp_path / "stdin"
    docker.answer("docker", f'[ "$1" = rm ] || {{ cat >{kept}; {found()}; }}')
    # no server here: other tests ask one
    argv = [sys.executable, "-I", "-S", "-", json.dumps(INPUTS)]
    done = subprocess.run(
        argv,
        input=payload("nfs.proof").replace("        check_server(server)", ""),
        env={"PATH": docker.path, "SPARK_EXPORT": json.dumps({"devices": [HUB_DEVICE], "holder": None})},
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["device"] == HUB_DEVICE, done.stderr
    assert "def gaps(" in kept.read_text()
