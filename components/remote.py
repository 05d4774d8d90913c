"""Scripts of scripts/node as Pulumi resources, and pulumi-command's connection to a node."""

from collections.abc import Mapping
from typing import TypedDict, Unpack

import pulumi
import pulumi_command as command

from components.ssh.node_script import environment_payload
from components.ssh.shell import python_line
from components.ssh.target import Resolved, SshError, Target, agent_socket, host_key, key_file, resolve
from loader import payload


class Hop(TypedDict):
    """Arguments of a connection to a node or to its jump host."""

    host: str
    port: int
    user: str
    host_key: str
    private_key: pulumi.Output[str] | None
    agent_socket_path: str | None
    dial_error_limit: int
    per_dial_timeout: int


def hop(resolved: Resolved) -> Hop:
    """The agent rather than a key file, and always the host key. Raises SshError when it finds none."""
    key = key_file(resolved)
    return {
        "host": resolved.host,
        "port": resolved.port,
        "user": resolved.user,
        "host_key": host_key(resolved),
        "private_key": pulumi.Output.secret(key.read_text()) if key else None,
        "agent_socket_path": None if key else agent_socket(resolved),
        # one attempt: a wrong key or a node that is off must not cost ten time-outs
        "dial_error_limit": 1,
        "per_dial_timeout": 20,
    }


def connection(target: Target, resolved: Resolved | None) -> command.remote.ConnectionArgs:
    """pulumi-command's connection, filled from ssh's configuration.

    The key of an agent never enters the state; a key file does, as a secret. `resolved` is None with `facts: off`:
    nothing connects then, and neither a key nor a host key is looked for.
    """
    if resolved is None:
        return command.remote.ConnectionArgs(host=target.host, port=target.port, user=target.user)
    if resolved.proxy_command:
        raise SshError(
            f"ProxyCommand of {target.host}: the command provider connects by itself and cannot run "
            f"{resolved.proxy_command!r}: use ProxyJump with one host, or an address that this machine reaches"
        )
    jump = resolved.proxy_jump
    return command.remote.ConnectionArgs(**hop(resolved), proxy=proxy(target, jump) if jump else None)


def proxy(target: Target, jump: str) -> command.remote.ProxyConnectionArgs:
    """One ProxyJump hop; a chain is refused, since the provider supports only one."""
    if "," in jump:
        raise SshError(
            f"ProxyJump {jump} of {target.host} is a chain, but the command provider goes through one host only: "
            "jump through one host"
        )
    resolved = resolve(Target.parse(jump.removeprefix("ssh://"), target.config))
    return command.remote.ProxyConnectionArgs(**hop(resolved))


class ScriptOptions(TypedDict, total=False):
    note: str
    """Comes before the command as a no-op: the diff shows why the script runs again."""
    update_inputs: Mapping[str, object]
    """For running again, where they differ from the first time's."""
    delete_inputs: Mapping[str, object]
    """For the removal of the resource."""
    secrets: Mapping[str, pulumi.Input[str]]
    """Environment variables, which reach the script over stdin."""
    variables: Mapping[str, pulumi.Input[str]]
    """The same for outputs of another step that are not secret."""


def script_resource(
    resource_name: str,
    script: str,
    inputs: Mapping[str, object],
    *,
    connection: pulumi.Input[command.remote.ConnectionArgs],
    timeout_s: int,
    triggers: list[str] | None,
    opts: pulumi.ResourceOptions,
    **options: Unpack[ScriptOptions],
) -> command.remote.Command:
    """A script as a resource: it runs again when its text, its inputs, its note or a trigger changes.

    Its stderr is shown while it runs; its stdout is data and is not shown.
    """
    stdin: pulumi.Input[str] = payload(script)
    update, delete = options.get("update_inputs"), options.get("delete_inputs")
    secrets, variables = options.get("secrets"), options.get("variables")
    if secrets or variables:
        texts: pulumi.Output[dict[str, str]] = pulumi.Output.all(**(secrets or {}), **(variables or {}))
        if secrets:
            texts = pulumi.Output.secret(texts)
        stdin = texts.apply(lambda values: environment_payload(script, values))
    return command.remote.Command(
        resource_name,
        connection=connection,
        create=python_line(inputs, timeout_s, note=options.get("note", "")),
        update=python_line(update, timeout_s) if update else None,
        delete=python_line(delete, timeout_s) if delete else None,
        stdin=stdin,
        triggers=triggers,
        logging=command.remote.Logging.STDERR,
        # sshd refuses variables that it was not told to accept
        add_previous_output_in_env=False,
        opts=pulumi.ResourceOptions.merge(
            opts,
            pulumi.ResourceOptions(
                additional_secret_outputs=["stdout", "stderr"] if secrets else None,
                # whole scripts; the command that runs them shows why
                hide_diffs=["stdin"],
            ),
        ),
    )
