"""How a client reaches the API: its URL, and a tunnel where the head alone can."""

import shlex
from pathlib import Path

from components.settings.cluster import ClusterSettings
from components.settings.engine_settings import WILDCARDS, in_url
from components.ssh.target import Target


def api_url(cluster: ClusterSettings, head_host: str) -> str:
    """At api_host; else at the bound address, for a wildcard at the host that ssh knows the head by.

    An address of the fabric never: only the two nodes have it. One of loopback is the head's own.
    """
    engine = cluster.engine
    host = cluster.api_host or (head_host if engine.host in WILDCARDS else engine.host)
    return f"http://{in_url(host)}:{engine.port}/v1"


def tunnel(cluster: ClusterSettings, ssh_config: Path | None) -> list[str] | None:
    """argv of a tunnel from a machine's loopback to the API; None unless the API binds the head's loopback.

    `ssh_config` is the stack's, as that machine finds it. The tunnel does not share a connection: one that the user's
    configuration keeps open would keep the port open after Ctrl-C.
    """
    engine, port = cluster.engine, cluster.engine.port
    if not engine.binds_loopback:
        return None
    config = ["-F", str(ssh_config)] if ssh_config else []
    head = Target.parse(cluster.nodes[0].ssh)
    return ["ssh", "-N", "-S", "none", "-L", f"{port}:{engine.local_host}:{port}", *config, *head.destination]


def api_reach(cluster: ClusterSettings, url: str) -> str:
    """Who reaches the API at its URL, in words that are the same in every checkout."""
    if argv := tunnel(cluster, cluster.ssh_config):
        return f"on the head; from elsewhere through {shlex.join(argv)}"
    return f"from every machine that reaches {url.split('/')[2]}"
