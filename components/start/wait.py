"""Waiting until the pair serves: what the resource `ready` gives to scripts/wait_ready, and what it gets back."""

import time
from pathlib import Path
from typing import TypedDict

from components.ssh.target import Target, resolve
from components.start.failure import StartFailed, failure
from components.start.probe import Probe
from components.start.watch import Watch
from components.start.watched import Watched
from host.console import say
from rank.probe import Answer, ProbeInputs, WarmUp

ENOUGH = 0.9
"""Share of the expected KV pool below which something is wrong."""


class WatchedNode(TypedDict):
    role: str
    ssh: str
    """Its target, as the stack file writes it."""
    container: str


class WaitInputs(TypedDict):
    ssh_config: str | None
    nodes: list[WatchedNode]
    """In rank order."""
    base_url: str
    """Of the API, as the head's node reaches it."""
    model: str
    """What the API calls it."""
    stack: str
    timeout_s: int
    """Limit from now to a served API."""
    completion_timeout_s: int
    warm_up: WarmUp
    expected_kv_tokens: int | None
    """Of the whole pool, where the settings that decide it are the profile's; None where nobody knows."""


class KvPool(TypedDict):
    """The engine's own numbers; None where its log does not have them any more."""

    kv_memory_gib: float | None
    """Of a rank."""
    kv_tokens: int | None
    context_tokens: int | None
    """Of the longest context."""
    max_concurrency: float | None
    """Requests of the longest context that the pool holds at once."""
    expected_kv_tokens: int | None
    """What kv_tokens is elsewhere with these settings."""


class Start(Answer):
    served_s: float
    """Seconds until the API was up."""
    served_at: float
    """When that was, Unix time."""


class Report(KvPool, Start):
    """How the start went."""


def wait(inputs: WaitInputs) -> Report:
    """Watch all ranks until the head has answered a completion. Raises StartFailed, SshError."""
    config = Path(inputs["ssh_config"]) if inputs["ssh_config"] else None
    ranks = []
    for node in inputs["nodes"]:
        target = Target.parse(node["ssh"], config)
        ranks.append(Watched(node["role"], node["container"], target, resolve(target)))
    watch = Watch(ranks)
    head = ranks[0]
    probe: Probe | None = None
    try:
        # the log of a rank that has served for long may have lost the line that says so
        head.log.serves = head.inspect().healthy
        watch.until(lambda: head.log.serves, "the start", inputs["timeout_s"])
        served_s, served_at = watch.elapsed_s, time.time()
        say(f"{served_s:5.0f} s   the API is up: asking for a completion")
        # the first completion, the warm-up, and the request that its end may find under way
        limit_s = 2 * inputs["completion_timeout_s"] + int(inputs["warm_up"]["limit_s"]) + 60
        probe = Probe(head, probe_inputs(inputs), limit_s)
        watch.until(probe.done, "the completion", limit_s)
        try:
            answer = probe.result()
        except StartFailed as error:
            raise failure(ranks, head, watch.elapsed_s, str(error)) from None
    finally:
        watch.close()
        if probe is not None:
            probe.close()
    log, expected = head.log, inputs["expected_kv_tokens"]
    if expected and log.kv_tokens and log.kv_tokens < ENOUGH * expected:
        say(
            f"the KV pool has {log.kv_tokens:,} tokens, {log.kv_tokens / expected:.0%} of the {expected:,} that others "
            "have with these settings: something held memory while the engine measured. Look at both nodes for another "
            "process with much memory (`ps aux --sort -rss`) and for a driver that takes more, then restart the pair"
        )
    return {
        "kv_memory_gib": log.kv_memory_gib,
        "kv_tokens": log.kv_tokens,
        "context_tokens": log.context_tokens,
        "max_concurrency": log.max_concurrency,
        "expected_kv_tokens": expected,
        "served_s": round(served_s, 1),
        "served_at": round(served_at, 1),
        **answer,
    }


def probe_inputs(inputs: WaitInputs) -> ProbeInputs:
    return {
        "base_url": inputs["base_url"],
        "model": inputs["model"],
        "stack": inputs["stack"],
        "completion_timeout_s": inputs["completion_timeout_s"],
        "warm_up": inputs["warm_up"],
    }
