"""The lock on a hub cache: a checkpoint job holds it while it runs, and prune while it lists or removes."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(hub: Path | str, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the lock; yields whether we got it. With `waiting`, call that once if another holds it, and wait for it."""
    folder = os.open(hub, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except BlockingIOError:
            ours = waiting is not None
            if waiting is not None:
                waiting()
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield ours
    finally:
        os.close(folder)
