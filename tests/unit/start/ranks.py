"""A rank as the watcher sees it, and what real ranks said, for the tests of a start."""

from pathlib import Path

from components.ssh.target import Resolved, Target
from components.start.watched import Watched

RESOLVED = Resolved("203.0.113.7", "ops", 22, [], [], multiplexed=True)
LOGS = Path(__file__).with_name("logs")
"""The lines that matter of failed starts of a real vLLM 0.25.1 on CPUs, with one frame of each traceback.

rank.py's own lines are today's.
"""


def rank(role: str, number: int) -> Watched:
    return Watched(role, f"spark-dev-rank{number}", Target(f"spark-{role}"), RESOLVED)


def lines_of(failure: str, role: str) -> list[str]:
    """Empty for a rank that was not there."""
    log = LOGS / f"{failure}.{role}.log"
    return log.read_text().splitlines() if log.exists() else []
