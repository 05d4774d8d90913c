"""Ranks that are ready. The head's API serves until SIGTERM or until the engine ends; a worker waits for SIGTERM.

Both end with exit code 0 whatever the cause, so 0 is not health. Nobody looks after the other rank: a head learns of a
lost worker from its next step, a worker never learns of a lost head.
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
from .log import Log, Voices
from .startup import worker_exits, worker_is_ended
from .worker import Worker

WATCHDOG_S = 5.0
"""How long a dead engine's API answers with 503 when no request runs into its end."""
TICK_S = 0.1


def bind(options: argparse.Namespace, log: Log) -> Server:
    """The API's socket, before the load. OSError when the port is taken or the address is not this machine's."""
    from_environment = os.environ.get("VLLM_API_KEY")
    keys = options.api_key or ([from_environment] if from_environment else [])
    return Server(options.host or "0.0.0.0", options.port, keys, options.enable_prompt_tokens_details, log)


def told_to_end() -> threading.Event:
    """Set by SIGTERM from now on."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    return told


def died(worker: Worker, voices: Voices) -> None:
    """An executor's words about its own GPU process."""
    voice = voices.api if worker.config.headless else voices.engine
    name = f"VllmWorker-{worker.config.node_rank}"
    voice.error("multiproc_executor.py:284", f"Worker proc {name} died unexpectedly, shutting down executor.")
    worker_exits(voices, worker.config.headless)


def wait_for_orders(worker: Worker, voices: Voices) -> NoReturn:
    """A headless rank: silent until SIGTERM or the end of its own GPU process."""
    told = told_to_end()
    while not told.wait(POLL_S):
        if worker.fault.look() == "die-after-ready":
            died(worker, voices)
            worker.leave(0)
    worker_is_ended(voices, serves=True)
    worker.leave(0)


def run(server: Server, worker: Worker, pool: int, voices: Voices) -> NoReturn:
    """The head, from its first request to its end."""
    group, told = worker.started_group, told_to_end()
    engine = Engine(worker.config, pool, voices, group.step)
    group.on_stall = engine.stalls
    open_for_clients(server, engine, voices.api)
    polled = reported = time.monotonic()
    while not told.wait(TICK_S) and not engine.dead.is_set():
        now = time.monotonic()
        if now - polled >= POLL_S:
            polled = now
            if worker.fault.look() == "die-after-ready":
                died(worker, voices)
                engine.end("Executor failed.")
                pause(WATCHDOG_S)
        if now - reported >= STATS_S:
            reported = now
            engine.report()
    api = voices.api
    if told.is_set():
        api.info("launcher.py:100", "[shutdown] API server: shutdown triggered")
        api.info("launcher.py:116", "[shutdown] API server: stopping engine client mode=abort timeout=0s")
    else:
        voices.engine.info("multiproc_executor.py:426", "[shutdown] Executor: waiting for worker exit count=1")
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
