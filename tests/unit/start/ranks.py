"""A rank as the watcher sees it, for the tests of a start."""

from components.ssh.target import Resolved, Target
from components.start.watch import Watched

RESOLVED = Resolved("203.0.113.7", "ops", 22, [], [], multiplexed=True)


def rank(role: str, number: int) -> Watched:
    return Watched(role, f"spark-dev-rank{number}", Target(f"spark-{role}"), RESOLVED)
