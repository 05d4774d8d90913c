"""`vllm serve`: from the command line to a served model, or to the exit code and last words that vLLM has.

Exit codes as vLLM's: 2 the command line was refused; 1 a failure while starting, or a head whose engine died; 0 SIGTERM
after the start, and a headless rank whose worker or head was lost, so 0 is not health.
"""

import argparse
import os
import signal
import sys
import time
from importlib import import_module
from types import ModuleType

from . import __version__, flags, headless, startup
from .config import Config, engine_config
from .faults import fault_of
from .log import Log, Voices, trace
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
    voices = Voices.of(options.headless, options.node_rank, os.getpid())
    # vLLM does not hear SIGTERM while it loads; as process 1 nobody would without a handler either
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_hello(options, voices.api)
    try:
        config = engine_config(options)
        checkpoint = open_checkpoint(config.model, config.revision)
        server = None if config.headless else serving().bind(options, voices.api)
    except Exception as error:
        voices.api.raw(trace(error))
        return 1
    say_config(config, checkpoint, voices)
    if config.headless and config.node_rank == 0:
        wait_for_nobody(config, voices.api)
    worker = Worker(config, checkpoint, voices.worker, fault_of(config.node_rank))
    pool = startup.start(worker, voices)
    if pool is None:
        return 1
    if server is None:
        return headless.run(worker, voices)
    code: int = serving().run(server, worker, pool, voices)
    return code


def serving() -> ModuleType:
    """The API's module, imported only where an API is: it takes a second on an emulated CPU."""
    return import_module(".serving", __package__)


def say_hello(options: argparse.Namespace, api: Log) -> None:
    """The banner and the arguments, with the API keys among them when they came by argv."""
    if not options.headless:
        facts = ("", f"  version {__version__}", f"  model   {options.model_tag}", "")
        lines = [art + fact for art, fact in zip(ART, facts, strict=True)]
        api.info("api_utils.py:339", "\n".join(["", *lines, ""]))
    api.info("api_utils.py:273", f"non-default args: {options.non_default}")


def say_config(config: Config, checkpoint: Checkpoint, voices: Voices) -> None:
    """What vLLM says about its configuration before any process starts."""
    api = voices.api
    architecture = (checkpoint.config.get("architectures") or ["unknown"])[0]
    api.info("model.py:645", f"Resolved architecture: {architecture}")
    api.info("model.py:1990", f"Using max model len {config.max_model_len}")
    batched = config.max_num_batched_tokens
    api.info("scheduler.py:239", f"Chunked prefill is enabled with max_num_batched_tokens={batched}.")
    if config.max_num_scheduled_tokens != batched:
        api.warning(
            "vllm.py:1370",
            f"max_num_scheduled_tokens is set to {config.max_num_scheduled_tokens} based on the speculative decoding "
            "settings. This may lead to suboptimal performance. Consider increasing max_num_batched_tokens to "
            "accommodate the additional draft token slots.",
        )
    if config.capture_sizes and config.largest_capture_asked > config.capture_sizes[-1]:
        api.warning("vllm.py:1502", f"Truncating max_cudagraph_capture_size to {config.capture_sizes[-1]}")
    if config.headless and config.node_rank:
        api.info(
            "serve.py:217",
            f"Launching vLLM (v{__version__}) headless multiproc executor, with head node address "
            f"{config.master_addr}:{config.master_port} for torch.distributed process group.",
        )
    if not config.headless:
        voices.engine.info(
            "core.py:112",
            f"Initializing a V1 LLM engine (v{__version__}) with config: model={config.model!r}, "
            f"speculative_config={config.fingerprint['speculative_config']}, max_seq_len={config.max_model_len}, "
            f"tensor_parallel_size={config.nnodes}, kv_cache_dtype={config.fingerprint['kv_cache_dtype']}",
        )


def wait_for_nobody(config: Config, api: Log) -> None:
    """A headless rank 0, which vLLM does not refuse: it waits for an engine handshake that nobody will begin."""
    api.info(
        "serve.py:241",
        "Launching 1 data parallel engine(s) in headless mode, "
        f"with head node address tcp://{config.master_addr}:{config.master_port}.",
    )
    while True:
        time.sleep(3600)
