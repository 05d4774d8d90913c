"""Faults as on real pairs: each soon ends `up`, with both ranks' last lines and their meaning; the next repairs."""

import time
from typing import Any

import pytest

from tests.lab.pair import Stack, ask, identities, lab, on, place, words_of

SOON_S = 45
"""The most seconds from the end of a rank to the end of `up`, on emulated machines."""


def ended_at(node: str, rank: int) -> float:
    text = on(node, f"date -d \"$(docker inspect -f '{{{{.State.FinishedAt}}}}' spark-dev-rank{rank})\" +%s; date +%s")
    finished, now = map(int, text.split())
    return time.time() - (now - finished)


@pytest.fixture(scope="module")
def pair(stack: Stack) -> Stack:
    stack.up()
    return stack


def refused_flag(cluster: dict[str, Any]) -> None:
    cluster["engine"] = {"extra_args": ["--no-such-flag"]}


@pytest.mark.parametrize(
    ("fault", "change", "sayings"),
    [
        (None, refused_flag, ["unrecognized arguments: --no-such-flag", "does not know the flag"]),
        (
            "die-at-load",
            None,
            [
                "first error, on worker: RuntimeError: CUDA error: an illegal memory access was encountered",
                "tcp/pair.cc:547] Connection closed by peer",
                "no row of docs/troubleshooting.md fits",
            ],
        ),
        ("out-of-memory", None, ["Something else holds unified memory"]),
    ],
    ids=["a wrong flag", "a rank that dies at load", "out of memory"],
)
def test_up_fails_within_seconds_of_the_cause_and_says_what_it_means(pair: Stack, fault, change, sayings) -> None:
    if fault:
        lab("fault", "1", fault)
    try:
        done = pair.up(change, check=False)
        over = time.time()
    finally:
        lab("fault", "clear")
    assert done.code != 0
    shown = words_of(done.text)
    for saying in sayings:
        assert saying in shown, done.text[-4000:]
    assert over - ended_at("worker", 1) < SOON_S


def test_the_next_up_recovers_by_itself(pair: Stack) -> None:
    shown = words_of(pair.up().text)
    assert "restarting both ranks" in shown
    assert "4183" in ask()


def test_a_rank_removed_by_hand_brings_both_back(pair: Stack) -> None:
    """Here on a node whose user logs in to fish, by way of an alias that starts tmux for people."""
    people = place().root / "people_config"
    people.write_text(f"{place().ssh_config.read_text()}\nHost *\n  RemoteCommand tmux new -A\n  RequestTTY force\n")
    before = identities()
    on("worker", "docker rm -f spark-dev-rank1; usermod --shell /usr/bin/fish spark", root=True)
    try:
        done = pair.up(lambda cluster: cluster.update(ssh_config=f".lab/{people.name}"))
    finally:
        on("worker", "usermod --shell /bin/bash spark", root=True)
    assert "worker has no rank" in words_of(done.text)
    after = identities()
    assert not set(before) & set(after), "both ranks are new"
    assert "4183" in ask()


def test_a_missing_shard_comes_from_the_head_before_the_ranks_start(pair: Stack) -> None:
    snapshot = "$(echo ~/.cache/huggingface/hub/models--deepseek-ai--DeepSeek-V4-Flash-DSpark/snapshots/*)"
    shard = "model-00007-of-00048.safetensors"
    blob = on("worker", f"readlink -f {snapshot}/{shard}").strip()
    on("worker", f"rm {blob}; docker rm -f spark-dev-rank1")
    shown = words_of(pair.up().text)
    assert f"from head: {shard} is a link to a file that is not there" in shown
    assert on("worker", f"test -s {blob} && echo whole").strip() == "whole"
    assert "4183" in ask()


def test_a_rank_that_starts_without_a_shard_ends_at_once_and_names_it(pair: Stack) -> None:
    """As after a reboot: only the rank's own check runs before the engine."""
    snapshot = "$(echo ~/.cache/huggingface/hub/models--deepseek-ai--DeepSeek-V4-Flash-DSpark/snapshots/*)"
    link = f"{snapshot}/model-00031-of-00048.safetensors"
    on("worker", f"mv {link} /tmp/kept")
    on("worker", "docker restart -t 1 spark-dev-rank1")
    state = on("worker", "timeout 60 docker wait spark-dev-rank1").strip()
    assert state == "1"
    assert "model-00031-of-00048.safetensors is missing" in on("worker", "docker logs --tail 5 spark-dev-rank1 2>&1")
    on("worker", f"mv /tmp/kept {link}")
    pair.up()
    assert "4183" in ask()


def test_a_folder_of_ours_that_is_gone_is_made_again(pair: Stack) -> None:
    on("head", "docker rm -f spark-dev-rank0")
    on("head", "rm -rf /home/spark/.local/share/spark-stack/dev", root=True)
    pair.up()
    assert "4183" in ask()


def test_something_foreign_under_our_name_or_on_our_port_is_named_and_left_alone(pair: Stack) -> None:
    image = pair.outputs()["image"]
    on("worker", "docker rm -f spark-dev-rank1")
    on("worker", f"docker run -d --name spark-dev-rank1 --entrypoint sleep {image} 600")
    on("head", "docker rm -f spark-dev-rank0")
    on("head", f"docker run -d --name squatter --network host --entrypoint python3 {image} -m http.server 8888")
    try:
        done = pair.up(check=False)
        shown = words_of(done.text)
        assert done.code != 0
        assert "container spark-dev-rank1 exists without our label" in shown
        assert "port 8888 is held by container squatter" in shown
        assert on("worker", "docker inspect -f '{{.State.Running}}' spark-dev-rank1").strip() == "true"
    finally:
        on("worker", "docker rm -f spark-dev-rank1")
        on("head", "docker rm -f squatter")
    pair.up()
    assert "4183" in ask()
