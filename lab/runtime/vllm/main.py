"""`vllm serve`: from the command line to a served model, or to vLLM's exit code and last log lines.

Exit codes are vLLM's: 2 the command line is refused; 1 the start failed; 130 a head was told to end while it started; 0
every later end, also of a head whose engine died, so 0 does not mean that all was well.
"""

import argparse
import os
import signal
import sys
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from . import __version__, flags, startup
from .config import Config, engine_config
from .faults import Fault
from .log import Log, Logs, trace
from .weights import Checkpoint, open_checkpoint
from .worker import Worker

ART = (
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █",
    "  █▄█▀ █     █     █     █",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
)


def main(arguments: list[str] | None = None) -> int:
    options = flags.parse(sys.argv[1:] if arguments is None else arguments)
    logs = Logs.of(options.headless, os.getpid())
    # vLLM ignores SIGTERM while it still imports: as process 1 it has no handler yet
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_hello(options, logs.api)
    try:
        server = None if options.headless else serving().bind(options, logs.api)
        config = engine_config(options)
        checkpoint = open_checkpoint(config.model, config.revision)
    except Exception as error:
        logs.api.raw(trace(error, startup.HEADLESS if options.headless else startup.SERVE))
        return 1
    signal.signal(signal.SIGTERM, stop_start)
    fault = Fault(config.node_rank)
    worker = Worker(config, checkpoint, logs.worker, fault)
    try:
        say_config(config, checkpoint, logs)
        fault.look()
        pool = startup.start(worker, logs)
    except KeyboardInterrupt as interrupt:
        if config.headless:
            startup.worker_is_ended(logs, serves=False)
            worker.leave(0)
        logs.api.raw(trace(interrupt, startup.SERVE))
        worker.leave(130)
    if pool is None:
        worker.leave(1)
    if server is None:
        serving().wait_for_orders(worker, logs)
    serving().run(server, worker, pool, logs)
    return 0


def stop_start(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt("terminated")


def serving() -> ModuleType:
    """The module that serves. Imported late, so that the ranks meet sooner."""
    return import_module(".serving", __package__)


def say_hello(options: argparse.Namespace, api: Log) -> None:
    """Log the banner and the arguments, API keys included if they are on argv."""
    if not options.headless:
        facts = ("", f"  version {__version__}", f"  model   {options.model_tag}", "")
        lines = [art + fact for art, fact in zip(ART, facts, strict=True)]
        api.info("api_utils.py:339", "\n".join(["", *lines, ""]))
        api.info("api_utils.py:273", f"non-default args: {options.non_default}")


def say_config(config: Config, checkpoint: Checkpoint, logs: Logs) -> None:
    """Log what vLLM logs about its configuration before any process starts."""
    api = logs.api
    architecture = (checkpoint.config.get("architectures") or ["unknown"])[0]
    api.info("model.py:619", f"Resolved architecture: {architecture}")
    api.info("model.py:1776", f"Using max model len {config.max_model_len}")
    api.info("arg_utils.py:2026", f"Inferred data_parallel_rank 0 from node_rank {config.node_rank}")
    batched = config.max_num_batched_tokens
    api.info("scheduler.py:252", f"Chunked prefill is enabled with max_num_batched_tokens={batched}.")
    if config.max_num_scheduled_tokens != batched:
        api.warning(
            "vllm.py:1648",
            f"max_num_scheduled_tokens is set to {config.max_num_scheduled_tokens} based on the speculative decoding "
            "settings. This may lead to suboptimal performance. Consider increasing max_num_batched_tokens to "
            "accommodate the additional draft token slots.",
        )
    if config.headless:
        api.info(
            "serve.py:212",
            f"Launching vLLM (v{__version__}) headless multiproc executor, with head node address "
            f"{config.master_addr}:{config.master_port} for torch.distributed process group.",
        )
    if not config.headless:
        logs.engine.info(
            "core.py:114",
            f"Initializing a V1 LLM engine (v{__version__}) with config: model={str(checkpoint.folder)!r}, "
            f"max_seq_len={config.max_model_len}, tensor_parallel_size={config.nnodes}, "
            f"kv_cache_dtype={config.kv_cache_dtype}",
        )
