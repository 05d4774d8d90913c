"""SSH to a node: the `ssh` program's own configuration, read once and used by everything that connects.

The docker provider and our own calls run `ssh`. pulumi-command has a client of its own that reads no configuration, so
components/remote.py fills its connection from what `ssh -G` prints.
"""

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from components.settings.cluster import ClusterSettings
from components.settings.engine_settings import in_url
from components.settings.sections import SSH_TARGET
from components.ssh.shell import command_line

CONNECT_TIMEOUT_S = 8
"""Limit of TCP connect and banner together, so that a powered-off node is named within 15 s."""
TOOL_S = 10
"""Limit of a program of OpenSSH that connects to nothing."""


class SshError(Exception):
    """A node could not be reached, or a command on it failed; the text has the step and the way out."""


@dataclass(frozen=True)
class Target:
    """How to reach one node: arguments for the ssh program."""

    host: str
    user: str | None = None
    port: int | None = None
    config: Path | None = None

    @classmethod
    def parse(cls, text: str, config: Path | None = None) -> "Target":
        match = SSH_TARGET.fullmatch(text)
        if not match:
            raise ValueError(f"{text!r} is not an SSH target")
        return cls(match["host"].strip("[]"), match["user"], int(match["port"]) if match["port"] else None, config)

    @property
    def options(self) -> list[str]:
        """Options of every connection: no prompt, no unlimited wait, no unknown host key, only our command."""
        config = ["-F", str(self.config)] if self.config else []
        options = ["BatchMode=yes", "StrictHostKeyChecking=yes", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
        options += ["ServerAliveInterval=5", "ServerAliveCountMax=3"]
        # what a configuration for people has: a terminal with tmux, a local command, forwarded ports
        options += ["RemoteCommand=none", "RequestTTY=no", "PermitLocalCommand=no", "ClearAllForwardings=yes"]
        return [*config, *with_flag(options)]

    @property
    def multiplexing(self) -> list[str]:
        """Options that let calls share a connection; %C keeps the socket's path short."""
        return with_flag(["ControlMaster=auto", "ControlPath=~/.ssh/spark-%C", "ControlPersist=60"])

    @property
    def destination(self) -> list[str]:
        user = ["-l", self.user] if self.user else []
        port = ["-p", str(self.port)] if self.port else []
        return [*user, *port, self.host]

    @property
    def url(self) -> str:
        """The docker provider's notation."""
        user, port = f"{self.user}@" if self.user else "", f":{self.port}" if self.port else ""
        return f"ssh://{user}{in_url(self.host)}{port}"


def with_flag(options: list[str]) -> list[str]:
    return [argument for option in options for argument in ("-o", option)]


@dataclass(frozen=True)
class Resolved:
    """What the ssh program would do for a target, from `ssh -G`."""

    host: str
    user: str
    port: int
    identity_files: list[Path]
    known_hosts_files: list[Path]
    host_key_alias: str | None = None
    proxy_jump: str | None = None
    proxy_command: str | None = None
    multiplexed: bool = False
    identity_agent: str | None = None


def targets_of(cluster: ClusterSettings) -> list[Target]:
    """How the stack file says to reach each node, in rank order."""
    return [Target.parse(node.ssh, cluster.ssh_config) for node in cluster.nodes]


def ssh_argv(target: Target, line: str, *, multiplexed: bool) -> list[str]:
    """argv of one remote command. `multiplexed`: the user's own configuration shares connections already."""
    return ["ssh", *target.options, *([] if multiplexed else target.multiplexing), "-T", *target.destination, line]


def run_tool(argv: list[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Ask a program of OpenSSH on the control host. Raises SshError when it is missing or hangs."""
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=TOOL_S, check=False, env=env
        )
    except FileNotFoundError:
        raise SshError(f"there is no {argv[0]} on PATH: install OpenSSH's client") from None
    except subprocess.TimeoutExpired:
        hangs = (
            "the SSH agent does not answer" if argv[0] == "ssh-add" else "a Match exec of the configuration may hang"
        )
        raise SshError(f"{command_line(argv)} gave no answer within {TOOL_S} s: {hangs}: try it by hand") from None


def resolve(target: Target) -> Resolved:
    """The ssh program's settings for a target, without connecting. Raises SshError for a broken configuration."""
    config = ["-F", str(target.config)] if target.config else []
    done = run_tool(["ssh", *config, "-G", *target.destination])
    if done.returncode:
        raise SshError(f"ssh -G {target.host} failed: {done.stderr.strip()}: correct the SSH configuration")
    return parse_settings(done.stdout)


def resolve_nodes(cluster: ClusterSettings) -> list[tuple[Target, Resolved]]:
    """Every node's target and what the ssh program makes of it, in rank order. Raises SshError."""
    return [(target, resolve(target)) for target in targets_of(cluster)]


def parse_settings(text: str) -> Resolved:
    """From the lines of `ssh -G`: a keyword and its value."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        values.setdefault(keyword.lower(), []).append(value)

    def one(keyword: str) -> str | None:
        value = values.get(keyword, ["none"])[-1]
        return None if value in ("none", "") else value

    def paths(texts: Iterable[str]) -> list[Path]:
        return [Path(os.path.expanduser(text)) for text in texts if text != "none"]

    def words(keyword: str) -> list[str]:
        return [word for value in values.get(keyword, []) for word in value.split()]

    return Resolved(
        host=values["hostname"][-1],
        user=values["user"][-1],
        port=int(values["port"][-1]),
        # one path a line, without quotes, so a blank belongs to it; the others are several on one line
        identity_files=paths(values.get("identityfile", [])),
        known_hosts_files=paths(words("userknownhostsfile") + words("globalknownhostsfile")),
        host_key_alias=one("hostkeyalias"),
        proxy_jump=one("proxyjump"),
        proxy_command=one("proxycommand"),
        multiplexed=one("controlpath") is not None
        and values.get("controlmaster", ["false"])[-1] not in ("no", "false"),
        identity_agent=one("identityagent"),
    )


def host_key(resolved: Resolved) -> str:
    """The node's public host key from known_hosts, as `type base64`; ed25519 before others.

    Raises SshError when there is none: an unknown key is never accepted silently.
    """
    # ssh looks up an alias as it is, and a host together with any port but 22
    host = resolved.host if resolved.port == 22 else f"[{resolved.host}]:{resolved.port}"
    name = resolved.host_key_alias or host
    keys: list[str] = []
    for file in resolved.known_hosts_files:
        if file.is_file():
            done = run_tool(["ssh-keygen", "-F", name, "-f", str(file)])
            # "names type key [comment]"; a line that starts with @ revokes or names a CA
            lines = [line.split() for line in done.stdout.splitlines() if line and not line.startswith(("#", "@"))]
            keys += [f"{parts[1]} {parts[2]}" for parts in lines if len(parts) >= 3]
    keys.sort(key=lambda key: not key.startswith("ssh-ed25519"))
    if not keys:
        raise SshError(
            f"the host key of {name} is in none of {', '.join(map(str, resolved.known_hosts_files))}, "
            "so another machine could pass for the node: connect once with "
            f"`ssh -p {resolved.port} {resolved.user}@{resolved.host}` and compare the fingerprint"
        )
    return keys[0]


def agent_socket(resolved: Resolved) -> str | None:
    """The agent that the configuration names; None for the one of SSH_AUTH_SOCK."""
    named = resolved.identity_agent
    if named is None or named == "SSH_AUTH_SOCK":
        return None
    return os.environ.get(named[1:]) if named.startswith("$") else os.path.expanduser(named)


def agent_keys(resolved: Resolved) -> list[str]:
    """Public keys (`type base64`) that the SSH agent holds; empty without an agent that answers."""
    environment = dict(os.environ)
    if socket := agent_socket(resolved):
        environment["SSH_AUTH_SOCK"] = socket
    if not environment.get("SSH_AUTH_SOCK"):
        return []
    listed = run_tool(["ssh-add", "-L"], environment)
    return [" ".join(line.split()[:2]) for line in listed.stdout.splitlines()] if listed.returncode == 0 else []


def public_key(private: Path) -> str | None:
    """`type base64` of a key file without a passphrase, else None."""
    done = run_tool(["ssh-keygen", "-y", "-P", "", "-f", str(private)])
    return " ".join(done.stdout.split()[:2]) if done.returncode == 0 else None


def key_file(resolved: Resolved) -> Path | None:
    """The key file for a client that does not read ssh's configuration; None when the agent holds the key.

    Raises SshError when there is neither.
    """
    agent = set(agent_keys(resolved))
    usable = [path for path in resolved.identity_files if path.is_file()]
    if agent and (not usable or any(public_key(path) in agent for path in usable)):
        return None
    for path in usable:
        if public_key(path):
            return path
    if agent:
        return None
    tried = ", ".join(map(str, resolved.identity_files)) or "no key file"
    raise SshError(
        f"no usable SSH key for {resolved.user}@{resolved.host}: no agent answers, and {tried} "
        "is missing or has a passphrase: load the key with ssh-add"
    )
