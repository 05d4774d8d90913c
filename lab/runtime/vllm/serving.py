"""Ranks that are ready. The head's API serves until SIGTERM or until the engine ends; a worker waits for SIGTERM.

Both end with exit code 0 whatever the cause, so 0 does not mean that all was well. No rank watches the other: a head
notices a lost worker at its next step, and a worker never notices a lost head.
"""

import argparse
import os
import signal
import threading
import time
from typing import NoReturn

from .api import ROUTES, Server
from .engine import STATS_S, Engine
from .faults import POLL_S, pause
from .log import Log, Logs
from .startup import DIED, worker_exits, worker_is_ended
from .worker import Worker

WATCHDOG_S = 5.0
"""How long the API of a dead engine answers 503 before it ends."""
TICK_S = 0.1


def bind(options: argparse.Namespace, log: Log) -> Server:
    """Bind the API's socket before the load. Raises OSError if the port is taken or the address is not ours."""
    from_environment = os.environ.get("VLLM_API_KEY")
    keys = options.api_key or ([from_environment] if from_environment else [])
    return Server(options.host or "0.0.0.0", options.port, keys, options.enable_prompt_tokens_details, log)


def on_sigterm() -> threading.Event:
    """An event that SIGTERM sets from now on."""
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    return terminated


def died(worker: Worker, logs: Logs) -> None:
    """Log what an executor logs when its own GPU process dies."""
    log = logs.api if worker.config.headless else logs.engine
    log.error("multiproc_executor.py:284", DIED.format(worker.config.node_rank))
    worker_exits(logs, worker.config.headless)


def wait_for_orders(worker: Worker, logs: Logs) -> NoReturn:
    """Run a headless rank, silent until SIGTERM or the end of its own GPU process."""
    terminated = on_sigterm()
    while not terminated.wait(POLL_S):
        if worker.fault.look() == "die-after-ready":
            died(worker, logs)
            worker.leave(0)
    worker_is_ended(logs, serves=True)
    worker.leave(0)


def run(server: Server, worker: Worker, pool: int, logs: Logs) -> NoReturn:
    """Run the head, from its first request to its end."""
    group, terminated = worker.started_group, on_sigterm()
    engine = Engine(worker.config, pool, logs, group.step)
    group.on_stall = engine.stalls
    open_for_clients(server, engine, logs.api)
    polled = reported = time.monotonic()
    while not terminated.wait(TICK_S) and not engine.dead.is_set():
        now = time.monotonic()
        if now - polled >= POLL_S:
            polled = now
            if worker.fault.look() == "die-after-ready":
                died(worker, logs)
                engine.end("Executor failed.")
                pause(WATCHDOG_S)
        if now - reported >= STATS_S:
            reported = now
            engine.report()
    api = logs.api
    if terminated.is_set():
        api.info("launcher.py:100", "[shutdown] API server: shutdown triggered")
        api.info("launcher.py:116", "[shutdown] API server: stopping engine client mode=abort timeout=0s")
    else:
        logs.engine.info("multiproc_executor.py:426", "[shutdown] Executor: waiting for worker exit count=1")
        pause(1.0)
    api.raw("INFO:     Shutting down\nINFO:     Waiting for application shutdown.")
    api.raw(f"INFO:     Application shutdown complete.\nINFO:     Finished server process [{os.getpid()}]")
    worker.leave(0)


def open_for_clients(server: Server, engine: Engine, api: Log) -> None:
    host, port = server.server_address[:2]
    api.info("api_server.py:612", "Supported tasks: ['generate']")
    api.info("api_server.py:616", f"Starting vLLM server on http://{host!s}:{port}")
    api.info("launcher.py:37", "Available routes are:")
    for path, methods in ROUTES.items():
        api.info("launcher.py:46", f"Route: {path}, Methods: {methods}")
    server.open(engine)
    api.raw(f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.")
    api.raw("INFO:     Application startup complete.")
