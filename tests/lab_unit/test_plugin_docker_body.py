"""A container's inputs as the Engine API's create request, its files as an archive, and its inspection as a state."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "lab" / "plugins"))

from standin.docker_body import create_body, gpu_requests, update_body, upload_archive
from standin.docker_readback import duration, merged, read_back
from standin.docker_schema import CONTAINER_INPUTS, nanoseconds, problems, with_defaults

RANK = {
    "name": "spark-dev-rank1",
    "image": "registry/engine@sha256:1",
    "entrypoints": ["/usr/bin/python3", "/opt/spark/rank.py"],
    "command": ["vllm", "serve", ""],
    "envs": ["A=1"],
    "labels": [{"label": "spark.rank", "value": "1"}],
    "networkMode": "host",
    "ipcMode": "host",
    "gpus": "all",
    "devices": [{"hostPath": "/dev/infiniband"}],
    "ulimits": [{"name": "memlock", "soft": -1, "hard": -1}],
    "memory": 64,
    "memorySwap": -1,
    "capabilities": {"adds": ["sys_nice", "CAP_IPC_LOCK"]},
    "logDriver": "json-file",
    "logOpts": {"max-size": "10m"},
    "mounts": [
        {"type": "bind", "source": "/srv/hub", "target": "/hub", "readOnly": True},
        {
            "type": "volume",
            "source": "hub",
            "target": "/nfs",
            "volumeOptions": {"driverName": "local", "driverOptions": {"type": "nfs"}, "noCopy": True},
        },
        {"type": "tmpfs", "target": "/t", "tmpfsOptions": {"sizeBytes": 1024}},
    ],
    "healthcheck": {"tests": ["CMD", "true"], "interval": "1m30s"},
}


def body(**inputs):
    return create_body(with_defaults(CONTAINER_INPUTS, {**RANK, "command": ["vllm", "serve"], **inputs}))


def test_a_rank_becomes_the_request_that_docker_run_would_send():
    request = body()
    host = request.pop("HostConfig")
    assert request == {
        "Image": "registry/engine@sha256:1",
        "Entrypoint": ["/usr/bin/python3", "/opt/spark/rank.py"],
        "Cmd": ["vllm", "serve"],
        "Env": ["A=1"],
        "Labels": {"spark.rank": "1"},
        "Healthcheck": {
            "Test": ["CMD", "true"],
            "Interval": 90 * 10**9,
            "Timeout": 0,
            "StartPeriod": 0,
            "StartInterval": 0,
            "Retries": 0,
        },
    }
    mounts = host.pop("Mounts")
    assert host == {
        "NetworkMode": "host",
        "IpcMode": "host",
        "DeviceRequests": [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}],
        "Devices": [
            {"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"}
        ],
        "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
        "Memory": 64 * 1024 * 1024,
        "MemorySwap": -1,
        "CapAdd": ["CAP_IPC_LOCK", "CAP_SYS_NICE"],
        "CapDrop": [],
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "Init": False,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m"}},
    }
    assert mounts == [
        {"Type": "bind", "Target": "/hub", "Source": "/srv/hub", "ReadOnly": True},
        {
            "Type": "volume",
            "Target": "/nfs",
            "Source": "hub",
            "ReadOnly": False,
            "VolumeOptions": {
                "NoCopy": True,
                "Labels": {},
                "DriverConfig": {"Name": "local", "Options": {"type": "nfs"}},
                "Subpath": "",
            },
        },
        {
            "Type": "tmpfs",
            "Target": "/t",
            "Source": "",
            "ReadOnly": False,
            "TmpfsOptions": {"SizeBytes": 1024, "Mode": 0},
        },
    ]


def test_an_empty_element_of_a_command_is_refused():
    with pytest.raises(ValueError, match="may not be empty"):
        create_body(with_defaults(CONTAINER_INPUTS, RANK))


@pytest.mark.parametrize(("text", "count", "ids"), [("all", -1, None), ("2", 2, None), ("device=0,1", 0, ["0", "1"])])
def test_gpus_is_read_as_docker_run_reads_it(text, count, ids):
    request = gpu_requests(text)[0]
    assert (request["Count"], request["DeviceIDs"]) == (count, ids)


def test_gpus_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="some"):
        gpu_requests("some")


def test_an_update_sends_only_what_a_running_container_takes():
    inputs = with_defaults(CONTAINER_INPUTS, {**RANK, "restart": "always"})
    assert update_body(inputs) == {
        "Memory": 64 * 1024 * 1024,
        "MemorySwap": -1,
        "RestartPolicy": {"Name": "always", "MaximumRetryCount": 0},
    }


@pytest.mark.parametrize(
    ("how", "mode", "content"),
    [
        ({"content": "x"}, 0o644, b"x"),
        ({"content": "x", "executable": True}, 0o744, b"x"),
        ({"content": "ü", "permissions": "0600", "executable": True}, 0o600, "ü".encode()),
        ({"contentBase64": "AAEC/w=="}, 0o644, b"\x00\x01\x02\xff"),
    ],
)
def test_an_uploaded_file_is_roots_with_the_mode_asked_for(how, mode, content):
    with tarfile.open(fileobj=io.BytesIO(upload_archive({"file": "/opt/spark/rank.py", **how}))) as archive:
        (entry,) = archive.getmembers()
        assert (entry.name, entry.mode, entry.uid, entry.gid) == ("/opt/spark/rank.py", mode, 0, 0)
        file = archive.extractfile(entry)
        assert file and file.read() == content


@pytest.mark.parametrize("how", [{}, {"content": "x", "contentBase64": "eA=="}])
def test_an_upload_has_exactly_one_content(how):
    with pytest.raises(ValueError, match="error with upload content"):
        upload_archive({"file": "/x", **how})


@pytest.mark.parametrize("text", ["0s", "1ns", "250ms", "1.5s", "5s", "30s", "1m0s", "1m30s", "1h0m0s", "25h1m0.5s"])
def test_durations_survive_the_way_to_the_daemon_and_back(text):
    assert duration(nanoseconds(text)) == text


@pytest.mark.parametrize("text", ["60", "1 minute", "", "s", "1x", "-1s"])
def test_what_is_no_duration_is_refused(text):
    assert list(problems(CONTAINER_INPUTS, {"image": "x", "healthcheck": {"interval": text}}, "rank."))


def inspected(**changes):
    """The daemon's answer for RANK as it was created."""
    request = body()
    config = {"Hostname": "worker", "User": "", **request}
    host = config.pop("HostConfig")
    host.update(SecurityOpt=["label=disable"], Runtime="runc", ShmSize=64 << 20)
    answer = {
        "Name": "/spark-dev-rank1",
        "Image": "sha256:2",
        "Platform": "linux",
        "Config": config,
        "HostConfig": host,
        "NetworkSettings": {"Bridge": "", "Networks": {"host": {}}},
        "State": {"Running": True, "ExitCode": 0},
    }
    return {**answer, **changes}


def state():
    return with_defaults(CONTAINER_INPUTS, {**RANK, "command": ["vllm", "serve"]})


def test_reading_back_what_was_created_keeps_the_programs_own_values():
    before = state()
    after = merged(before, read_back(inspected(), before), created=True)
    assert {name: after[name] for name in before} == before
    assert (after["shmSize"], after["platform"], after["hostname"]) == (64, "linux", "worker")


def test_a_refresh_shows_the_sets_as_docker_spells_them():
    before = state()
    after = merged(before, read_back(inspected(), before))
    assert {name for name, value in before.items() if after[name] != value} == {"capabilities"}
    assert after["capabilities"] == {"adds": ["CAP_IPC_LOCK", "CAP_SYS_NICE"], "drops": []}


def test_a_stopped_container_reads_back_as_one_that_need_not_run():
    values = read_back(inspected(State={"Running": False, "ExitCode": 3}), state())
    assert (values["mustRun"], values["exitCode"]) == (False, 3)


def test_an_image_given_by_id_is_compared_by_id():
    assert read_back(inspected(), {"image": "sha256:2"})["image"] == "sha256:2"
    assert read_back(inspected(), {"image": "engine:1"})["image"] == "registry/engine@sha256:1"


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"networksAdvanced": []}, "not supported"),
        ({"uploads": [{"file": "/x", "source": "/etc/passwd"}]}, "rank.uploads[0].source is not supported"),
        ({"restart": "sometimes"}, "'sometimes' doesn't match the pattern '^(no|on-failure|always|unless-stopped)$'"),
        ({"mounts": [{"type": "nfs", "target": "/x"}]}, "'nfs' doesn't match the pattern '^(bind|volume|tmpfs)$'"),
        ({"uploads": [{"file": "/x", "permissions": "600"}]}, "'600' doesn't match the pattern '^0[0-7]{3}$'"),
        ({"uploads": [{"file": "/x", "contentBase64": "%"}]}, "'%' is not base64 decodeable"),
        ({"memory": -5}, "'-5' cannot be lower than 0"),
        ({"volumes": [{"containerPath": "/x", "hostPath": "rel"}]}, "'rel' must be an absolute path"),
        ({"ulimits": [{"name": "memlock", "soft": 1}]}, "The argument rank.ulimits[0].hard is required"),
        ({"privileged": "yes"}, "not a value of type boolean. Examine values at 'rank.privileged'."),
        ({"shmSize": True}, "not a value of type integer"),
        ({"image": None}, "The argument rank.image is required"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_the_official_plugins_words(values, complaint):
    found = list(problems(CONTAINER_INPUTS, {"image": "x", **values}, "rank."))
    assert len(found) == 1
    assert complaint in found[0]


def test_a_good_container_has_no_problems():
    assert list(problems(CONTAINER_INPUTS, state(), "rank.")) == []
