"""The project's own Python for a script that somebody, or the engine, runs with whatever `python3` is on PATH.

Must be imported before anything that is not in the standard library.
"""

import importlib.util
import os
import sys
from pathlib import Path

VENV = Path(__file__).absolute().parent.parent / ".venv"


def use() -> None:
    """Start this script again in `.venv` unless it runs there; without a `.venv`, end it when packages are missing."""
    python = VENV / "bin" / "python"
    if python.exists() and Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(python, [str(python), *sys.argv])
    if importlib.util.find_spec("pydantic") is None:
        sys.exit("the project's Python packages are missing: scripts/setup python installs them into .venv")
