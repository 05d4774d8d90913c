"""All ranks from nothing to ready, and the last lines of a rank that did not get there.

The frames are quoted from the logs of real ranks, the ones that tell something.
"""

import time

from . import memory
from .fabric import Nccl
from .faults import pause
from .log import Frame, Voices, trace
from .worker import Worker

GRACE_S, TERM_S, KILL_S = 5.0, 4.0, 3.0
"""How long an executor waits for a worker that serves: to leave by itself, by SIGTERM, and after SIGKILL."""
FAILED_S = 2.0
"""A rank's end after its worker failed."""

EXECUTOR = "v1/executor/multiproc_executor.py"
INIT: Frame = (EXECUTOR, 865, "worker_main", "worker = WorkerProc(*args, **kwargs)")
READY: Frame = (EXECUTOR, 762, "wait_for_ready", "raise e from None")
CORE: Frame = (
    "v1/engine/core.py", 1200, "run_engine_core",
    "engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)",
)  # fmt: skip
SERVE: Frame = ("entrypoints/cli/serve.py", 148, "cmd", "uvloop.run(run_server(args))")
HEADLESS: Frame = ("entrypoints/cli/serve.py", 146, "cmd", "run_headless(args)")
WAIT: Frame = ("v1/engine/utils.py", 1272, "wait_for_engine_startup", "raise RuntimeError(")

FAILED_WORKER = Exception(
    "WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
)
FAILED_CORE = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")


def start(worker: Worker, voices: Voices) -> int | None:
    """The KV pool in tokens once every rank is ready; None after the failure's lines were printed."""
    headless = worker.config.headless
    try:
        load(worker)
    except Exception as error:
        if isinstance(error, Nccl):
            error.print(voices.worker, worker.config.node_rank)
        where = "multiproc_executor.py:898"
        voices.worker.error(where, f"WorkerProc failed to start.\n{trace(error, INIT)}")
        worker_exits(voices, headless)
        give_up(FAILED_WORKER, voices, headless)
        return None
    try:
        return warm_up(worker, voices)
    except Exception as error:
        if headless:
            # its worker waits for the next order of a head that is gone, and nobody says a word
            return 0
        give_up(error, voices, headless)
        return None


def load(worker: Worker) -> None:
    group = worker.init_device()
    worker.load_model()
    group.barrier("loaded")


def warm_up(worker: Worker, voices: Voices) -> int:
    """From the loaded weights to the pool in tokens, every rank waiting for the others. The head judges the pool."""
    began, config, group = time.monotonic(), worker.config, worker.started_group
    kv_bytes = min(group.barrier("kv", worker.kv_bytes()).values())
    pool = memory.pool_tokens(kv_bytes, config.num_speculative_tokens)
    if not config.headless:
        memory.pool_is_enough(kv_bytes, config.max_model_len, config.num_speculative_tokens)
        voices.engine.info("kv_cache_utils.py:2146", f"GPU KV cache size: {pool:,} tokens")
        concurrency = f"{pool / config.max_model_len:.2f}x"
        length = f"{config.max_model_len:,} tokens per request"
        voices.engine.info("kv_cache_utils.py:2147", f"Maximum concurrency for {length}: {concurrency}")
    group.barrier("pool")
    worker.warm_up()
    group.barrier("captured")
    if not config.headless:
        took = time.monotonic() - began
        voices.engine.info("core.py:344", f"init engine (profile, create kv cache, warmup model) took {took:.2f} s")
    return pool


def give_up(error: BaseException, voices: Voices, headless: bool) -> None:
    """The engine core's last lines and the API server's, or the headless rank's traceback."""
    if headless:
        voices.api.raw(trace(error, HEADLESS, READY))
        return
    frames = (CORE, READY) if error is FAILED_WORKER else (CORE,)
    voices.engine.error("core.py:1231", f"EngineCore failed to start.\n{trace(error, *frames)}")
    voices.engine.raw(f"Process EngineCore:\n{trace(error, *frames)}")
    voices.api.raw(trace(FAILED_CORE, SERVE, WAIT))


def worker_exits(voices: Voices, headless: bool) -> None:
    """An executor's words about a worker that has ended already."""
    voice = voices.api if headless else voices.engine
    voice.info("multiproc_executor.py:426", "[shutdown] Executor: waiting for worker exit count=1")
    pause(FAILED_S)
    voice.info("multiproc_executor.py:433", "[shutdown] Executor: all workers exited gracefully")


def worker_is_ended(voices: Voices, serves: bool) -> None:
    """A headless executor's words, and time, after SIGTERM; a worker that serves takes all of it, twelve seconds."""
    word, executor = "multiproc_executor.py", "[shutdown] Executor:"
    voices.api.info(f"{word}:426", f"{executor} waiting for worker exit count=1")
    if serves:
        voices.worker.info(f"{word}:790", "Parent process exited, terminating worker queues")
    pause(GRACE_S)
    stubborn = f"{executor} workers still running after"
    voices.api.warning(f"{word}:438", f"{stubborn} grace period; sending SIGTERM count=1")
    if serves:
        pause(TERM_S)
        voices.api.warning(f"{word}:448", f"{stubborn} SIGTERM; sending SIGKILL count=1")
        pause(KILL_S)
