"""The start of all ranks until they are ready, and the last lines of a rank whose start fails.

The frames are those that matter in the logs of real ranks.
"""

import time

from . import memory
from .fabric import Nccl
from .faults import pause
from .log import Frame, Logs, trace
from .worker import Worker

GRACE_S, TERM_S, KILL_S = 5.0, 4.0, 3.0
"""How long an executor waits for a serving worker to end: by itself, after SIGTERM, and after SIGKILL."""
FAILED_S = 2.0
"""How long a rank takes to end after its worker failed."""

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
DIED = "Worker proc VllmWorker-{} died unexpectedly, shutting down executor."
FAILED_CORE = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")


def start(worker: Worker, logs: Logs) -> int | None:
    """Start this rank. Returns the KV pool in tokens once every rank is ready, or None after logging the failure."""
    headless = worker.config.headless
    try:
        load(worker)
    except Exception as error:
        if isinstance(error, Nccl):
            error.print(logs.worker, worker.config.node_rank)
        where = "multiproc_executor.py:898"
        logs.worker.error(where, f"WorkerProc failed to start.\n{trace(error, INIT)}")
        worker_exits(logs, headless)
        give_up(FAILED_WORKER, logs, headless)
        return None
    try:
        return warm_up(worker, logs)
    except Exception as error:
        if headless:
            # its worker keeps waiting for a head that is gone, and logs nothing
            return 0
        give_up(error, logs, headless)
        return None


def load(worker: Worker) -> None:
    group = worker.init_device()
    worker.load_model()
    group.barrier("loaded")


def warm_up(worker: Worker, logs: Logs) -> int:
    """From loaded weights to the pool in tokens, with every rank waiting for the others. The head checks the pool."""
    began, config, group = time.monotonic(), worker.config, worker.started_group
    kv_bytes = min(group.barrier("kv", worker.kv_bytes()).values())
    pool = memory.pool_tokens(kv_bytes, config.num_speculative_tokens)
    if not config.headless:
        memory.pool_is_enough(kv_bytes, config.max_model_len, config.num_speculative_tokens)
        logs.engine.info("kv_cache_utils.py:2146", f"GPU KV cache size: {pool:,} tokens")
        concurrency = f"{pool / config.max_model_len:.2f}x"
        length = f"{config.max_model_len:,} tokens per request"
        logs.engine.info("kv_cache_utils.py:2147", f"Maximum concurrency for {length}: {concurrency}")
    group.barrier("pool")
    worker.warm_up()
    group.barrier("captured")
    if not config.headless:
        took = time.monotonic() - began
        logs.engine.info("core.py:344", f"init engine (profile, create kv cache, warmup model) took {took:.2f} s")
    return pool


def give_up(error: BaseException, logs: Logs, headless: bool) -> None:
    """Log the last lines of the engine core and the API server, or the headless rank's traceback."""
    if headless:
        logs.api.raw(trace(error, HEADLESS, READY))
        return
    frames = (CORE, READY) if error is FAILED_WORKER else (CORE,)
    logs.engine.error("core.py:1231", f"EngineCore failed to start.\n{trace(error, *frames)}")
    if error is not FAILED_WORKER:
        # the core leaves a worker behind that is well, and ends it
        logs.engine.error("multiproc_executor.py:284", DIED.format(0))
        logs.engine.info("multiproc_executor.py:426", "[shutdown] Executor: waiting for worker exit count=0")
    logs.engine.raw(f"Process EngineCore:\n{trace(error, *frames)}")
    logs.api.raw(trace(FAILED_CORE, SERVE, WAIT))


def worker_exits(logs: Logs, headless: bool) -> None:
    """Log what an executor logs about a worker that has already ended."""
    log = logs.api if headless else logs.engine
    log.info("multiproc_executor.py:426", "[shutdown] Executor: waiting for worker exit count=1")
    pause(FAILED_S)
    log.info("multiproc_executor.py:433", "[shutdown] Executor: all workers exited gracefully")


def worker_is_ended(logs: Logs, serves: bool) -> None:
    """Log what a headless executor logs after SIGTERM, in the same time. A serving worker takes twelve seconds."""
    file, executor = "multiproc_executor.py", "[shutdown] Executor:"
    logs.api.info(f"{file}:426", f"{executor} waiting for worker exit count=1")
    if serves:
        logs.worker.info(f"{file}:790", "Parent process exited, terminating worker queues")
    pause(GRACE_S)
    stubborn = f"{executor} workers still running after"
    logs.api.warning(f"{file}:438", f"{stubborn} grace period; sending SIGTERM count=1")
    if serves:
        pause(TERM_S)
        logs.api.warning(f"{file}:448", f"{stubborn} SIGTERM; sending SIGKILL count=1")
        pause(KILL_S)
