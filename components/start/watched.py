"""One rank while its start is followed, and what a person reads about it."""

from dataclasses import dataclass, field

from components.ssh.target import Resolved, Target, ssh_argv
from components.start.rank_log import MEETING, RankLog
from components.start.rank_state import RankState, inspect


@dataclass
class Watched:
    """One rank as the watcher sees it."""

    role: str
    container: str
    target: Target
    resolved: Resolved
    log: RankLog = field(default_factory=RankLog)
    memory: str = ""
    """The node's last MemAvailable, ready to print."""
    reconnects: int = 0
    state: RankState | None = None
    """Set once the container has ended, or the start has failed."""
    failing_since: float | None = None
    """When the engine said that it ends, on this process's monotonic clock."""

    def ssh(self, line: str) -> list[str]:
        return ssh_argv(self.target, line, multiplexed=self.resolved.multiplexed)

    def inspect(self) -> RankState:
        return inspect(self.target, self.resolved, self.container)

    @property
    def failed(self) -> bool:
        """Whether its container has ended, or a process in it has."""
        return self.log.error.fatal or (self.state is not None and not self.state.running)


def doing(rank: Watched, ranks: list[Watched]) -> str:
    """What a rank does now; one that waits, also for whom."""
    if rank.log.error.fatal:
        return "has failed"
    if rank is not ranks[0] and ranks[0].log.serves:
        # a headless rank prints nothing once its memory is set up
        return "runs"
    if rank.log.phase != MEETING:
        return str(rank.log)
    others = [other for other in ranks if other is not rank]
    late = [other.role for other in others if not other.log.arrived]
    return f"{rank.log} for {' and '.join(late or [other.role for other in others])}"


def standing(rank: Watched, ranks: list[Watched]) -> str:
    """How a rank's container ended, or what it is still doing."""
    if rank.state and not rank.state.running:
        return rank.state.ending
    return "has failed, but its container still runs" if rank.log.error.fatal else f"still {doing(rank, ranks)}"
