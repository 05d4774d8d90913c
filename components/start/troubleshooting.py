"""The troubleshooting table as data: docs/troubleshooting.md shows it, and a failed `up` quotes from it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
    """Here and in `cause`, {name} quotes that group of `log`."""
    peer: bool = False
    """Whether the rank that says so suffers from what another rank did."""

    def quoting(self, groups: Mapping[str, str]) -> "Row":
        cause, fix = self.cause, self.fix
        for name, value in groups.items():
            cause, fix = (text.replace(f"{{{name}}}", value) for text in (cause, fix))
        return replace(self, cause=cause, fix=fix)


@cache
def rows() -> list[Row]:
    return [Row(**row) for row in yaml.load(TABLE.read_text(), yaml.CSafeLoader)]


def explain(lines: Iterable[str]) -> Row | None:
    """The first row of the table that matches one of the lines; rows are ordered from specific to general."""
    searched = list(lines)
    for row in rows():
        for line in searched:
            if match := re.search(row.log, line):
                return row.quoting(match.groupdict())
    return None


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
    shown = [row.quoting({name: name.upper() for name in re.compile(row.log).groupindex}) for row in rows()]
    cells = [[cell.replace("|", "\\|") for cell in (row.symptom, row.cause, row.fix)] for row in shown]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)]) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
