"""Running a script of scripts/node, named as a module (gid.lookup), on a node from plain Python.

It goes over SSH on stdin to `python3 -`, so nothing is left on the node. Its inputs are one JSON argument, its stdout
is its result, and its stderr is for a person.
"""

import subprocess
from collections.abc import Mapping

from components.ssh.shell import python_line
from components.ssh.target import Resolved, SshError, Target, ssh_argv
from host.exit_codes import SSH_FAILED, TIMED_OUT
from loader import payload


def environment_payload(name: str, variables: Mapping[str, str]) -> str:
    """Like payload, with environment variables for the script: nobody else sees stdin, whereas everybody sees argv."""
    return f"import os\nos.environ.update({dict(variables)!r})\n{payload(name)}"


WAYS_OUT = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": "if the node was installed anew, remove its old key with ssh-keygen -R "
    "and connect once by hand; if not, another machine answers",
    "Host key verification failed": "connect once with `ssh` by hand and compare the fingerprint",
    "Permission denied": "load the key with ssh-add, or put it into the node's ~/.ssh/authorized_keys",
    "Could not resolve hostname": "correct the node's ssh in the stack file, or its HostName in the SSH config",
    "Connection refused": "start sshd on the node, or correct the port",
}


def way_out(stderr: str) -> str:
    """What a person can do about a connection that failed, by ssh's own messages."""
    otherwise = "switch the node on, check its management network's cable, or try `ssh` by hand"
    return next((way for message, way in WAYS_OUT.items() if message in stderr), otherwise)


def run_script(target: Target, resolved: Resolved, name: str, inputs: Mapping[str, object], *, timeout_s: int) -> str:
    """Run a script on a node now and return its stdout.

    Raises SshError with node and step: the node is not reachable, the script took too long, or its own reason.
    """
    argv = ssh_argv(target, python_line(inputs, timeout_s), multiplexed=resolved.multiplexed)
    try:
        done = subprocess.run(
            argv, input=payload(name), capture_output=True, text=True, timeout=timeout_s + 20, check=False
        )
    except subprocess.TimeoutExpired:
        raise SshError(
            f"{name} on {target.host} gave no answer within {timeout_s + 20} s: check whether the node is overloaded"
        ) from None
    if done.returncode == SSH_FAILED:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        where = f"{target.host} ({resolved.user}@{resolved.host} port {resolved.port})"
        raise SshError(f"SSH to {where} failed before {name}: {reason}: {way_out(done.stderr)}")
    if done.returncode == TIMED_OUT:
        raise SshError(f"{name} on {target.host} was ended after {timeout_s} s: check whether the node is overloaded")
    if done.returncode:
        reason = done.stderr.strip() or "no reason given"
        raise SshError(f"{name} on {target.host} ended with exit code {done.returncode}: {reason}")
    return done.stdout
