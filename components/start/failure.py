"""The end of a start that failed: which rank failed first and of what, and what that means."""

import re
from datetime import datetime

from components.start.troubleshooting import Row, explain
from components.start.watched import Watched, standing


class StartFailed(Exception):
    """The pair will not serve; the text shows all ranks' last lines and what they mean."""


def failure(ranks: list[Watched], seen: Watched, elapsed_s: float, what: str | None = None) -> StartFailed:
    """What a person needs to see: which rank failed first and of what, every rank's last lines, the row that fits.

    `seen` is the rank to name if none failed; `what` says what failed then.
    """
    first = failed_first(ranks)
    named = first or seen
    headline = what or f"{named.role}'s rank {standing(named, ranks)}"
    parts = [f"{headline}, {elapsed_s:.0f} s after the start"]
    if first and first.log.error.text:
        parts.append(f"first error, on {first.role}: {first.log.error.text}")
    for rank in ranks:
        parts.append(f"--- {rank.role}: {standing(rank, ranks)}; its last lines:")
        error = rank.log.error.text
        if error and rank is not first and not any(error in line for line in rank.log.tail):
            parts.append(f"    first error: {error}")
        parts += [f"    {line}" for line in rank.log.tail] or ["    (no line)"]
    row = meaning(headline, named, ranks)
    if row:
        parts += [f"what this means: {row.cause}", f"way out: {row.fix}"]
    else:
        parts.append(
            f"no row of docs/troubleshooting.md fits: on {named.role}'s node, `docker logs {named.container}` also "
            "shows the tracebacks; pulumi up restarts both ranks"
        )
    return StartFailed("\n".join(parts))


def failed_first(ranks: list[Watched]) -> Watched | None:
    """The rank whose error or end came first; one that only lost its peer never did, if another failed too."""

    def order(rank: Watched) -> tuple[bool, float]:
        error = rank.log.error
        suffers = error.text is not None and (row := explain([error.text])) is not None and row.peer
        at = error.at or (rank.state.finished_at if rank.state else "")
        return suffers, datetime.fromisoformat(at).timestamp() if at else 0.0

    return min((rank for rank in ranks if rank.failed), key=order, default=None)


def meaning(headline: str, first: Watched, ranks: list[Watched]) -> Row | None:
    """The row that fits the first rank; where it died without a word, what the others say of it."""
    error = first.log.error.text
    row = explain([headline, *evidence(first)])
    if row and row.peer and error and not re.search(row.log, error):
        return None
    if row or error:
        return row
    return next((row for rank in ranks if (row := explain(evidence(rank)))), None)


def evidence(rank: Watched) -> list[str]:
    """What the rank said until its first error, and how Docker says that it ended."""
    ended = [rank.state.ending] if rank.state and not rank.state.running else []
    return [*ended, *([rank.log.error.text] if rank.log.error.text else []), *rank.log.error.evidence]
