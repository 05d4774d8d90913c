"""What the state would hold: no secret in clear, no key, nothing of the control host."""

import json
from pathlib import Path
from typing import Any

import pytest

from components import remote
from components.rank.spec import spec_hash
from components.settings.base import PROJECT_DIR
from components.ssh.target import Resolved, SshError, Target
from tests.program.runner import API_KEY, FOLDER, HF_TOKEN, PRIVATE_KEY, Declared, Engine, Runner, plain, public


def text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def holders(engine: Engine, needle: str, shown: Any = plain) -> set[tuple[str, str]]:
    """(resource, input) pairs whose value holds the text."""
    return {
        (item.name, name)
        for item in engine.declared
        for name, value in item.raw.items()
        if json.dumps(needle)[1:-1] in text(shown(value))
    }


@pytest.mark.parametrize("stack", ["dev", "example", "secretive"])
def test_nothing_of_the_control_host_is_in_any_input(stack: str, request: pytest.FixtureRequest):
    engine: Engine = request.getfixturevalue(stack)
    paths = [str(PROJECT_DIR), f"{Path.home()}/", "pytest"]
    assert [path for path in paths if holders(engine, path)] == []


def test_the_api_key_is_in_the_scripts_that_write_it_and_marked_secret_there(secretive: Engine):
    assert holders(secretive, API_KEY) == {("head-api-key", "stdin"), ("worker-api-key", "stdin")}
    assert holders(secretive, API_KEY, public) == set()


def test_the_hub_token_goes_to_the_head_alone_and_is_marked_secret_there(secretive: Engine):
    assert holders(secretive, HF_TOKEN) == {("head-checkpoint-job", "stdin")}
    assert holders(secretive, HF_TOKEN, public) == set()


def test_what_a_script_with_a_secret_says_is_secret_too(secretive: Engine):
    """pulumi-command does not mark it as a secret by itself."""
    for item in secretive.of_kind("command:remote:Command"):
        marked = {"stdout", "stderr"} <= set(item.request.additionalSecretOutputs)
        assert marked == item.name.endswith(("-api-key", "-checkpoint-job")), item.name


def test_no_output_of_the_stack_holds_a_secret(secretive: Engine):
    assert API_KEY not in text(secretive.outputs) and HF_TOKEN not in text(secretive.outputs)
    assert set(secretive.outputs["checkpoint"]) == {"head", "worker"}, "a step with a secret has an output all the same"


def test_a_rank_has_its_key_as_a_file_that_it_may_only_read(secretive: Engine, dev: Engine):
    keyed, bare = secretive.ranks[0].inputs, dev.ranks[0].inputs
    added = [mount for mount in keyed["mounts"] if mount not in bare["mounts"]]
    assert added == [
        {
            "type": "bind",
            "source": f"{FOLDER}/secrets",
            "target": "/run/spark",
            "readOnly": True,
        }
    ]
    assert (keyed["command"], keyed["envs"]) == (bare["command"], bare["envs"])


def test_another_key_shows_in_a_random_word_and_in_nothing_derived_from_the_key(secretive: Engine, run_program: Runner):
    """With a hash of the key in a label, everyone on the node could test guesses."""
    both = "head-key-word,worker-key-word"
    assert [rank.labels["spark.secret"] for rank in secretive.ranks] == [both, both], "no rank is replaced alone"
    other = run_program.decided("dev", secrets={"api_key": "sk-another", "hf_token": HF_TOKEN})
    assert spec_hash(other.specs) == secretive.ranks[0].labels["spark.spec"]


def test_the_engine_waits_for_the_key_it_reads(secretive: Engine):
    for role in ("head", "worker"):
        assert f"{role}-api-key" in secretive.one(f"{role}-engine").after


def test_without_secrets_no_key_is_declared(dev: Engine):
    assert [item.name for item in dev.resources if "key" in item.name] == []
    assert all("spark.secret" not in rank.labels for rank in dev.ranks)


# --- SSH keys ---


def commands(engine: Engine) -> list[Declared]:
    return engine.of_kind("command:remote:Command")


def test_a_key_file_is_stored_as_a_secret_and_an_agents_key_not_at_all(changed: Engine, dev: Engine):
    """Pulumi's command provider keeps a private key among a resource's inputs, in the state."""
    assert holders(changed, PRIVATE_KEY) == {(item.name, "connection") for item in commands(changed)}
    assert holders(changed, "PRIVATE KEY", public) == set()
    assert holders(changed, "id_ed25519") == set()
    assert holders(dev, "PRIVATE KEY") == set()


def test_a_jump_host_is_checked_and_reached_like_a_node(changed: Engine):
    for item in commands(changed):
        assert item.inputs["connection"]["proxy"] == {
            "host": "bastion.example.net",
            "port": 2200,
            "user": "jump",
            "hostKey": "ssh-ed25519 AAAA-bastion.example.net",
            "privateKey": PRIVATE_KEY,
            "dialErrorLimit": 1,
            "perDialTimeout": 20,
        }


def test_the_agent_of_the_ssh_configuration_is_handed_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remote, "key_file", lambda resolved: None)
    monkeypatch.setattr(remote, "host_key", lambda resolved: "ssh-ed25519 AAAA")
    hop = remote.hop(Resolved("x", "ops", 22, [], [], identity_agent="/run/keys"))
    assert (hop["agent_socket_path"], hop["private_key"]) == ("/run/keys", None)


def test_a_proxy_command_is_refused_with_the_reason():
    """The command provider connects by itself: it would dial the node directly."""
    with pytest.raises(SshError, match=r"ProxyCommand of x: .* cannot run 'nc %h': use ProxyJump with one host"):
        remote.connection(Target("x"), Resolved("x", "ops", 22, [], [], proxy_command="nc %h"))


def test_a_chain_of_jump_hosts_is_refused_with_the_reason():
    """The command provider goes through one host only."""
    with pytest.raises(SshError, match=r"ProxyJump a,b of x is a chain"):
        remote.proxy(Target("x"), "a,b")
