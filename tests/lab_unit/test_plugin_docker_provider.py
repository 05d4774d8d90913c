"""The docker stand-in's resources with a fake daemon that records its requests."""

import asyncio
import sys
from pathlib import Path

import pytest
from pulumi.provider.experimental import provider as sdk

sys.path.insert(0, str(Path(__file__).parents[2] / "lab" / "plugins"))

from standin.docker_daemon import DaemonError, Gone, Tunnel, Unreachable
from standin.docker_provider import DockerProvider
from standin.docker_schema import CONTAINER, IMAGE
from standin.server import Failure
from standin.values import UNKNOWN, plain_map, wrap_map

ID = "f" * 64
RANK = {"image": "engine:1", "name": "rank", "entrypoints": ["/opt/spark/rank.py"]}


class Daemon:
    """A fake docker_daemon.Daemon. `fails` maps a request's name to what it raises."""

    def __init__(self, fails=None, running=True, images=("engine:1",)):
        self.asked, self.fails, self.running, self.images = [], fails or {}, running, set(images)

    def _ask(self, name, *args):
        self.asked.append((name, *args))
        if name in self.fails:
            raise self.fails[name]

    def client(self):
        self._ask("client")

    def image(self, name):
        return {"Id": "sha256:1"} if name in self.images else None

    def find_image(self, name):
        self._ask("find_image", name)
        return {"Id": "sha256:1"}

    def create_container(self, body, name):
        self._ask("create_container", name)
        self.body = body
        return ID

    def container(self, container_id):
        self._ask("container")
        host = {"RestartPolicy": {"Name": "no"}, "NetworkMode": "bridge", "LogConfig": {"Type": "json-file"}}
        return {
            "Name": "/rank",
            "Config": {"Image": "engine:1", "Entrypoint": ["/opt/spark/rank.py"]},
            "HostConfig": host,
            "State": {"Running": self.running, "ExitCode": 3},
        }

    def __getattr__(self, name):
        return lambda *args: self._ask(name, *args)


def urn(kind, name="rank"):
    """The URN of a resource inside a component, whose type comes first."""
    return f"urn:pulumi:dev::spark-stack::spark:engine:Engine${kind}::{name}"


def provider(daemon=None):
    made = DockerProvider()
    made.daemon = daemon or Daemon()  # type: ignore[assignment]  # the requests alone
    return made


def checked(kind=CONTAINER, **values):
    request = sdk.CheckRequest(urn(kind), {}, wrap_map(values), b"\x01\x02\x03\x04\x05")
    answer = asyncio.run(provider().check(request))
    return plain_map(answer.inputs), [failure.reason for failure in answer.failures]


def created(daemon, kind=CONTAINER, preview=False, **values):
    inputs, failures = checked(kind, **values)
    assert not failures
    request = sdk.CreateRequest(urn(kind), wrap_map(inputs), 0, preview)
    answer = asyncio.run(provider(daemon).create(request))
    return answer.resource_id, plain_map(answer.properties)


def names(daemon):
    return [asked[0] for asked in daemon.asked]


def test_a_file_is_uploaded_before_the_container_starts():
    daemon = Daemon()
    resource_id, state = created(daemon, **RANK, uploads=[{"file": "/opt/spark/rank.py", "content": "x"}])
    assert names(daemon) == ["find_image", "create_container", "upload", "start", "container"]
    assert (resource_id, state["mustRun"], state["logDriver"]) == (ID, True, "json-file")


def test_a_container_that_exits_at_once_is_created_and_need_not_run():
    _, state = created(Daemon(running=False), **RANK)
    assert (state["mustRun"], state["exitCode"]) == (False, 3)


def test_a_preview_asks_the_daemon_nothing():
    daemon = Daemon()
    _, state = created(daemon, preview=True, **RANK)
    assert daemon.asked == []
    assert state["exitCode"] == UNKNOWN


def test_a_container_that_cannot_start_stays_in_the_state():
    with pytest.raises(Failure) as raised:
        created(Daemon({"start": DaemonError("Error response from daemon: no such device")}), **RANK)
    assert raised.value.kept and raised.value.kept.resource_id == ID
    assert "Unable to start container: Error response from daemon: no such device" in str(raised.value)


def test_a_name_that_is_taken_leaves_nothing_in_the_state():
    conflict = DaemonError('Error response from daemon: Conflict. The container name "/rank" is already in use')
    with pytest.raises(Failure, match="Unable to create container: Error response from daemon: Conflict") as raised:
        created(Daemon({"create_container": conflict}), **RANK)
    assert raised.value.kept is None


def test_an_unreachable_host_is_said_to_be_that_and_nothing_else():
    with pytest.raises(Failure) as raised:
        created(Daemon({"find_image": Unreachable("failed to create Docker client: it is off")}), **RANK)
    assert str(raised.value) == "1 error occurred:\n\t* failed to create Docker client: it is off\n\n"


def test_an_unknown_property_is_refused():
    _, failures = checked(**RANK, networksAdvanced=[{"name": "x"}])
    assert len(failures) == 1
    assert "rank.networksAdvanced is not supported" in failures[0]


def test_a_resource_that_is_not_provided_is_refused():
    _, failures = checked("docker:index/volume:Volume", name="x")
    assert "not provided" in failures[0]


def test_defaults_are_put_into_the_inputs():
    inputs, _ = checked(**RANK, devices=[{"hostPath": "/dev/infiniband"}])
    assert inputs["devices"] == [{"hostPath": "/dev/infiniband", "permissions": "rwm"}]
    assert (inputs["restart"], inputs["mustRun"], inputs["networkMode"]) == ("no", True, "bridge")


def diffed(state, kind=CONTAINER, **inputs):
    request = sdk.DiffRequest(urn(kind), ID, wrap_map(state), wrap_map(inputs), [])
    return asyncio.run(provider().diff(request))


def test_a_replaced_container_is_deleted_first():
    answer = diffed(RANK, **{**RANK, "image": "engine:2"})
    assert (answer.replaces, answer.delete_before_replace) == (["image"], True)


def test_a_replaced_image_is_not_deleted_first():
    answer = diffed({"name": "a"}, IMAGE, name="b")
    assert (answer.replaces, answer.delete_before_replace) == (["name"], False)


def test_another_host_is_an_update_of_the_provider():
    answer = diffed({"host": "ssh://a"}, "pulumi:providers:docker", host="ssh://b", version="5.2.0")
    assert (answer.changes, answer.replaces, list(answer.detailed_diff)) == (True, [], ["host"])


def updated(daemon, old, new, kind=CONTAINER):
    request = sdk.UpdateRequest(urn(kind), ID, wrap_map(old), wrap_map(new), 0, [], False)
    return plain_map(asyncio.run(provider(daemon).update(request)).properties)


def test_a_stopped_container_is_started_by_an_update():
    daemon = Daemon()
    inputs, _ = checked(**RANK)
    updated(daemon, {**inputs, "mustRun": False}, inputs)
    assert names(daemon) == ["client", "start"]


def test_an_update_of_a_knob_changes_nothing_at_the_daemon():
    daemon = Daemon()
    inputs, _ = checked(**RANK)
    state = updated(daemon, inputs, {**inputs, "destroyGraceSeconds": 60})
    assert names(daemon) == ["client"]
    assert state["destroyGraceSeconds"] == 60


def test_another_restart_policy_reaches_the_daemon():
    daemon = Daemon()
    inputs, _ = checked(**RANK)
    updated(daemon, inputs, {**inputs, "restart": "always"})
    assert ("set_restart", ID, "always") in daemon.asked


def deleted(daemon, kind=CONTAINER, **state):
    asyncio.run(provider(daemon).delete(sdk.DeleteRequest(urn(kind), ID, wrap_map(state), 0)))


def test_a_container_is_stopped_with_its_grace_and_removed():
    daemon = Daemon()
    deleted(daemon, destroyGraceSeconds=60)
    assert daemon.asked == [
        ("client",),
        ("stop", ID, 60),
        ("remove_container", ID),
    ]


def test_deleting_a_container_that_is_gone_succeeds():
    gone = Gone("Error response from daemon: No such container")
    deleted(Daemon(dict.fromkeys(("stop", "remove_container"), gone)))


def test_a_container_that_cannot_be_removed_is_an_error():
    with pytest.raises(Failure, match=f"Error deleting container {ID}: busy"):
        deleted(Daemon({"remove_container": DaemonError("busy")}))


def test_an_image_kept_locally_is_not_removed():
    daemon = Daemon()
    deleted(daemon, IMAGE, name="engine:1", keepLocally=True)
    assert names(daemon) == ["client"]


def refreshed(daemon, state, inputs, kind=CONTAINER, resource_id=ID):
    return asyncio.run(
        provider(daemon).read(sdk.ReadRequest(urn(kind), resource_id, wrap_map(state), wrap_map(inputs)))
    )


def test_a_refresh_shows_a_stopped_container_as_a_changed_input():
    inputs, _ = checked(**RANK)
    answer = refreshed(Daemon(running=False), inputs, inputs)
    assert plain_map(answer.inputs) == {**inputs, "mustRun": False}


def test_a_refresh_drops_what_is_gone():
    inputs, _ = checked(**RANK)
    assert refreshed(Daemon({"container": Gone("no such container")}), inputs, inputs).resource_id is None
    assert refreshed(Daemon(images=()), {"name": "x"}, {"name": "x"}, IMAGE).resource_id is None


def test_an_unreachable_host_does_not_make_a_refresh_drop_anything():
    inputs, _ = checked(**RANK)
    with pytest.raises(Failure):
        refreshed(Daemon({"container": Unreachable("off")}), inputs, inputs)


def test_a_present_image_is_adopted():
    resource_id, state = created(Daemon(), IMAGE, name="engine:1", keepLocally=True)
    assert resource_id == "sha256:1engine:1"
    assert state["imageId"] == "sha256:1"


def test_an_image_that_a_destroy_would_remove_is_refused():
    _, failures = checked(IMAGE, name="engine:1", keepLocally=False)
    assert "removed at destroy is not supported" in failures[0]


def test_an_alias_keeps_the_port_and_user_of_the_ssh_config():
    argv = Tunnel("ssh://Lab-Head", ["-F", ".lab/ssh_config"]).argv("/tmp/s")
    assert argv[-3:] == ["--", "Lab-Head", "echo up; exec cat"]
    assert not {"-p", "-l"} & set(argv)
    assert "/tmp/s:/var/run/docker.sock" in argv


def test_a_full_ssh_url_names_user_port_and_socket():
    argv = Tunnel("ssh://spark@10.0.0.1:2201/run/user/1000/docker.sock", []).argv("/tmp/s")
    assert argv[argv.index("-p") + 1] == "2201"
    assert argv[argv.index("-l") + 1] == "spark"
    assert "/tmp/s:/run/user/1000/docker.sock" in argv
    assert argv[-2] == "10.0.0.1"


@pytest.mark.parametrize("host", ["ssh://a:b@host", "ssh://", "ssh://host?x=1", "ssh://host#x"])
def test_a_url_that_the_docker_client_refuses_is_refused(host):
    with pytest.raises(DaemonError):
        Tunnel(host, []).argv("/tmp/s")
