"""Which start of the pair this is: the live one while it is whole, else a new one with its reason.

The ranks are one unit. `spark.generation` is a label of every rank; when it changes, all of them are replaced.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LiveRank:
    """A rank's container as a node reports it."""

    role: str
    """head, worker, ..."""
    running: bool
    generation: str | None
    spec: str | None
    exit_code: int | None = None
    oom_killed: bool = False
    error: str = ""


@dataclass(frozen=True)
class Generation:
    name: str
    reason: str | None
    """Why the ranks start anew; None when the live generation stays."""


UNKNOWN = Generation("unknown", None)
"""Of a preview without facts."""


def decide(live: Sequence[LiveRank | None], roles: Sequence[str], wanted_spec: str) -> Generation:
    """`live` in rank order, None where a node has no container of that rank.

    A new name is random: it must differ from every earlier one, also when no container is left to tell what that was.
    """
    reason = why_not_whole(live, roles, wanted_spec)
    if reason is None and live[0] and live[0].generation:
        return Generation(live[0].generation, None)
    return Generation(secrets.token_hex(4), reason)


def why_not_whole(live: Sequence[LiveRank | None], roles: Sequence[str], wanted_spec: str) -> str | None:
    """None when all ranks run, of one generation and of the wanted spec; else what is off."""
    ranks = [rank for rank in live if rank]
    if not ranks:
        return "no rank exists yet"
    missing = [role for role, rank in zip(roles, live, strict=True) if rank is None]
    if missing:
        return f"{missing[0]} has no rank, the pair is only half there"
    ended = [f"{rank.role}'s rank {rank.error or how_it_ended(rank)}" for rank in ranks if not rank.running]
    if ended:
        return " and ".join(ended)
    if len({rank.generation for rank in ranks}) > 1:
        return "the ranks are of different generations: " + ", ".join(
            f"{rank.role} {rank.generation}" for rank in ranks
        )
    if not ranks[0].generation:
        return "the ranks carry no generation"
    if any(rank.spec != wanted_spec for rank in ranks):
        return "the ranks were started from other settings"
    return None


def how_it_ended(rank: LiveRank) -> str:
    return "was killed for lack of memory" if rank.oom_killed else f"ended with exit code {rank.exit_code}"
