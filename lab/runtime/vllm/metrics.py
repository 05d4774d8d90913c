"""Prometheus text with vLLM's metric names and labels (engine, model_name), but without its histograms."""

import threading
from collections.abc import Iterable

COUNTERS = (
    "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens", "num_preemptions",
    "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
)  # fmt: skip
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


class Metrics:
    """All metrics of one engine. Any thread may call its methods."""

    def __init__(self, model_name: str, num_speculative_tokens: int, cache_config: dict[str, object]) -> None:
        self.labels = {"model_name": model_name, "engine": "0"}
        self.cache_config = cache_config
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        self.per_position = [0.0] * num_speculative_tokens
        self.gauges = dict.fromkeys(GAUGES, 0.0)
        self._lock = threading.Lock()

    def count(self, name: str, amount: float = 1.0) -> None:
        with self._lock:
            self.counters[name] += amount

    def gauge(self, name: str, change: float) -> None:
        with self._lock:
            self.gauges[name] = max(0.0, self.gauges[name] + change)

    def draft(self, drafted: int, accepted: int) -> None:
        """Count one step's drafts."""
        with self._lock:
            self.counters["spec_decode_num_drafts"] += 1
            self.counters["spec_decode_num_draft_tokens"] += drafted
            self.counters["spec_decode_num_accepted_tokens"] += accepted
            for position in range(accepted):
                self.per_position[position] += 1

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
        yield "# TYPE vllm:cache_config_info gauge"
        yield self._sample("cache_config_info", 1.0, **self.cache_config)

    def _sample(self, name: str, value: float, **more: object) -> str:
        labels = ",".join(f'{key}="{text}"' for key, text in sorted({**more, **self.labels}.items()))
        return f"vllm:{name}{{{labels}}} {value}"
