"""Prometheus text under vLLM's metric names, with its labels (engine, model_name) and buckets."""

import threading
from bisect import bisect_left
from collections.abc import Iterable

COUNTERS = (
    "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens", "num_preemptions",
    "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
)  # fmt: skip
TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
HISTOGRAMS = {
    "time_to_first_token_seconds": (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
        160.0, 640.0, 2560.0,
    ),
    "inter_token_latency_seconds": TOKEN_BUCKETS,
    "request_time_per_output_token_seconds": TOKEN_BUCKETS,
    "e2e_request_latency_seconds": (
        0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
        1920.0, 7680.0,
    ),
}  # fmt: skip
"""Upper bounds of each, seconds."""
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Metrics:
    """All metrics of one engine. Its methods may be called from any thread."""

    def __init__(self, model_name: str, num_speculative_tokens: int, cache_config: dict[str, object]) -> None:
        self.labels = {"model_name": model_name, "engine": "0"}
        self.cache_config = cache_config
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        self.per_position = [0.0] * num_speculative_tokens
        self.finished = dict.fromkeys(FINISH_REASONS, 0.0)
        self.gauges = dict.fromkeys(GAUGES, 0.0)
        self.sums = dict.fromkeys(HISTOGRAMS, 0.0)
        self.buckets = {name: [0] * (len(bounds) + 1) for name, bounds in HISTOGRAMS.items()}
        self._lock = threading.Lock()

    def count(self, name: str, amount: float = 1.0) -> None:
        with self._lock:
            self.counters[name] += amount

    def finish(self, reason: str) -> None:
        with self._lock:
            self.finished[reason] += 1

    def gauge(self, name: str, change: float) -> None:
        with self._lock:
            self.gauges[name] = max(0.0, self.gauges[name] + change)

    def draft(self, drafted: int, accepted: int) -> None:
        """One step's drafts."""
        with self._lock:
            self.counters["spec_decode_num_drafts"] += 1
            self.counters["spec_decode_num_draft_tokens"] += drafted
            self.counters["spec_decode_num_accepted_tokens"] += accepted
            for position in range(accepted):
                self.per_position[position] += 1

    def observe(self, name: str, seconds: float) -> None:
        with self._lock:
            self.sums[name] += seconds
            self.buckets[name][bisect_left(HISTOGRAMS[name], seconds)] += 1

    def text(self) -> str:
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterable[str]:
        for name, value in self.gauges.items():
            yield f"# TYPE vllm:{name} gauge"
            yield self._sample(name, value)
        for name, value in self.counters.items():
            yield f"# TYPE vllm:{name}_total counter"
            yield self._sample(f"{name}_total", value)
        yield "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter"
        for position, value in enumerate(self.per_position):
            yield self._sample("spec_decode_num_accepted_tokens_per_pos_total", value, position=str(position))
        yield "# TYPE vllm:request_success_total counter"
        for reason, value in self.finished.items():
            yield self._sample("request_success_total", value, finished_reason=reason)
        yield "# TYPE vllm:cache_config_info gauge"
        yield self._sample("cache_config_info", 1.0, **self.cache_config)
        for name, bounds in HISTOGRAMS.items():
            yield f"# TYPE vllm:{name} histogram"
            below = 0
            for bound, inside in zip((*bounds, "+Inf"), self.buckets[name], strict=True):
                below += inside
                yield self._sample(f"{name}_bucket", float(below), le=str(bound))
            yield self._sample(f"{name}_sum", self.sums[name])
            yield self._sample(f"{name}_count", float(below))

    def _sample(self, name: str, value: float, **more: object) -> str:
        labels = ",".join(f'{key}="{text}"' for key, text in sorted({**more, **self.labels}.items()))
        return f"vllm:{name}{{{labels}}} {value}"
