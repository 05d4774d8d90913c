"""A container's inputs as the Engine API's create request, its files as an archive, its inspection as a state."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "lab" / "plugins"))

from standin.docker_body import create_body, upload_archive
from standin.docker_readback import duration, merged, read_back
from standin.docker_schema import CONTAINER_INPUTS, problems, seconds, with_defaults

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
    "logDriver": "json-file",
    "logOpts": {"max-size": "10m"},
    "mounts": [
        {"type": "bind", "source": "/srv/hub", "target": "/hub", "readOnly": True},
        {
            "type": "volume",
            "source": "hub",
            "target": "/nfs",
            "volumeOptions": {"driverName": "local", "driverOptions": {"type": "nfs"}},
        },
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
        "RestartPolicy": {"Name": "no"},
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
                "Labels": {},
                "DriverConfig": {"Name": "local", "Options": {"type": "nfs"}},
            },
        },
    ]


def test_an_empty_element_of_a_command_is_refused():
    with pytest.raises(ValueError, match="may not be empty"):
        create_body(with_defaults(CONTAINER_INPUTS, RANK))


def test_an_uploaded_file_is_roots():
    upload = {"file": "/opt/spark/rank.py", "content": "ü"}
    with tarfile.open(fileobj=io.BytesIO(upload_archive(upload))) as archive:
        (entry,) = archive.getmembers()
        assert (entry.name, entry.mode, entry.uid, entry.gid) == ("/opt/spark/rank.py", 0o644, 0, 0)
        file = archive.extractfile(entry)
        assert file and file.read() == "ü".encode()


@pytest.mark.parametrize("text", ["0s", "5s", "30s", "1m0s", "1m30s", "1h0m0s", "25h1m0s"])
def test_durations_survive_the_way_to_the_daemon_and_back(text):
    assert duration(seconds(text) * 10**9) == text


@pytest.mark.parametrize("text", ["60", "1 minute", "", "s", "1x", "-1s", "250ms"])
def test_what_is_no_duration_is_refused(text):
    assert list(problems(CONTAINER_INPUTS, {**RANK, "healthcheck": {"interval": text}}, "rank."))


def inspected(**changes):
    """The daemon's description of RANK after its creation."""
    config = {"Hostname": "worker", "User": "", **body()}
    host = config.pop("HostConfig")
    host.update(SecurityOpt=["label=disable"], Runtime="runc", ShmSize=64 << 20)
    answer = {
        "Name": "/spark-dev-rank1",
        "Config": config,
        "HostConfig": host,
        "State": {"Running": True, "ExitCode": 0},
    }
    return {**answer, **changes}


def state():
    return with_defaults(CONTAINER_INPUTS, {**RANK, "command": ["vllm", "serve"]})


def test_reading_back_what_was_created_keeps_the_programs_own_values():
    before = state()
    assert merged(before, read_back(inspected(), before)) == before


def test_a_stopped_container_reads_back_as_one_that_need_not_run():
    values = read_back(inspected(State={"Running": False, "ExitCode": 3}), state())
    assert (values["mustRun"], values["exitCode"]) == (False, 3)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"networksAdvanced": []}, "not supported"),
        (
            {"uploads": [{"file": "/x", "content": "", "source": "/etc/passwd"}]},
            "rank.uploads[0].source is not supported",
        ),
        ({"restart": "sometimes"}, "'sometimes' doesn't match the pattern '^(no|on-failure|always|unless-stopped)$'"),
        ({"mounts": [{"type": "nfs", "target": "/x"}]}, "'nfs' doesn't match the pattern '^(bind|volume)$'"),
        ({"gpus": "2"}, "'2' doesn't match the pattern '^all$'"),
        ({"ulimits": [{"name": "memlock", "soft": 1}]}, "The argument rank.ulimits[0].hard is required"),
        ({"mustRun": "yes"}, "not a value of type boolean. Examine values at 'rank.mustRun'."),
        ({"destroyGraceSeconds": True}, "not a value of type integer"),
        ({"image": None}, "The argument rank.image is required"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_the_official_plugins_words(values, complaint):
    found = list(problems(CONTAINER_INPUTS, {"name": "rank", "image": "x", **values}, "rank."))
    assert len(found) == 1
    assert complaint in found[0]


def test_a_good_container_has_no_problems():
    assert list(problems(CONTAINER_INPUTS, state(), "rank.")) == []
