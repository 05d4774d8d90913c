"""Where clients reach the API, and what the outputs say of it."""

import pytest

from components.ssh.reach import api_reach, api_url
from tests.program.runner import Engine
from tests.unit.stacks import cluster


@pytest.mark.parametrize(
    ("host", "api", "probe"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "spark-a.example.net", "127.0.0.1"),
        ("::", "spark-a.example.net", "[::1]"),
        ("2001:db8::10", "[2001:db8::10]", "[2001:db8::10]"),
        ("192.0.2.10", "192.0.2.10", "192.0.2.10"),
        ("198.51.100.1", "127.0.0.1", "198.51.100.1"),
    ],
)
def test_clients_and_probes_ask_where_the_server_can_be_reached(host: str, api: str, probe: str):
    """Nobody but the nodes has an address of the fabric."""
    stack = cluster(change={"engine": {"host": host, "allow_unauthenticated_lan": True}})
    assert api_url(stack, "spark-a.example.net") == f"http://{api}:8888/v1"
    assert stack.engine.local_url == f"http://{probe}:8888"


@pytest.mark.parametrize("host", ["::", "127.0.0.1"])
def test_api_host_is_where_clients_go_whatever_is_bound(host: str):
    engine = {"host": host, "allow_unauthenticated_lan": True}
    stack = cluster(change={"api_host": "llm.example.net", "engine": engine})
    url = api_url(stack, "spark-a")
    assert url == "http://llm.example.net:8888/v1"
    assert api_reach(stack, url) == "from every machine that reaches llm.example.net:8888"


def test_an_api_of_the_fabric_is_reached_through_a_tunnel():
    stack = cluster(change={"engine": {"host": "198.51.100.1", "allow_unauthenticated_lan": True}})
    assert api_reach(stack, api_url(stack, "spark-a")) == (
        "on the fabric; from elsewhere through ssh -N -S none -L 8888:198.51.100.1:8888 -l ops spark-a.example.net"
    )


def test_an_api_of_the_heads_loopback_says_so_with_the_tunnel_to_it(dev: Engine):
    assert dev.outputs["api_reach"] == (
        "on the head; from elsewhere through ssh -N -S none -L 8888:127.0.0.1:8888 -F .lab/ssh_config lab-head"
    )
