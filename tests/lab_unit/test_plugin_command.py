"""The stand-in for the command plugin: what it refuses, compares, runs, prints and keeps secret. None uses ssh."""

import asyncio
import contextlib
import sys
import threading
import time
from pathlib import Path

import pytest
from pulumi.provider.experimental import provider as sdk
from pulumi.provider.experimental.property_value import PropertyValue

sys.path.insert(0, str(Path(__file__).parents[2] / "lab" / "plugins"))

from standin.command_provider import CommandProvider
from standin.command_run import masked
from standin.command_schema import LOCAL, REMOTE
from standin.server import Failure, engine
from standin.ssh_connection import Dialer
from standin.values import UNKNOWN, Secret, plain, plain_map, wrap, wrap_map

SECRET = "correct-horse-battery"
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJjS"


@pytest.fixture
def shown(monkeypatch):
    """The lines that were sent to the engine."""
    lines = []
    monkeypatch.setattr(engine, "log", lambda urn, line: lines.append(line))
    return lines


def urn(kind=LOCAL):
    return f"urn:pulumi:dev::spark-stack::spark:readiness:Readiness${kind}::ready"


def properties(secrets=(), **values):
    return wrap_map(values, secrets)


def created(secrets=(), preview=False, **values):
    request = sdk.CreateRequest(urn(), properties(secrets, **values), 0, preview)
    return asyncio.run(CommandProvider().create(request)).properties


def checked(kind, **values):
    inputs = wrap_map({"create": "x", "addPreviousOutputInEnv": False, **values})
    answer = asyncio.run(CommandProvider().check(sdk.CheckRequest(urn(kind), {}, inputs, b"")))
    return answer.inputs or {}, {failure.property: failure.reason for failure in answer.failures or []}


def diffed(old, new):
    answer = asyncio.run(CommandProvider().diff(sdk.DiffRequest(urn(), "id", old, new, [])))
    return {path: found.kind.name for path, found in answer.detailed_diff.items()}


def test_output_is_kept_without_its_last_newline(shown):
    state = plain_map(created(create="printf 'a\\nb\\n\\n'; echo e >&2"))
    assert (state["stdout"], state["stderr"]) == ("a\nb\n", "e")
    assert sorted(shown) == sorted(["a", "b", "", "e"])


@pytest.mark.parametrize(
    ("logging", "lines"), [("none", []), ("stdout", ["o"]), ("stderr", ["e"]), ("stdoutAndStderr", ["e", "o"])]
)
def test_logging_chooses_what_is_shown(shown, logging, lines):
    created(create="echo o; echo e >&2", logging=logging)
    assert sorted(shown) == lines


def test_a_line_longer_than_the_official_scanner_takes_does_not_hang(shown):
    state = plain_map(created(create="head -c 200000 /dev/zero | tr '\\0' x"))
    assert len(state["stdout"]) == 200000


def test_stdin_and_environment_reach_the_command(shown):
    state = plain_map(created(create='echo "$(cat) $A"', stdin="in", environment={"A": "aa"}))
    assert state["stdout"] == "in aa"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"create": "echo a; exit 4"}, 'exit status 4: running "echo a; exit 4":\na\n'),
        ({"create": "kill -TERM $$"}, 'signal: terminated: running "kill -TERM $$":\n'),
    ],
)
def test_a_failure_says_what_the_official_plugin_says(shown, values, message):
    with pytest.raises(Failure) as raised:
        created(**values)
    assert str(raised.value) == message


def test_a_preview_runs_nothing(tmp_path):
    created(preview=True, create=f"touch {tmp_path}/ran")
    assert list(tmp_path.iterdir()) == []


def updated(olds, news):
    request = sdk.UpdateRequest(urn(), "id", olds, news, 0, [], False)
    return plain_map(asyncio.run(CommandProvider().update(request)).properties)


def test_an_update_runs_update_else_create(shown):
    old = properties(create="echo c", stdout="before", stderr="")
    assert updated(old, properties(create="echo c ${PULUMI_COMMAND_STDOUT-none}"))["stdout"] == "c none"
    assert updated(old, properties(create="echo c", update="echo u"))["stdout"] == "u"


def test_delete_runs_what_the_state_says(shown, tmp_path):
    state = properties(create="x", delete=f"touch {tmp_path}/gone", stdout="", stderr="")
    asyncio.run(CommandProvider().delete(sdk.DeleteRequest(urn(), "id", state, 0)))
    assert [path.name for path in tmp_path.iterdir()] == ["gone"]


def test_a_secret_makes_the_output_secret_and_is_not_shown(shown):
    environment = PropertyValue({"KEY": wrap(SECRET, secret=True), "A": wrap("a")})
    request = sdk.CreateRequest(
        urn(), {**properties(create="echo $A; echo key=$KEY"), "environment": environment}, 0, False
    )
    state = asyncio.run(CommandProvider().create(request)).properties
    assert state["stdout"].is_secret and state["stderr"].is_secret
    assert shown == ["output is not shown while the command runs: environment is secret"]


def test_output_of_a_secret_script_is_not_shown_at_all(shown):
    created(secrets=["stdin"], create="sh", stdin=f"printf {SECRET[:7]}; echo {SECRET[7:]}")
    assert shown == ["output is not shown while the command runs: stdin is secret"]


def test_a_failure_does_not_print_a_secret(shown):
    with pytest.raises(Failure) as raised:
        created(secrets=["stdin"], create="cat; exit 1", stdin=f"first\n{SECRET}\n")
    assert SECRET not in str(raised.value)
    assert raised.value.kept is None


def test_a_secret_command_line_is_not_in_the_error(shown):
    with pytest.raises(Failure) as raised:
        created(secrets=["create"], create=f": {SECRET}; exit 1")
    assert str(raised.value) == 'exit status 1: running "[secret]":\n'


def test_short_secrets_do_not_mask_every_other_word():
    assert masked("a key1 b", ["a", "key1"]) == "a [secret] b"


def test_a_whole_secret_is_masked_before_its_parts():
    assert masked("x abcd-efgh abcd", ["abcd-efgh", "abcd"]) == "x [secret] [secret]"


@pytest.mark.parametrize(
    ("kind", "values", "where"),
    [
        (LOCAL, {"assetPaths": ["x"]}, "assetPaths"),
        (LOCAL, {"dir": "/"}, "dir"),
        (LOCAL, {"create": None}, "create"),
        (LOCAL, {"addPreviousOutputInEnv": True}, "addPreviousOutputInEnv"),
        (LOCAL, {"connection": {}}, "connection"),
        (REMOTE, {"connection": {"host": "h"}, "environment": {"A": "a"}}, "environment"),
        (REMOTE, {"connection": {"host": "h", "password": "p"}}, "connection.password"),
        (REMOTE, {"connection": {"host": "h", "proxy": {"host": "p", "sudo": True}}}, "connection.proxy.sudo"),
        (REMOTE, {"connection": {"host": "h"}, "logging": "loud"}, "logging"),
        (REMOTE, {}, "connection"),
        (REMOTE, {"connection": {"port": 22}}, "connection.host"),
        (REMOTE, {"connection": {"host": "h", "port": "22"}}, "connection.port"),
        (LOCAL, {"create": 5}, "create"),
        ("command:remote:CopyToRemote", {}, ""),
    ],
)
def test_what_is_not_supported_is_refused(kind, values, where):
    _, failures = checked(kind, **values)
    assert list(failures) == [where]


def test_a_connection_gets_its_defaults_and_is_secret():
    inputs, failures = checked(REMOTE, connection={"host": "h", "port": 2201, "proxy": {"host": "p"}})
    assert failures == {}
    assert inputs["connection"].is_secret
    hop = {"user": "root", "dialErrorLimit": 10, "perDialTimeout": 15}
    assert plain(inputs["connection"]) == {
        **hop,
        "host": "h",
        "port": 2201,
        "proxy": {**hop, "host": "p", "port": 22},
    }


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"stdin": "a"}, {"stdin": "b"}, {"stdin": "UPDATE"}),
        ({}, {"delete": "x"}, {"delete": "ADD"}),
        ({"triggers": ["a", 1]}, {"triggers": ["a", 2]}, {"triggers[1]": "UPDATE"}),
        ({"triggers": ["a"]}, {"triggers": ["a", {"k": ["v"]}]}, {"triggers[1]": "ADD"}),
        ({"triggers": ["a"]}, {}, {"triggers": "DELETE_REPLACE"}),
        ({}, {"triggers": ["a"]}, {"triggers": "ADD_REPLACE"}),
        # what the engine asks when a resource that the triggers name is replaced
        ({"triggers": ["a"]}, {"triggers": UNKNOWN}, {"triggers": "UPDATE_REPLACE"}),
        ({"environment": {"A": "a"}}, {"environment": {"A": "b", "B": "c"}}, None),
        ({"create": "x"}, {"create": "x"}, {}),
    ],
)
def test_every_input_takes_part_in_the_comparison(old, new, found):
    if found is None:
        found = {"environment.A": "UPDATE", "environment.B": "ADD"}
    assert diffed(wrap_map(old), wrap_map(new)) == found


def test_a_secret_is_compared_as_one_piece():
    old = {"connection": wrap({"host": "a", "port": 22}, secret=True)}
    new = {"connection": wrap({"host": "b", "port": 22}, secret=True)}
    assert diffed(old, new) == {"connection": "UPDATE"}
    assert diffed(old, old) == {}
    assert plain(old["connection"], keep_secrets=True) == Secret({"host": "a", "port": 22})


def test_cancelling_ends_what_a_command_has_started(shown):
    provider = CommandProvider()
    request = sdk.CreateRequest(urn(), properties(create="sleep 100 & echo started; wait"), 0, False)
    failures = []

    def run():
        with contextlib.suppress(Failure):
            asyncio.run(provider.create(request))
            return
        failures.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    limit = time.monotonic() + 10
    while "started" not in shown and time.monotonic() < limit:
        time.sleep(0.01)
    asyncio.run(provider.cancel())
    thread.join(10)
    assert not thread.is_alive()
    assert failures == [True]


def test_nothing_is_started_after_the_cancel(shown):
    provider = CommandProvider()
    asyncio.run(provider.cancel())
    with pytest.raises(Failure, match="cancelled"):
        asyncio.run(provider.create(sdk.CreateRequest(urn(), properties(create="true"), 0, False)))


CONNECTION = {"host": "10.0.0.1", "port": 2201, "user": "spark", "dialErrorLimit": 1, "perDialTimeout": 15}


def dialed(**connection):
    with contextlib.ExitStack() as stack:
        return Dialer({**CONNECTION, **connection}, stack).argv("sh -s")


def test_a_private_key_is_neither_on_the_argv_nor_on_a_disk():
    argv = dialed(privateKey=SECRET)
    assert not any(SECRET in part for part in argv)
    (key,) = [part.removeprefix("IdentityFile=") for part in argv if part.startswith("IdentityFile=")]
    assert key.startswith("/proc/")


def test_the_host_key_is_pinned_and_without_one_nothing_is_remembered():
    pinned = dialed(hostKey=HOST_KEY)
    assert {"StrictHostKeyChecking=yes", "HostKeyAlgorithms=ssh-ed25519", "HostKeyAlias=pinned"} <= set(pinned)
    assert {"StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"} <= set(dialed())


def test_no_ssh_config_and_no_default_key_is_read():
    argv = dialed()
    assert argv[argv.index("-F") + 1] == "none"
    assert "IdentityFile=none" in argv
    assert argv[-2:] == ["10.0.0.1", "sh -s"]


def test_a_proxy_is_a_hop_with_its_own_key_and_host_key():
    proxy = {"host": "jump", "port": 22, "user": "root", "perDialTimeout": 5, "privateKey": SECRET}
    (command,) = [part for part in dialed(proxy=proxy) if part.startswith("ProxyCommand=")]
    assert command.endswith("-W '[%h]:%p' jump")
    assert SECRET not in command
