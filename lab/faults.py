"""Faults of the stand-in engine, by rank. They are in a file that the hub serves to the ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path

from lab.place import Place
from lab.report import LabError

NAMES = ("die-at-load", "hang-at-load", "hang-after-ready", "slow", "out-of-memory", "die-after-ready")
NONE = "none"


def read(place: Place) -> dict[str, str]:
    """The faults by rank."""
    try:
        faults: dict[str, str] = json.loads(place.faults.read_text())
    except FileNotFoundError:
        return {}
    return faults


def put(place: Place, rank: int, name: str) -> None:
    """Give a rank a fault, or `none`, from its next start on. Raises LabError for an unknown fault."""
    if name not in (*NAMES, NONE):
        raise LabError(f"there is no fault {name!r}: the faults are {', '.join(NAMES)}, and {NONE}")
    faults = {key: value for key, value in read(place).items() if key != str(rank)}
    _write(place, faults if name == NONE else faults | {str(rank): name})


def clear(place: Place) -> None:
    """Remove every rank's fault."""
    _write(place, {})


def _write(place: Place, faults: dict[str, str]) -> None:
    place.root.mkdir(parents=True, exist_ok=True)
    new: Path = place.faults.with_suffix(".new")
    new.write_text(json.dumps(faults, indent=1, sort_keys=True) + "\n")
    # the hub may read at any moment: it sees either the old faults or the new ones
    os.replace(new, place.faults)
