"""A worker rank that is ready: it says nothing more until its end, and then always leaves with exit code 0."""

import signal
import threading
import time

from .errors import PeerLostError
from .faults import DIE_AFTER_S, POLL_S, fault_of
from .log import Voices
from .worker import Worker


def run(worker: Worker, voices: Voices) -> int:
    """Until SIGTERM, until the head is lost, or until the rank's own GPU process dies. Does not return."""
    rank, group = worker.config.node_rank, worker.started_group
    wake, told = threading.Event(), threading.Event()

    def stop(*_: object) -> None:
        told.set()
        wake.set()

    signal.signal(signal.SIGTERM, stop)
    group.on_loss = lambda loss: wake.set()
    while group.lost is None and not told.is_set():
        wake.wait(POLL_S)
        if not wake.is_set() and fault_of(rank) == "die-after-ready" and not wake.wait(DIE_AFTER_S):
            illegal = RuntimeError("CUDA error: an illegal memory access was encountered")
            voices.worker.error("multiproc_executor.py:985", "WorkerProc hit an exception.", illegal)
            executor_ends(rank, voices)
            return worker.leave(0)
    if group.lost and not told.is_set():
        head_is_lost(rank, group.lost, voices)
    return worker.leave(0)


def head_is_lost(rank: int, loss: PeerLostError, voices: Voices) -> None:
    """torch's watchdog notices first, then the executor."""
    voices.worker.raw(
        f"[rank{rank}]:[W{time.strftime('%m%d %H:%M:%S')} ProcessGroupNCCL.cpp:1783] Failed to check the "
        f'"should dump" flag on TCPStore at {loss.ip}, with error: Failed to recv, got 0 bytes. '
        "Connection was likely closed. Did the remote server shutdown or crash?"
    )
    executor_ends(rank, voices)


def executor_ends(rank: int, voices: Voices) -> None:
    died = f"Worker proc VllmWorker-{rank} died unexpectedly, shutting down executor."
    voices.api.error("multiproc_executor.py:312", died)
