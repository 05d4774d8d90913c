"""Docker's state of a rank's container, asked over SSH."""

import json
import subprocess
from dataclasses import dataclass

from components.facts.generation import ending
from components.ssh.shell import command_line
from components.ssh.target import Resolved, Target, ssh_argv


@dataclass(frozen=True)
class RankState:
    """What a start needs to know of Docker's State."""

    running: bool = False
    healthy: bool = False
    """Whether the container's health check passes."""
    exit_code: int | None = None
    oom_killed: bool = False
    error: str = ""
    """Why dockerd could not start it."""
    finished_at: str = ""
    """ISO 8601; of ended containers the first is the cause."""
    lost: str = ""
    """Why Docker's state is not known: no such container, or a node that does not answer."""

    @property
    def ending(self) -> str:
        """How a container that does not run ended."""
        if self.lost:
            return f"cannot be seen any more: {self.lost}"
        return ending(self.exit_code, self.oom_killed, self.error)


def inspect(target: Target, resolved: Resolved, container: str) -> RankState:
    """The container's state now; `lost` says why when there is none."""
    line = command_line(["timeout", "20", "docker", "inspect", "--format", "{{json .State}}", container])
    argv = ssh_argv(target, line, multiplexed=resolved.multiplexed)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=40, check=False)
    except subprocess.TimeoutExpired:
        return RankState(lost="the node does not answer any more")
    if done.returncode:
        return RankState(lost=done.stderr.strip() or f"docker inspect ended with {done.returncode}")
    state = json.loads(done.stdout)
    return RankState(
        running=state.get("Running", False),
        healthy=state.get("Health", {}).get("Status") == "healthy",
        exit_code=state.get("ExitCode"),
        oom_killed=state.get("OOMKilled", False),
        error=state.get("Error", ""),
        finished_at=state.get("FinishedAt", ""),
    )
