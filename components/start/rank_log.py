"""What a rank's log says about its start: the phase, its progress, and the numbers that the engine itself prints.

Pure: lines in, state out. The patterns are lines of vLLM (0.25, and 0.33 where it joins two) and of rank.py.
"""

import re
from collections import deque
from dataclasses import dataclass, field

from components.start.first_error import FirstError

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
STAMP = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)) ?")
"""Docker's, in front of every line."""
START = re.compile(r"spark: rank \d+ starts")
MEETING = "waits at the rendezvous"
PHASES: list[tuple[re.Pattern[str], str]] = [
    (START, "checks fabric and checkpoint"),
    # nearly all of the first minute: each of the engine's processes imports vLLM and torch anew
    (re.compile(r"spark: starting the engine"), "loads vLLM's modules"),
    (
        re.compile(r"Resolved architecture:|Initializing a V1 LLM engine|headless multiproc executor"),
        "starts its processes",
    ),
    # printed just before a rank waits, on every rank
    (re.compile(r"world_size=\d+ rank=\d+ local_rank=\d+ distributed_init_method="), MEETING),
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
SHOWN_LINES = 12


@dataclass
class RankLog:
    """The state of one rank's start, from the lines so far."""

    phase: str = "is created"
    progress: tuple[int, int] | None = None
    """Done and total of what the phase counts (shards, graphs)."""
    serves: bool = False
    kv_memory_gib: float | None = None
    kv_tokens: int | None = None
    context_tokens: int | None = None
    max_concurrency: float | None = None
    arrived: bool = False
    """Whether it has reached the rendezvous."""
    error: FirstError = field(default_factory=FirstError)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_LINES))
    """The last lines, without tracebacks."""

    def feed(self, line: str) -> bool:
        """Read one line, with or without Docker's time in front; True when phase or progress changed."""
        line = ANSI.sub("", line).rstrip()
        stamp = STAMP.match(line)
        if stamp:
            line = line[stamp.end() :]
        if START.search(line):
            # the container was restarted, and Docker shows its earlier starts too
            vars(self).update(vars(RankLog()))
        if not self.error.read(line, stamp[1] if stamp else ""):
            return False
        self.tail.append(line)
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
                self.arrived = self.arrived or phase == MEETING
                self.progress = (int(match[1]), int(match[2])) if pattern.groups == 2 else None
                # a kernel that is tuned during a request does not mean that the rank stopped serving
                self.serves = self.serves or phase == "serves"
                return before != (self.phase, self.progress)
        return False

    def __str__(self) -> str:
        return f"{self.phase} {self.progress[0]}/{self.progress[1]}" if self.progress else self.phase
