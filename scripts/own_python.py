"""The project's own Python, for a script that a person or the engine starts with whatever `python3` is on PATH.

Import it before anything outside the standard library.
"""

import importlib.util
import os
import sys
from pathlib import Path

VENV = Path(__file__).absolute().parent.parent / ".venv"


def use() -> None:
    """Restart this script in `.venv` unless it runs there; without a `.venv`, exit when packages are missing."""
    python = VENV / "bin" / "python"
    if python.exists() and Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(python, [str(python), *sys.argv])
    if importlib.util.find_spec("pydantic") is None:
        sys.exit("the project's Python packages are missing: scripts/setup python installs them into .venv")
