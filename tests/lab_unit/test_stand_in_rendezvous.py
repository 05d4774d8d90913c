"""The rendezvous on loopback: ranks meet, wait for each other, give up at the limit, and name a taken port."""

import socket
import threading
from dataclasses import replace

import pytest

from lab.runtime.vllm import config, flags, rendezvous
from lab.runtime.vllm.errors import DistNetworkError, DistStoreError
from lab.runtime.vllm.group import Group
from tests.lab_unit.stand_in_machine import LIMIT_S, RECIPE


def ranks(port: int, *more: str) -> list[config.Config]:
    base = config.engine_config(flags.parse(["serve", "m", *RECIPE, "--master-port", str(port), *more]))
    return [replace(base, node_rank=rank, headless=rank > 0) for rank in range(base.nnodes)]


def meet_all(configs: list[config.Config]) -> tuple[dict[int, Group], dict[int, Exception]]:
    groups: dict[int, Group] = {}
    failures: dict[int, Exception] = {}

    def one(mine: config.Config) -> None:
        try:
            groups[mine.node_rank] = rendezvous.meet(mine, "127.0.0.1")
        except Exception as error:
            failures[mine.node_rank] = error

    threads = [threading.Thread(target=one, args=(mine,)) for mine in configs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return groups, failures


def test_three_ranks_meet_wait_for_each_other_and_notice_a_loss(free_port):
    groups, failures = meet_all(ranks(free_port(), "--nnodes", "3", "--tensor-parallel-size", "3"))
    assert not failures
    values: dict[int, dict[str, int]] = {}
    threads = [
        threading.Thread(target=lambda rank, group: values.update({rank: group.barrier("kv", rank * 10)}), args=item)
        for item in groups.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert values == {rank: {"0": 0, "1": 10, "2": 20} for rank in range(3)}
    groups[2].close()
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        groups[0].barrier("next")
    groups[0].close()
    groups[1].close()


def test_a_rank_that_nobody_joins_gives_up_at_the_limit(free_port):
    head, worker = ranks(free_port(), "--distributed-timeout-seconds", "1")
    _, failures = meet_all([worker])
    assert isinstance(failures[1], DistNetworkError)
    _, failures = meet_all([head])
    assert isinstance(failures[0], DistStoreError)
    assert "1/2 clients joined" in str(failures[0])


def test_a_taken_rendezvous_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        _, failures = meet_all(ranks(taken.getsockname()[1])[:1])
    assert "name: EADDRINUSE, message: address already in use" in str(failures[0])
