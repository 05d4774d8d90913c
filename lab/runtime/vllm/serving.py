"""The head, ready: its API serves until SIGTERM or until the engine ends."""

import argparse
import os
import signal
import threading
import time

from .api import Server
from .engine import STATS_S, Engine
from .errors import EngineDeadError
from .faults import DIE_AFTER_S, POLL_S, fault_of
from .log import Log, Voices
from .startup import cancelled, worker_died
from .worker import Worker

DEATH_S = 5.0
"""How long a dead engine's API still answers, with 503."""
TICK_S = 0.25


def bind(options: argparse.Namespace, log: Log) -> Server:
    """The API's socket, before the load. OSError when the port is taken or the address is not this machine's."""
    from_environment = os.environ.get("VLLM_API_KEY")
    keys = options.api_key or ([from_environment] if from_environment else [])
    return Server(options.host or "0.0.0.0", options.port, keys, options.enable_prompt_tokens_details, log)


def run(server: Server, worker: Worker, pool: int, voices: Voices) -> int:
    """0 after SIGTERM; 1 when the engine died, after a while of 503. Does not return."""
    engine = Engine(worker.config, pool, voices.api)
    engine.fault = worker.fault
    group = worker.started_group
    wake, told = threading.Event(), threading.Event()

    def stop(*_: object) -> None:
        told.set()
        wake.set()

    signal.signal(signal.SIGTERM, stop)
    group.on_loss = lambda loss: wake.set()
    open_for_clients(server, engine, voices.api)
    polled = reported = time.monotonic()
    while not told.is_set():
        wake.wait(TICK_S)
        now = time.monotonic()
        if group.lost:
            worker_died(group.lost, voices)
            return end(engine, cancelled(group.lost), worker, voices)
        if now - polled >= POLL_S:
            polled = now
            engine.fault = fault_of(worker.config.node_rank)
            if engine.fault == "die-after-ready" and not wake.wait(DIE_AFTER_S):
                illegal = RuntimeError("CUDA error: an illegal memory access was encountered")
                return end(engine, illegal, worker, voices)
        if now - reported >= STATS_S:
            reported = now
            engine.report()
    voices.api.raw("INFO:     Shutting down")
    voices.api.raw("INFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.")
    return worker.leave(0)


def open_for_clients(server: Server, engine: Engine, api: Log) -> None:
    host, port = server.server_address[:2]
    api.info("api_server.py:583", "Supported tasks: ['generate']")
    api.info("api_server.py:587", f"Starting vLLM server on http://{host!s}:{port}")
    api.raw(f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.")
    server.open(engine)
    api.raw("INFO:     Application startup complete.")


def end(engine: Engine, cause: BaseException, worker: Worker, voices: Voices) -> int:
    """The engine is dead: its traceback, then an API server that answers 503 for DEATH_S."""
    engine.dead.set()
    voices.engine.error("core.py:1383", "EngineCore encountered a fatal error.", cause)
    issue = EngineDeadError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
    voices.api.error("async_llm.py:746", "AsyncLLM output_handler failed.", issue)
    time.sleep(float(os.environ.get("LAB_DEATH_S") or DEATH_S))
    return worker.leave(1)
