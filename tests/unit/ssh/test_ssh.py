"""How a node is reached: the ssh program's own configuration, and what pulumi-command's client gets of it."""

import subprocess
from pathlib import Path

import pytest

from components.ssh import target
from components.ssh.target import (
    Resolved,
    SshError,
    Target,
    agent_keys,
    host_key,
    parse_settings,
    resolve,
    ssh_argv,
)
from tests.unit.executables import Recorder


def resolved(**changed: object) -> Resolved:
    values = {"host": "203.0.113.7", "user": "ops", "port": 22, "identity_files": [], "known_hosts_files": []}
    return Resolved(**{**values, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "target", "url"),
    [
        ("worker", Target("worker"), "ssh://worker"),
        ("ops@worker", Target("worker", "ops"), "ssh://ops@worker"),
        ("ops@worker:2222", Target("worker", "ops", 2222), "ssh://ops@worker:2222"),
        ("ops@[2001:db8::2]:2222", Target("2001:db8::2", "ops", 2222), "ssh://ops@[2001:db8::2]:2222"),
        ("[2001:db8::2]", Target("2001:db8::2"), "ssh://[2001:db8::2]"),
    ],
)
def test_a_target_is_taken_apart_once(text: str, target: Target, url: str):
    assert Target.parse(text) == target
    assert target.url == url


@pytest.mark.parametrize("text", ["", "a b", "ops@", "a@b@c", "worker:port", "2001:db8::2", "-oX=y z"])
def test_a_text_that_is_not_a_target_is_refused(text: str):
    with pytest.raises(ValueError):
        Target.parse(text)


def test_a_command_never_prompts_never_waits_without_a_limit_and_never_takes_an_unknown_host():
    assert ssh_argv(Target("worker", "ops", 2222), "true", multiplexed=True) == [
        "ssh",
        *("-o", "BatchMode=yes"),
        *("-o", "StrictHostKeyChecking=yes"),
        *("-o", "ConnectTimeout=8"),
        *("-o", "ServerAliveInterval=5"),
        *("-o", "ServerAliveCountMax=3"),
        *("-o", "RemoteCommand=none"),
        *("-o", "RequestTTY=no"),
        *("-o", "PermitLocalCommand=no"),
        *("-o", "ClearAllForwardings=yes"),
        "-T",
        *("-l", "ops", "-p", "2222", "worker"),
        "true",
    ]


def test_calls_share_a_connection_unless_the_users_configuration_does_so_already():
    shared = ssh_argv(Target("worker", config=Path("lab/ssh_config")), "true", multiplexed=False)
    assert shared[:3] == ["ssh", "-F", "lab/ssh_config"]
    assert "ControlMaster=auto" in shared and "ControlPath=~/.ssh/spark-%C" in shared
    assert not any("Control" in word for word in ssh_argv(Target("worker"), "true", multiplexed=True))


CONFIG = """
Host spark-b
  HostName 203.0.113.7
  User ops
  Port 2222
  IdentityFile /keys/one
  IdentityFile /keys/two
  UserKnownHostsFile /keys/known_hosts
  HostKeyAlias spark-b.example.net
  ProxyJump jump@198.51.100.9:2200
  ControlMaster auto
  ControlPath /run/spark-%C
"""


def test_an_alias_of_the_ssh_configuration_is_what_the_ssh_program_makes_of_it(tmp_path: Path):
    """Port, user, identity and host key alias, without a connection."""
    config = tmp_path / "ssh_config"
    config.write_text(CONFIG)
    settings = resolve(Target("spark-b", config=config))
    assert (settings.host, settings.user, settings.port) == ("203.0.113.7", "ops", 2222)
    assert settings.identity_files == [Path("/keys/one"), Path("/keys/two")]
    assert Path("/keys/known_hosts") in settings.known_hosts_files
    assert settings.host_key_alias == "spark-b.example.net"
    assert Target.parse(settings.proxy_jump or "") == Target("198.51.100.9", "jump", 2200)
    assert settings.multiplexed


def test_a_control_path_without_a_master_shares_no_connection(tmp_path: Path):
    config = tmp_path / "ssh_config"
    config.write_text(CONFIG.replace("  ControlMaster auto\n", ""))
    assert not resolve(Target("spark-b", config=config)).multiplexed


def test_what_the_target_says_itself_wins_over_the_configuration(tmp_path: Path):
    config = tmp_path / "ssh_config"
    config.write_text(CONFIG)
    settings = resolve(Target("spark-b", "root", 22, config))
    assert (settings.user, settings.port) == ("root", 22)


def test_a_broken_ssh_configuration_is_an_error_with_sshs_own_message(tmp_path: Path):
    config = tmp_path / "ssh_config"
    config.write_text("Prot 22\n")
    with pytest.raises(SshError) as caught:
        resolve(Target("spark-b", config=config))
    text = str(caught.value)
    assert text.startswith("ssh -G spark-b failed: ") and text.endswith(": correct the SSH configuration")
    assert "bad configuration option: prot" in text.lower()


def test_a_configuration_for_people_does_not_get_in_the_way(tmp_path: Path):
    """What ssh itself makes of our options, where an alias starts tmux on a terminal and forwards ports."""
    config = tmp_path / "ssh_config"
    config.write_text(
        "Host spark-b\n  RemoteCommand tmux new -A -s main\n  RequestTTY force\n  PermitLocalCommand yes\n"
        "  LocalForward 8888 127.0.0.1:8888\n"
    )
    argv = ssh_argv(Target("spark-b", config=config), "true", multiplexed=True)
    asked = subprocess.run([argv[0], "-G", *argv[1:]], capture_output=True, text=True, timeout=10, check=True)
    settings = dict(line.split(" ", 1) for line in asked.stdout.splitlines())
    assert (settings.get("remotecommand", "none"), settings["requesttty"]) == ("none", "false")
    assert (settings["permitlocalcommand"], settings["clearallforwardings"]) == ("no", "yes")


def test_a_key_whose_path_has_a_blank_is_one_key(tmp_path: Path):
    config = tmp_path / "ssh_config"
    config.write_text('Host spark-b\n  IdentityFile "/Users/ann/Application Support/NVIDIA/id"\n')
    assert resolve(Target("spark-b", config=config)).identity_files == [
        Path("/Users/ann/Application Support/NVIDIA/id")
    ]


@pytest.mark.parametrize(
    ("program", "does", "message"),
    [
        ("ssh", "sleep 9", r"ssh -G spark-b gave no answer within 0.1 s: a Match exec of the configuration may hang"),
        ("ssh-add", "sleep 9", r"ssh-add -L gave no answer within 0.1 s: the SSH agent does not answer"),
        ("ssh", None, r"there is no ssh on PATH: install OpenSSH's client"),
    ],
)
def test_a_program_of_openssh_that_hangs_or_is_missing_is_an_error_with_a_way_out(
    program: str, does: str | None, message: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(target, "TOOL_S", 0.1)
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    if does is None:
        monkeypatch.setenv("PATH", "/nonexistent")
    else:
        recorder.answer(program, f"exec {does}")
    with pytest.raises(SshError, match=message):
        agent_keys(resolved()) if program == "ssh-add" else resolve(Target("spark-b"))


def test_none_and_false_of_sshs_answer_are_nothing():
    settings = parse_settings(
        "hostname h\nuser u\nport 22\nidentityfile none\nproxyjump none\ncontrolpath none\ncontrolmaster false\n"
        "identityagent none\nuserknownhostsfile /a /b\nglobalknownhostsfile none\n"
    )
    assert settings == Resolved("h", "u", 22, [], [Path("/a"), Path("/b")])


# --- the host key ---

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEz6cLhIsSzuxTbzFRPyS7DRKKgvq6mpXr0Vm+pnTXn1"
RSA = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7"


def known_hosts(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return file


def test_the_known_key_of_a_node_is_found_ed25519_first(tmp_path: Path):
    file = known_hosts(tmp_path, f"203.0.113.7 {RSA} old\n203.0.113.7 {ED25519}\n203.0.113.8 {RSA}\n")
    assert host_key(resolved(known_hosts_files=[tmp_path / "absent", file])) == ED25519


@pytest.mark.parametrize(
    ("line", "port", "alias"),
    [
        ("[203.0.113.7]:2222", 2222, None),
        ("spark-b", 22, "spark-b"),
        # ssh looks an alias up as it is, whatever the port
        ("spark-b", 2222, "spark-b"),
    ],
)
def test_a_key_is_known_under_the_name_that_ssh_looks_up(line: str, port: int, alias: str | None, tmp_path: Path):
    file = known_hosts(tmp_path, f"{line} {ED25519}\n")
    assert host_key(resolved(port=port, host_key_alias=alias, known_hosts_files=[file])) == ED25519


def test_a_key_of_another_port_is_another_machine(tmp_path: Path):
    file = known_hosts(tmp_path, f"203.0.113.7 {ED25519}\n")
    with pytest.raises(SshError) as caught:
        host_key(resolved(port=2222, known_hosts_files=[file]))
    assert str(caught.value) == (
        f"the host key of [203.0.113.7]:2222 is in none of {file}, so another machine could pass for the node: "
        "connect once with `ssh -p 2222 ops@203.0.113.7` and compare the fingerprint"
    )


def test_a_revoked_key_is_not_known(tmp_path: Path):
    file = known_hosts(tmp_path, f"@revoked 203.0.113.7 {ED25519}\n")
    with pytest.raises(SshError, match="in none of"):
        host_key(resolved(known_hosts_files=[file]))


def test_a_hashed_name_is_found(tmp_path: Path):
    file = known_hosts(tmp_path, f"203.0.113.7 {ED25519}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "203.0.113.7" not in file.read_text()
    assert host_key(resolved(known_hosts_files=[file])) == ED25519
