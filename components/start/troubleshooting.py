"""The troubleshooting table as data: docs/troubleshooting.md shows it, and a failed `up` quotes from it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

TABLE = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Row:
    symptom: str
    log: str
    """Regular expression over a log line."""
    cause: str
    fix: str


@cache
def rows() -> list[Row]:
    return [Row(**row) for row in yaml.load(TABLE.read_text(), yaml.CSafeLoader)]


def explain(lines: Iterable[str]) -> Row | None:
    """The first row of the table that matches one of the lines; rows are ordered from specific to general."""
    searched = list(lines)
    return next((row for row in rows() if any(re.search(row.log, line) for line in searched)), None)


def markdown() -> str:
    """docs/troubleshooting.md, made from the table."""
    lines = [
        "# Troubleshooting",
        "",
        "Symptom, cause, fix. A failed `pulumi up` ends with all ranks' last lines and the row that fits. Made from",
        "components/start/troubleshooting.yaml by",
        "`python -m components.start.troubleshooting > docs/troubleshooting.md`.",
        "",
        "| symptom | cause | fix |",
        "| --- | --- | --- |",
    ]
    cells = [[cell.replace("|", "\\|") for cell in (row.symptom, row.cause, row.fix)] for row in rows()]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)]) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
