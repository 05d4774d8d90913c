"""Run a command as root: by `sudo -n` if that is allowed, else through a privileged container of the image.

The container only enters the host's own mounts and runs the host's program there, so both ways do the same. It pulls
nothing. Raises NoRoot with what each way said, and RootError if the command itself failed or took too long.
"""

import os
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from host import enter_mounts
from host.exit_codes import KILLED, TIMED_OUT
from loader import text_of


class NoRoot(Exception):
    """Neither way is allowed on this node; the message says what each one answered."""


class RootError(Exception):
    """A command of root failed, with its own message."""


class Way(NamedTuple):
    """How this node gives us root's rights."""

    by: str
    """root, sudo or container."""
    prefix: tuple[str, ...]
    """Goes before the command."""


def way(stack: str, image: str | None, python: str) -> Way:
    """The first way that works now; without an image, not the container. Raises NoRoot."""
    if os.geteuid() == 0:
        return Way("root", ())
    ways = [Way("sudo", ("sudo", "-n", "--"))]
    if image is not None:
        ways.append(Way("container", container_argv(stack, image, python)))
    refusals = []
    for each in ways:
        try:
            run(each, ["true"], timeout_s=30)
        except RootError as error:
            refusals.append(f"{each.by}: {error}")
        else:
            return each
    raise NoRoot(
        f"this needs root, and no way to root is allowed ({'; '.join(refusals)}): "
        "let the user of this node run sudo without a password, or add it to group docker"
    )


def container_argv(stack: str, image: str, python: str) -> tuple[str, ...]:
    argv = ["docker", "run", "--rm", "--pull", "never", "--privileged", "--pid", "host", "--network", "host"]
    argv += ["--label", f"spark.stack={stack}", "--label", "spark.job=root"]
    return (*argv, "--entrypoint", python, image, "-c", text_of(enter_mounts.__name__))


def run(by: Way, argv: Sequence[str], *, timeout_s: float) -> str:
    """Run one command as root with an empty stdin and return its stdout. Raises RootError."""
    # we cannot end sudo's child, and a container outlives its client, so root itself keeps the limit
    whole = [*by.prefix, "timeout", "-k", "5", f"{timeout_s:g}", *argv]
    try:
        done = subprocess.run(whole, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s + 60)
    except FileNotFoundError:
        raise RootError(f"{whole[0]} is not on the PATH of an SSH session on this node") from None
    except (subprocess.TimeoutExpired, PermissionError):
        raise RootError(
            f"`{argv[0]}` did not even start within {timeout_s + 60:g} s: is the node overloaded?"
        ) from None
    command = argv[2] if argv[0] == "sh" else " ".join(argv)
    if done.returncode in (TIMED_OUT, KILLED):
        raise RootError(f"`{command}` was ended after {timeout_s:g} s")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("See 'docker")]
        reason = "; ".join(lines) or f"exit code {done.returncode}"
        raise RootError(f"`{command}` failed: {reason}" if argv != ["true"] else reason)
    return done.stdout
