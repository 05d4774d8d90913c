"""What a rank's log says about its start: the phase, its progress, and the numbers that the engine itself prints.

Pure: lines in, state out. The patterns are lines of vLLM (0.25, and 0.33 where it joins two) and of rank.py.
"""

import re
from collections import deque
from dataclasses import dataclass, field

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
START = re.compile(r"spark: rank \d+ starts")
PHASES: list[tuple[re.Pattern[str], str]] = [
    (START, "checks fabric and checkpoint"),
    # nearly all of the first minute: each of the engine's processes imports vLLM and torch anew
    (re.compile(r"spark: starting the engine"), "loads vLLM's modules"),
    (
        re.compile(r"Resolved architecture:|Initializing a V1 LLM engine|headless multiproc executor"),
        "starts its processes",
    ),
    # printed just before a rank waits, on every rank
    (re.compile(r"world_size=\d+ rank=\d+ local_rank=\d+ distributed_init_method="), "waits at the rendezvous"),
    (re.compile(r"rank \d+ in world size"), "has met the other ranks"),
    # rank 0 alone counts its shards
    (re.compile(r"Loading model from scratch|Starting to load model"), "loads shards"),
    (re.compile(r"Loading safetensors checkpoint shards:.*?(\d+)/(\d+)"), "loads shards"),
    (re.compile(r"Loading weights took"), "has loaded its shards"),
    (re.compile(r"Model loading took"), "profiles memory"),
    (re.compile(r"Warming up model for the compilation"), "compiles the model"),
    (
        re.compile(r"Available KV cache memory|memory for KV Cache as specified|Explicitly set .* for KV"),
        "sizes the KV pool",
    ),
    (re.compile(r"(?i)\[autotuner\]|autotuning process"), "tunes kernels"),
    (re.compile(r"Capturing (?:\w+ )?CUDA graphs?.*?(\d+)/(\d+)"), "captures graphs"),
    (re.compile(r"Graph capturing finished"), "has captured its graphs"),
    (re.compile(r"init engine .* took"), "starts the API"),
    (re.compile(r"Application startup complete"), "serves"),
]
KV_MEMORY = re.compile(
    r"Available KV cache memory: ([\d.]+) GiB|reserved ([\d.]+) GiB memory for KV Cache|Explicitly set \(([\d.]+)/"
)
"""The size that profiling found; the one set by kv_cache_memory_bytes, on a GPU and on a CPU."""
KV_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
ERROR = re.compile(r"(?:\(\w+ pid=\d+\) )*(?:ERROR \S+ \S+ \[\S+\] )?((?:\w+\.)*\w*(?:Error|Exception): .+)")
"""The last line of a Python traceback, with the prefixes of the engine's processes."""
KEPT_LINES = 400
"""Enough to keep the cause above the tracebacks that every vLLM process of a failing rank prints."""


@dataclass
class RankLog:
    """The state of one rank's start, from the lines so far."""

    role: str
    phase: str = "is created"
    progress: tuple[int, int] | None = None
    """Done and total of what the phase counts (shards, graphs)."""
    serves: bool = False
    kv_memory_gib: float | None = None
    kv_tokens: int | None = None
    context_tokens: int | None = None
    max_concurrency: float | None = None
    first_error: str | None = None
    """The first exception of this start; later ones are its consequences, also on the other ranks."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def feed(self, line: str) -> bool:
        """Read one line; True when phase or progress changed."""
        line = ANSI.sub("", line).rstrip()
        if not line:
            return False
        if START.search(line):
            # the container was restarted: its earlier lines are not about this start
            self.first_error, self.serves = None, False
            self.tail.clear()
        self.tail.append(line)
        if self.first_error is None and (match := ERROR.match(line)):
            self.first_error = match[1]
        if match := KV_MEMORY.search(line):
            self.kv_memory_gib = float(match[match.lastindex or 1])
        if match := KV_TOKENS.search(line):
            self.kv_tokens = int(match[1].replace(",", ""))
        if match := CONCURRENCY.search(line):
            self.context_tokens, self.max_concurrency = int(match[1].replace(",", "")), float(match[2])
        for pattern, phase in PHASES:
            if match := pattern.search(line):
                before = (self.phase, self.progress)
                self.phase = phase
                self.progress = (int(match[1]), int(match[2])) if pattern.groups == 2 else None
                # a kernel that is tuned during a request does not mean that the rank stopped serving
                self.serves = self.serves or phase == "serves"
                return before != (self.phase, self.progress)
        return False

    def __str__(self) -> str:
        done = f" {self.progress[0]}/{self.progress[1]}" if self.progress else ""
        return f"{self.role} {self.phase}{done}"
