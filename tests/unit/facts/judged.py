"""Findings of a healthy pair with one thing changed, for the tests of the preflight."""

from collections.abc import Callable, Mapping
from typing import Any

from components.facts.finding import Finding
from components.facts.preflight import findings
from tests.program.pair import healthy, typed
from tests.unit.stacks import cluster

NODES = {
    "nodes": [
        {"ssh": "ops@spark-a.example.net", "fabric_ip": "192.168.100.1"},
        {"ssh": "ops@spark-b.example.net", "fabric_ip": "192.168.100.2"},
    ]
}
GIB = 1 << 30
GIB_KB = 1 << 20
HEAD, WORKER = 0, 1
Node = dict[str, Any]


def judge(
    change: Callable[[Node], object] = lambda node: None,
    on: int = WORKER,
    stack: Mapping[str, Any] | None = None,
    profile: str = "vision-exp",
) -> list[Finding]:
    """Findings of a healthy pair with one node changed."""
    documents = healthy()
    change(documents[on])
    return findings(cluster(profile, {**NODES, **(stack or {})}), [typed(item) for item in documents], "dev")


def texts(items: list[Finding], level: str = "error") -> list[str]:
    return [str(item) for item in items if item.level == level]


def one(items: list[Finding], level: str = "error") -> str:
    """The text of the only finding, which must be of this level."""
    [item] = items
    assert item.level == level, str(item)
    return str(item)


def listener(port: int, **values: Any) -> dict[str, Any]:
    return {"port": port, "address": "0.0.0.0", "pid": None, "process": None, "container": None, **values}


def gpu(*apps: dict[str, Any]) -> Callable[[Node], object]:
    return lambda node: node["gpu"].update(apps=list(apps))
