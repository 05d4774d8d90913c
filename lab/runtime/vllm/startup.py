"""All ranks from nothing to ready, and the last lines of a rank that did not get there."""

import time

from . import memory
from .config import Config
from .errors import DistNetworkError, PeerLostError
from .fabric import Nccl
from .log import Voices, trace
from .shm_broadcast import dequeue
from .worker import Worker

FAILED_WORKER = (
    "WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
)
FAILED_CORE = "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"


def start(worker: Worker, voices: Voices) -> int | None:
    """The KV pool in tokens once every rank is ready; None after the failure's lines were printed."""
    began = time.monotonic()
    try:
        pool = bring_up(worker, voices)
    except PeerLostError as loss:
        lose_peer(loss, voices, worker.config)
        return None
    except Exception as error:
        if isinstance(error, Nccl):
            error.print(voices.worker, worker.config.node_rank)
        voices.worker.error("multiproc_executor.py:898", "WorkerProc failed to start.", error)
        give_up(Exception(FAILED_WORKER), voices, worker.config)
        return None
    if not worker.config.headless:
        took = time.monotonic() - began
        voices.engine.info(
            "core.py:282", f"init engine (profile, create kv cache, warmup model) took {took:.2f} seconds"
        )
    return pool


def bring_up(worker: Worker, voices: Voices) -> int:
    """The phases in vLLM's order, every rank waiting for the others between them. Returns the pool in tokens."""
    config = worker.config
    group = worker.init_device()
    worker.load_model()
    group.barrier("loaded")
    words = group.barrier("kv", worker.kv_bytes())
    kv_bytes = min(words.values())
    memory.pool_is_enough(kv_bytes, config.max_model_len, config.num_speculative_tokens)
    pool = memory.pool_tokens(kv_bytes, config.num_speculative_tokens)
    if not config.headless:
        voices.engine.info("kv_cache_utils.py:1733", f"GPU KV cache size: {pool:,} tokens")
        concurrency = f"{pool / config.max_model_len:.2f}x"
        length = f"{config.max_model_len:,} tokens per request"
        voices.engine.info("kv_cache_utils.py:1734", f"Maximum concurrency for {length}: {concurrency}")
    worker.capture()
    group.barrier("captured")
    return pool


def lose_peer(loss: PeerLostError, voices: Voices, config: Config) -> None:
    """Another rank went away before all were ready."""
    if config.headless:
        closed = DistNetworkError(
            f"Failed to recv, got 0 bytes. Connection was likely closed by peer [{loss.ip}]. "
            "Did the remote server shutdown or crash?"
        )
        voices.worker.error("multiproc_executor.py:898", "WorkerProc failed to start.", closed)
        give_up(Exception(FAILED_WORKER), voices, config)
    else:
        worker_died(loss, voices)
        give_up(cancelled(loss), voices, config)


def worker_died(loss: PeerLostError, voices: Voices) -> None:
    """The head's words about a lost worker."""
    died = f"Worker proc VllmWorker-{loss.rank} died unexpectedly, shutting down executor."
    voices.engine.error("multiproc_executor.py:312", died)
    where = f"(VllmWorker-{loss.rank}, ip={loss.ip})"
    voices.engine.raw(f"{where} the connection to this worker was lost; its own log has the cause")


def cancelled(loss: PeerLostError) -> RuntimeError:
    """What the engine's queue raises then, with its traceback."""
    try:
        dequeue(loss)
    except RuntimeError as error:
        return error


def give_up(error: BaseException, voices: Voices, config: Config) -> None:
    """The engine core's last lines and the API server's, or the headless rank's traceback."""
    if config.headless:
        voices.api.raw(trace(error))
        return
    voices.engine.error("core.py:1374", "EngineCore failed to start.", error)
    voices.api.raw(trace(RuntimeError(FAILED_CORE)))
