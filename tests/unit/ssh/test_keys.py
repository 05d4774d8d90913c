"""Which key logs in to a node: the agent's before a file's."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from components.ssh.target import (
    Resolved,
    SshError,
    agent_keys,
    key_file,
    public_key,
)
from tests.unit.executables import Recorder

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEz6cLhIsSzuxTbzFRPyS7DRKKgvq6mpXr0Vm+pnTXn1"


def resolved(**changed: object) -> Resolved:
    values = {"host": "203.0.113.7", "user": "ops", "port": 22, "identity_files": [], "known_hosts_files": []}
    return Resolved(**{**values, **changed})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Key files by passphrase."""
    folder = tmp_path_factory.mktemp("keys")

    def make(passphrase: str) -> Path:
        file = folder / f"id{len(passphrase)}"
        if not file.exists():
            # -a 1: the usual 16 rounds over a passphrase take a tenth of a second, at each look at the key
            argv = ["ssh-keygen", "-q", "-a", "1", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(file)]
            subprocess.run(argv, check=True, capture_output=True)
        return file

    return make


def public(file: Path) -> str:
    return " ".join(file.with_suffix(".pub").read_text().split()[:2])


@pytest.fixture
def agent(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """agent(*public keys) makes an ssh-add that lists them."""

    def holds(*listed: str) -> None:
        monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
        lines = "".join(f"{key} comment\\n" for key in listed)
        recorder.answer("ssh-add", f"printf '{lines}'" if listed else "echo 'The agent has no identities.'; exit 1")

    return holds


def test_a_key_that_the_agent_holds_is_not_read_from_its_file(agent: Callable[..., None], keys: Callable[[str], Path]):
    file = keys("")
    agent(public(file))
    assert key_file(resolved(identity_files=[file])) is None


def test_an_agent_with_other_keys_leaves_the_configured_file(agent: Callable[..., None], keys: Callable[[str], Path]):
    file = keys("")
    agent(ED25519)
    assert key_file(resolved(identity_files=[file.with_name("absent"), file])) == file


def test_an_agent_is_used_where_no_file_is_usable(agent: Callable[..., None], keys: Callable[[str], Path]):
    agent(ED25519)
    assert key_file(resolved(identity_files=[])) is None
    assert key_file(resolved(identity_files=[keys("secret")])) is None


def test_without_an_agent_the_first_key_without_a_passphrase_is_used(
    keys: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    locked, file = keys("secret"), keys("")
    assert public_key(locked) is None
    assert key_file(resolved(identity_files=[locked, file])) == file


def test_no_usable_key_is_refused_with_the_files_tried(keys: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    locked = keys("secret")
    with pytest.raises(SshError) as caught:
        key_file(resolved(identity_files=[locked]))
    assert str(caught.value) == (
        f"no usable SSH key for ops@203.0.113.7: no agent answers, and {locked} is missing or has a passphrase: "
        "load the key with ssh-add"
    )


def test_an_agent_without_keys_or_without_an_answer_holds_none(agent: Callable[..., None], recorder: Recorder):
    agent()
    assert agent_keys(resolved()) == []


def test_the_agent_of_the_ssh_configuration_is_asked(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    recorder.answer("ssh-add", 'echo "ssh-ed25519 $SSH_AUTH_SOCK"')
    assert agent_keys(resolved(identity_agent="/run/other")) == ["ssh-ed25519 /run/other"]
