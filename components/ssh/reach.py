"""How a client reaches the API: its URL, and a tunnel where the head alone can."""

import shlex
from pathlib import Path

from components.settings.cluster import ClusterSettings
from components.settings.engine_settings import WILDCARDS, in_url
from components.ssh.target import Target


def on_the_fabric(cluster: ClusterSettings) -> bool:
    """Whether the API binds the head's fabric address, which only the nodes reach."""
    return cluster.engine.host == str(cluster.nodes[0].fabric_ip)


def api_url(cluster: ClusterSettings, head_host: str) -> str:
    """At api_host; else at the bound address, for a wildcard at the host that ssh knows the head by.

    An address of the fabric never: only the nodes reach it, so 127.0.0.1 is the near end of the tunnel. Another address
    of loopback is the head's own.
    """
    engine = cluster.engine
    bound = "127.0.0.1" if on_the_fabric(cluster) else engine.host
    host = cluster.api_host or (head_host if engine.host in WILDCARDS else bound)
    return f"http://{in_url(host)}:{engine.port}/v1"


def tunnel(cluster: ClusterSettings, ssh_config: Path | None) -> list[str] | None:
    """argv of a tunnel from a machine's loopback to the API; None where clients reach the API, as api_host says too.

    `ssh_config` is the stack's, as that machine finds it. The tunnel does not share a connection: one that the user's
    configuration keeps open would keep the port open after Ctrl-C.
    """
    engine, port = cluster.engine, cluster.engine.port
    if cluster.api_host or not (engine.binds_loopback or on_the_fabric(cluster)):
        return None
    config = ["-F", str(ssh_config)] if ssh_config else []
    head = Target.parse(cluster.nodes[0].ssh)
    return ["ssh", "-N", "-S", "none", "-L", f"{port}:{engine.local_host}:{port}", *config, *head.destination]


def place(cluster: ClusterSettings) -> str:
    """Where an API that needs a tunnel answers, in words."""
    return "on the fabric" if on_the_fabric(cluster) else "on the head"


def api_reach(cluster: ClusterSettings, url: str) -> str:
    """Who reaches the API at its URL, in words that are the same in every checkout."""
    if argv := tunnel(cluster, cluster.ssh_config):
        return f"{place(cluster)}; from elsewhere through {shlex.join(argv)}"
    return f"from every machine that reaches {url.split('/')[2]}"
