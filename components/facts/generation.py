"""Which start of the pair this is: the live one while all its ranks run, else a new one with a reason.

The ranks are one unit: `spark.generation` is a label of every rank, and when it changes, all of them are replaced.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

PATCHES = "spark.patches"
"""Label of a rank: its patches as NAME@HASH, in order."""


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
    patches: str = ""
    """The label PATCHES."""


@dataclass(frozen=True)
class Generation:
    name: str
    reason: str | None
    """Why the ranks are restarted; None when the live generation stays."""


UNKNOWN = Generation("unknown", None)
"""That of a preview without facts."""


def decide(live: Sequence[LiveRank | None], roles: Sequence[str], spec: str, patches: str = "") -> Generation:
    """`live` is in rank order, None where a node has no container of that rank; `spec` is the hash of what is declared.

    `patches` are the declared ones, as the label has them.

    A new name is random, since it must differ from all earlier ones even when no container is left that carries one.
    """
    reason = restart_reason(live, roles, spec)
    if reason and live[0] and (changes := patch_changes(live[0].patches, patches)):
        reason += f" ({changes})"
    if reason is None and live[0] and live[0].generation:
        return Generation(live[0].generation, None)
    return Generation(secrets.token_hex(4), reason)


def restart_reason(live: Sequence[LiveRank | None], roles: Sequence[str], spec: str) -> str | None:
    """None when all ranks run, in one generation and with this spec."""
    ranks = [rank for rank in live if rank]
    if not ranks:
        return "no rank exists yet"
    missing = [role for role, rank in zip(roles, live, strict=True) if rank is None]
    if missing:
        return f"{missing[0]} has no rank, so the pair is incomplete"
    ended = [(rank.role, ending(rank.exit_code, rank.oom_killed, rank.error)) for rank in ranks if not rank.running]
    if ended:
        return " and ".join(f"{role}'s rank {how}" for role, how in ended)
    if len({rank.generation for rank in ranks}) > 1:
        return "the ranks are of different generations: " + ", ".join(
            f"{rank.role} {rank.generation}" for rank in ranks
        )
    if not ranks[0].generation:
        return "the ranks carry no generation"
    if any(rank.spec != spec for rank in ranks):
        return "the ranks were started from other settings"
    return None


def ending(exit_code: int | None, oom_killed: bool, error: str) -> str:
    """How a container that does not run ended, from Docker's state; `error` is why dockerd could not start it."""
    if oom_killed:
        return "was killed for lack of memory"
    return f"could not start: {error}" if error else f"ended with exit code {exit_code}"


def patch_changes(before: str, after: str) -> str:
    """What is different between two labels PATCHES, in words; empty when nothing is."""
    if before == after:
        return ""
    old, new = (dict(patch.split("@") for patch in label.split()) for label in (before, after))
    kinds = {
        "new": [name for name in new if name not in old],
        "changed": [name for name in new if name in old and new[name] != old[name]],
        "left out": [name for name in old if name not in new],
    }
    changes = [f"{', '.join(names)} {kind}" for kind, names in kinds.items() if names]
    return f"patches: {'; '.join(changes) or 'in another order'}"
