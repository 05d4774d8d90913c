"""What the stack declares, and the plain functions that compute it."""

import sys
from pathlib import Path

# rules that run on a node also judge facts here: the same files, not a copy
sys.path.append(str(Path(__file__).parent.parent / "scripts" / "node"))
