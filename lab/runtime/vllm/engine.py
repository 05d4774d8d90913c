"""The engine behind the API once all ranks are ready: it paces canned answers like a decoder with drafts."""

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from . import answers
from .config import Config
from .errors import EngineDeadError
from .log import Log
from .metrics import Metrics

STEP_S = 0.01
"""Time of one decode step. A real pair takes about 57 ms."""
PREFILL_S_PER_TOKEN = 1 / 20000
FIRST_TOKEN_S = 0.05
COLD = (3.0, 2.2, 1.6, 1.25, 1.1)
"""Factors on a step for the first requests, which on a real pair fault the experts in from disk."""
STATS_S = 10.0


@dataclass(frozen=True)
class Piece:
    """Tokens of one step."""

    reasoning: list[str]
    content: list[str]


@dataclass
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Engine:
    """Answers requests until it dies. `fault` is changed from outside while it runs."""

    def __init__(self, config: Config, pool_tokens: int, log: Log) -> None:
        self.config, self.pool_tokens, self.log = config, pool_tokens, log
        self.fault = ""
        self.dead = threading.Event()
        self.served = 0
        blocks = pool_tokens // config.block_size
        self.metrics = Metrics(
            config.served_model_name[0],
            config.num_speculative_tokens,
            {
                "block_size": str(config.block_size),
                "gpu_memory_utilization": str(config.gpu_memory_utilization),
                "num_gpu_blocks": str(blocks),
                "kv_cache_size_tokens": str(pool_tokens),
            },
        )
        self._slots = threading.Semaphore(config.max_num_seqs)
        self._seen: set[str] = set()
        self._reported = dict(self.metrics.counters)

    def generate(self, prompt: str, question: str, answer: answers.Reply, usage: Usage) -> Iterator[Piece]:
        """Step by step, with each step's drafts counted; fills `usage`. EngineDeadError when the engine is dead."""
        metrics, began = self.metrics, time.monotonic()
        self.raise_if_dead()
        metrics.gauge("num_requests_waiting", 1)
        with self._slots:
            metrics.gauge("num_requests_waiting", -1)
            metrics.gauge("num_requests_running", 1)
            try:
                while self.fault == "hang-after-ready":
                    self.rest(1.0)
                cold = COLD[self.served] if self.served < len(COLD) else 1.0
                usage.cached_tokens = self.remember(prompt)
                metrics.count("prompt_tokens", usage.prompt_tokens)
                self.rest((FIRST_TOKEN_S + (usage.prompt_tokens - usage.cached_tokens) * PREFILL_S_PER_TOKEN) * cold)
                first = time.monotonic()
                metrics.observe("time_to_first_token_seconds", first - began)
                yield from self._steps(question, answer, usage, cold)
                self.served += 1
                ended = time.monotonic()
                metrics.observe("e2e_request_latency_seconds", ended - began)
                metrics.observe(
                    "request_time_per_output_token_seconds", (ended - first) / max(usage.completion_tokens - 1, 1)
                )
                metrics.finish("stop" if answer.finished else "length")
            finally:
                metrics.gauge("num_requests_running", -1)

    def _steps(self, question: str, answer: answers.Reply, usage: Usage, cold: float) -> Iterator[Piece]:
        k = self.config.num_speculative_tokens
        reasoning, content = list(answer.reasoning), list(answer.content)
        step = 0
        while reasoning or content:
            accepted = answers.accepted(question, step, k)
            if step:
                self.rest(STEP_S * cold)
                if k:
                    self.metrics.draft(k, accepted)
                self.metrics.observe("inter_token_latency_seconds", STEP_S * cold)
            room = 1 + accepted if step else 1
            thought, reasoning = reasoning[:room], reasoning[room:]
            said, content = content[: room - len(thought)], content[room - len(thought) :]
            usage.completion_tokens += len(thought) + len(said)
            self.metrics.count("generation_tokens", len(thought) + len(said))
            step += 1
            yield Piece(thought, said)

    def remember(self, prompt: str) -> int:
        """Tokens of the prompt's beginning that an earlier prompt shared, in whole blocks."""
        tokens, size = answers.pieces(prompt), self.config.block_size
        cached, running = 0, hashlib.sha256()
        for start in range(0, len(tokens) - size + 1, size):
            running.update("".join(tokens[start : start + size]).encode())
            if running.hexdigest() in self._seen and cached == start:
                cached = start + size
            self._seen.add(running.hexdigest())
        self.metrics.count("prefix_cache_queries", len(tokens))
        self.metrics.count("prefix_cache_hits", cached)
        return cached

    def rest(self, seconds: float) -> None:
        """A pause that the engine's death ends."""
        if self.dead.wait(seconds * float(os.environ.get("LAB_SPEED") or 1)):
            self.raise_if_dead()

    def raise_if_dead(self) -> None:
        if self.dead.is_set():
            raise EngineDeadError("EngineCore encountered an issue. See stack trace (above) for the root cause.")

    def report(self) -> None:
        """The periodic lines, when anything happened since the last."""
        now, before = dict(self.metrics.counters), self._reported
        self._reported = now
        grown = {name: now[name] - before[name] for name in now}
        if not grown["generation_tokens"]:
            return
        gauges = self.metrics.gauges
        rate = 100 * now["prefix_cache_hits"] / max(now["prefix_cache_queries"], 1)
        self.log.info(
            "loggers.py:271",
            f"Engine 000: Avg prompt throughput: {grown['prompt_tokens'] / STATS_S:.1f} tokens/s, "
            f"Avg generation throughput: {grown['generation_tokens'] / STATS_S:.1f} tokens/s, "
            f"Running: {gauges['num_requests_running']:.0f} reqs, Waiting: {gauges['num_requests_waiting']:.0f} reqs, "
            f"GPU KV cache usage: {100 * gauges['kv_cache_usage_perc']:.1f}%, Prefix cache hit rate: {rate:.1f}%",
        )
        drafts, accepted = grown["spec_decode_num_drafts"], grown["spec_decode_num_accepted_tokens"]
        drafted = grown["spec_decode_num_draft_tokens"]
        if drafts:
            self.log.info(
                "metrics.py:101",
                f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, "
                f"Accepted throughput: {accepted / STATS_S:.2f} tokens/s, "
                f"Drafted throughput: {drafted / STATS_S:.2f} tokens/s, "
                f"Accepted: {accepted:.0f} tokens, Drafted: {drafted:.0f} tokens, "
                f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%",
            )
