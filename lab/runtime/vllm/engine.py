"""The engine behind the API once all ranks are ready. It paces canned answers like a decoder with drafts."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import answers
from .config import Config
from .errors import EngineDeadError
from .faults import STEP_S
from .log import Frame, Logs, trace
from .metrics import Metrics

PREFILL_S_PER_TOKEN = 1 / 20000
FIRST_TOKEN_S = 0.02
COLD = (2.0, 1.5)
"""Factors on a step for the first requests, which on a real pair page the experts in from disk."""
STATS_S = 10.0
STEP: Frame = ("v1/worker/worker_base.py", 351, "execute_model", "return self.worker.execute_model(scheduler_output)")
LOOP: Frame = ("v1/engine/core.py", 1224, "run_engine_core", "engine_core.run_busy_loop()")
OUTPUT: Frame = ("v1/engine/async_llm.py", 660, "output_handler", "outputs = await engine_core.get_output_async()")


@dataclass(frozen=True)
class Piece:
    """The tokens of one step."""

    reasoning: list[str]
    content: list[str]


@dataclass
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Engine:
    """Answers requests until it dies. `step` is one forward pass of all ranks; a RuntimeError in it ends the engine."""

    def __init__(self, config: Config, pool_tokens: int, logs: Logs, step: Callable[[], None]) -> None:
        self.config, self.logs, self.step = config, logs, step
        self.dead = threading.Event()
        self.served = 0
        self.metrics = Metrics(
            config.served_model_name[0],
            config.num_speculative_tokens,
            {
                "block_size": config.block_size,
                "cache_dtype": config.kv_cache_dtype,
                "gpu_memory_utilization": config.gpu_memory_utilization,
                "kv_cache_max_concurrency": round(pool_tokens / config.max_model_len, 2),
                "kv_cache_memory_bytes": config.kv_cache_memory_bytes,
                "kv_cache_size_tokens": pool_tokens,
                "num_gpu_blocks": pool_tokens // config.block_size,
            },
        )
        self._slots = threading.Semaphore(config.max_num_seqs)
        self._cached_blocks: set[str] = set()
        self._reported = dict(self.metrics.counters)
        self._was_busy = False

    def generate(self, prompt: str, question: str, answer: answers.Reply, usage: Usage) -> Iterator[Piece]:
        """Yield the answer step by step, count drafts, fill `usage`. Raises EngineDeadError if the engine is dead."""
        metrics = self.metrics
        self.raise_if_dead()
        metrics.gauge("num_requests_waiting", 1)
        with self._slots:
            metrics.gauge("num_requests_waiting", -1)
            metrics.gauge("num_requests_running", 1)
            try:
                cold = COLD[self.served] if self.served < len(COLD) else 1.0
                usage.cached_tokens = self.remember(prompt)
                metrics.count("prompt_tokens", usage.prompt_tokens)
                self.rest((FIRST_TOKEN_S + (usage.prompt_tokens - usage.cached_tokens) * PREFILL_S_PER_TOKEN) * cold)
                self.forward()
                yield from self._steps(question, answer, usage, cold)
                self.served += 1
            finally:
                metrics.gauge("num_requests_running", -1)

    def _steps(self, question: str, answer: answers.Reply, usage: Usage, cold: float) -> Iterator[Piece]:
        k = self.config.num_speculative_tokens
        reasoning, content = list(answer.reasoning), list(answer.content)
        step, due = 0, time.monotonic()
        while reasoning or content:
            accepted = answers.accepted(question, step, k)
            if step:
                # paced by the clock, so that equal answers take equally long even on a busy machine
                due += STEP_S * cold
                self.rest(due - time.monotonic())
                self.forward()
                if k:
                    self.metrics.draft(k, accepted)
            room = 1 + accepted if step else 1
            piece = Piece(reasoning[:room], content[: max(0, room - len(reasoning))])
            reasoning, content = reasoning[room:], content[len(piece.content) :]
            usage.completion_tokens += len(piece.reasoning) + len(piece.content)
            self.metrics.count("generation_tokens", len(piece.reasoning) + len(piece.content))
            step += 1
            yield piece

    def remember(self, prompt: str) -> int:
        """How many tokens at the start of the prompt an earlier prompt shared, in whole blocks."""
        tokens, size = answers.pieces(prompt), self.config.block_size
        cached, running = 0, hashlib.sha256()
        for start in range(0, len(tokens) - size + 1, size):
            running.update("".join(tokens[start : start + size]).encode())
            if running.hexdigest() in self._cached_blocks and cached == start:
                cached = start + size
            self._cached_blocks.add(running.hexdigest())
        self.metrics.count("prefix_cache_queries", len(tokens))
        self.metrics.count("prefix_cache_hits", cached)
        return cached

    def rest(self, seconds: float) -> None:
        """Pause, unless the engine dies meanwhile."""
        self.dead.wait(max(0.0, seconds) * float(os.environ.get("LAB_SPEED") or 1))
        self.raise_if_dead()

    def forward(self) -> None:
        """Run one step of all ranks. Only here a lost rank is noticed, and it ends the engine."""
        try:
            self.step()
        except RuntimeError as loss:
            if not self.dead.is_set():
                where = "multiproc_executor.py:1004"
                self.logs.worker.error(where, f"WorkerProc hit an exception.\n{trace(loss, STEP)}")
                self.end(f"Worker failed with error '{loss}', please check the stack trace above for the root cause")
        self.raise_if_dead()

    def end(self, cause: str) -> None:
        """Log why the engine is dead. From now on every request gets EngineDeadError."""
        self.dead.set()
        fatal = trace(RuntimeError(cause), LOOP)
        self.logs.engine.error("core.py:1233", f"EngineCore encountered a fatal error.\n{fatal}")
        failed = trace(EngineDeadError(), OUTPUT)
        self.logs.api.error("async_llm.py:704", f"AsyncLLM output_handler failed.\n{failed}")

    def stalls(self) -> None:
        """Log the only line that there is about a rank that hangs."""
        self.logs.engine.info(
            "shm_broadcast.py:705",
            "No available shared memory broadcast block found in 60 seconds. This typically happens when some "
            "processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization).",
        )

    def raise_if_dead(self) -> None:
        if self.dead.is_set():
            raise EngineDeadError

    def report(self) -> None:
        """Log the periodic line while requests run, and once after."""
        now, before = dict(self.metrics.counters), self._reported
        self._reported = now
        grown = {name: now[name] - before[name] for name in now}
        gauges = self.metrics.gauges
        busy = bool(grown["generation_tokens"] or gauges["num_requests_running"])
        busy, self._was_busy = busy or self._was_busy, busy
        if not busy:
            return
        rate = 100 * now["prefix_cache_hits"] / max(now["prefix_cache_queries"], 1)
        self.logs.api.info(
            "loggers.py:273",
            f"Engine 000: Avg prompt throughput: {grown['prompt_tokens'] / STATS_S:.1f} tokens/s, "
            f"Avg generation throughput: {grown['generation_tokens'] / STATS_S:.1f} tokens/s, "
            f"Running: {gauges['num_requests_running']:.0f} reqs, Waiting: {gauges['num_requests_waiting']:.0f} reqs, "
            f"GPU KV cache usage: {100 * gauges['kv_cache_usage_perc']:.1f}%, Prefix cache hit rate: {rate:.1f}%",
        )
