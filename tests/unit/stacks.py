"""Stack files for tests: a pair on a profile, with what one test changes."""

from collections.abc import Mapping
from typing import Any

from components.settings.cluster import ClusterSettings, load
from components.settings.profile import merged

REVISION = "3c5ed1f0a94b27d86ef1a0b9c2d4e87f5a6b0c13"
NODES: list[dict[str, Any]] = [
    {"ssh": "ops@spark-a.example.net", "fabric_ip": "198.51.100.1"},
    {"ssh": "ops@spark-b.example.net", "fabric_ip": "198.51.100.2"},
]


def raw(profile: str = "0731", change: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The value of `spark-stack:cluster`: two nodes and a profile, `change` merged over them."""
    smallest: dict[str, Any] = {"profile": profile, "nodes": [dict(node) for node in NODES]}
    if profile == "dspark":
        smallest["checkpoint"] = {"revision": REVISION}
    return merged(smallest, change or {})


def node(rank: int, **values: Any) -> dict[str, Any]:
    """`nodes` with some values of one rank changed."""
    return {"nodes": [{**item, **values} if number == rank else dict(item) for number, item in enumerate(NODES)]}


def cluster(profile: str = "0731", change: Mapping[str, Any] | None = None) -> ClusterSettings:
    """Settings of that pair; a profile that cannot start without patches is accepted, for its commands."""
    return load(raw(profile, change), to_start=False)
