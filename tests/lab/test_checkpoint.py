"""Whatever is cut, damaged or full, the next `up` completes the checkpoint, and nothing is lost.

Only the checkpoint's steps run here (`--target`); the ranks have their own tests.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.checkpoint import BEFORE, HUB, MODEL, ONLY, SNAPSHOT, assert_whole, blobs, clear, files, mib, status, up
from tests.lab.pair import NODES, Stack, Under, hub, hub_log, lab, on, place, words_of

TOKEN = "hf_only-for-the-download"
SLOW = 600_000
"""A slow hub's bytes a second: 36 MB take a minute, so that even a busy machine sees the download while it runs."""


@pytest.fixture(scope="module", autouse=True)
def pair(stack: Stack) -> Iterator[Stack]:
    stack.up(None, *BEFORE)
    yield stack
    hub()


@pytest.fixture(autouse=True)
def a_good_hub() -> Iterator[None]:
    hub()
    yield
    hub()


def under_way(pair: Stack, node: str, count: int, change: Any = None) -> Under:
    """An `up` from nothing with a slow hub, at the moment when the node has more than `count` files."""
    clear(*NODES)
    hub(rate_bytes_s=SLOW)
    run = pair.begin_up(change, *ONLY)
    run.until(lambda: files(node) > count, f"more than {count} files on the {node}")
    return run


def test_the_worker_mirrors_while_the_head_still_downloads_and_each_file_crosses_the_line_once(pair: Stack) -> None:
    run = under_way(pair, "worker", 5)
    assert status("head")["state"] == "running" and files("head") < 56
    for node in NODES:
        process = on(node, "docker inspect -f '{{.State.Pid}}' spark-dev-checkpoint").strip()
        peak = int(on(node, f"awk '/VmHWM/ {{print $2}}' /proc/{process}/status", root=True))
        assert peak < 200 * 1024, f"{node}: {peak} kB"
    hub()
    shown = words_of(run.wait().text)
    assert "head-checkpoint" in shown and "checkpoint: downloading" in shown
    assert "checkpoint: mirroring" in shown
    assert_whole(*NODES)


def test_after_ctrl_c_the_job_goes_on_and_the_next_up_watches_the_same_one(pair: Stack) -> None:
    run = under_way(pair, "head", 12)
    job = on("head", "docker ps -q --no-trunc --filter label=spark.job=checkpoint")
    assert run.interrupt().code != 0
    pair.pulumi("cancel", "--yes", "dev")
    assert on("head", "docker ps -q --no-trunc --filter label=spark.job=checkpoint") == job != ""
    assert files("head") < 56
    hub()
    up(pair)
    assert_whole(*NODES)


def test_a_hub_that_is_cut_at_forty_percent_and_comes_back_is_waited_for(pair: Stack) -> None:
    clear(*NODES)
    hub(down_after_bytes=14_000_000)
    run = pair.begin_up(None, *ONLY)
    run.until(lambda: files("head") > 12, "a few files on the head")
    time.sleep(8)
    kept = blobs("head")
    assert status("head")["state"] == "running"
    hub()
    assert "files verified, waiting for the hub (" in words_of(run.wait().text)
    assert_whole(*NODES)
    assert kept.items() <= blobs("head").items(), "what had arrived is not fetched again"


def test_a_download_that_is_killed_is_gone_on_with_within_the_shards_it_had_begun(pair: Stack) -> None:
    run = under_way(pair, "head", 12)
    on("head", "docker kill spark-dev-checkpoint")
    assert run.wait(check=False).code != 0
    began = [size for size in on("head", f"stat -c %s {MODEL}/blobs/*.spark-part").split() if size != "0"]
    hub()
    before = len(hub_log())
    up(pair)
    assert_whole(*NODES)
    asked = hub_log()[before:]
    assert began and [size for size in began if f" 206 bytes={size}-" not in asked] == []


def test_a_head_that_is_rebooted_while_it_downloads_goes_on_with_what_is_there(pair: Stack) -> None:
    run = under_way(pair, "head", 12)
    on("head", "sync", root=True)
    kept = blobs("head")
    lab("reboot", "head")
    assert run.wait(check=False).code != 0
    hub()
    up(pair)
    assert_whole(*NODES)
    assert len(kept.items() & blobs("head").items()) > 6, "whole blobs are not fetched again"


def test_a_worker_that_loses_power_while_it_mirrors_is_whole_after_the_next_up(pair: Stack) -> None:
    run = under_way(pair, "worker", 12)
    lab("power-cut", "worker")
    hub()
    done = run.wait(check=False)
    lab("power-on", "worker")
    assert done.code != 0
    up(pair)
    assert_whole(*NODES)


def test_a_mirror_goes_on_after_the_cable_was_out_and_every_connection_was_reset(pair: Stack) -> None:
    run = under_way(pair, "worker", 8)
    lab("cable", "out")
    time.sleep(3)
    reset = on("worker", "ss --kill --no-header --tcp dst 192.168.100.1", root=True).splitlines()
    lab("cable", "in")
    assert len(reset) > 1, "streams were under way"
    hub()
    run.wait()
    assert_whole(*NODES)


def test_whatever_is_broken_on_the_worker_that_alone_is_mended_over_the_fabric(pair: Stack) -> None:
    """A wrong byte, a truncated shard, a dangling link, left-over files, files of root, and no hub."""
    shard = f"{SNAPSHOT}/model-000%02d-of-00048.safetensors"
    flipped, short, gone = (on("worker", f"readlink -f {shard % number}").strip() for number in (7, 19, 31))
    before = blobs("worker")
    on("worker", f"printf '\\377' | dd of={flipped} bs=1 seek=5000 conv=notrunc status=none")
    on("worker", f"truncate -s -1 {short}; rm {gone}; touch {MODEL}/blobs/{'0' * 64}.spark-part")
    on("worker", f"chown -R root:root ~spark/{MODEL.removeprefix('~/')}/snapshots", root=True)

    def no_hub(cluster: dict[str, Any]) -> None:
        cluster["checkpoint"]["endpoint"] = f"http://{place().control}:5999"

    shown = words_of(up(pair, no_hub).text)
    assert "worker" in shown and "is damaged" in shown
    assert "belongs to another user: the checkpoint's step will give it to spark" in shown
    assert_whole(*NODES)
    after = blobs("worker")
    assert {name for name in before if before[name] != after[name]} == {
        path.rpartition("/")[2] for path in (flipped, short, gone)
    }
    assert on("worker", f"find {MODEL} -user root") == ""


def test_a_missing_shard_on_the_head_is_named_where_the_hub_cannot_give_it(pair: Stack) -> None:
    blob = on("head", f"readlink -f {SNAPSHOT}/model-00007-of-00048.safetensors").strip()
    on("head", f"rm {blob}")

    def no_hub(cluster: dict[str, Any]) -> None:
        cluster["checkpoint"]["endpoint"] = f"http://{place().control}:5999"

    refused = words_of(pair.preview(no_hub, check=False).text)
    assert f"the hub http://{place().control}:5999 cannot be reached from this node" in refused
    assert "model-00007-of-00048.safetensors is a link to a file that is not there" in refused
    up(pair)
    assert_whole(*NODES)


def test_a_gated_repository_is_refused_with_its_page_and_opened_by_a_token_that_is_nowhere_else(pair: Stack) -> None:
    clear(*NODES)
    hub(require_token=TOKEN)
    refused = words_of(pair.preview(check=False).text)
    assert f"accept its licence at http://{place().control}:5055/deepseek-ai/DeepSeek-V4-Flash-DSpark" in refused
    pair.hf_token = TOKEN
    try:
        run = pair.begin_up(lambda cluster: None, *ONLY)
        run.until(lambda: files("head") > 5, "a file on the head")
        argv = on("head", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'", root=True)
        inspected = on("head", "docker inspect $(docker ps -aq)")
        done = run.wait()
    finally:
        pair.hf_token = None
    assert_whole(*NODES)
    state = pair.pulumi("stack", "export", "--stack", "dev").text
    left = on("head", f"grep -rl {TOKEN} ~/.local/share/spark-stack {HUB}; true")
    for text in (done.text, argv, inspected, state, left):
        assert TOKEN not in text


@pytest.mark.parametrize(
    ("switch", "words"),
    [("wrong_size", "in another size than it lists"), ("flip", "arrived twice from http://%s:5055 with content that")],
)
def test_a_hub_that_sends_something_else_is_not_believed(pair: Stack, switch: str, words: str) -> None:
    shard = "model-00031-of-00048.safetensors"
    on("head", f"rm $(readlink -f {SNAPSHOT}/{shard})")
    hub(**{switch: [shard]})
    done = up(pair, check=False)
    assert done.code != 0
    said = words % place().control if "%s" in words else words
    assert f"{shard} {said}" in words_of(done.text), done.text[-4000:]
    hub()
    up(pair)
    assert_whole(*NODES)


def test_a_full_disk_on_the_worker_is_told_in_numbers_before_and_in_words_when_it_fills(pair: Stack) -> None:
    on("worker", "mkdir -p ~spark/small && mount -t tmpfs -o size=20m,uid=1000,gid=1000 none ~spark/small", root=True)

    def small(cluster: dict[str, Any]) -> None:
        cluster["nodes"][1]["hf_cache"] = "~/small"

    try:
        refused = words_of(pair.preview(small, check=False).text)
        lacks = f"lacks {mib('head', SNAPSHOT):.1f} MiB on this node"
        assert f"worker: the checkpoint {lacks}, and /home/spark/small has 20.0 MiB free" in refused
        on("worker", "mount -o remount,size=100m ~spark/small", root=True)
        run = under_way(pair, "worker", 5, small)
        on("worker", "head -c 100000000 /dev/zero >~/small/something-else; true")
        hub()
        assert run.wait(check=False).code != 0
        assert "no room for" in words_of(run.text)
        assert on("worker", "find ~/small -name '*.spark-part'") == ""
    finally:
        on("worker", "docker rm -f spark-dev-checkpoint; umount ~spark/small", root=True)
    up(pair)
    assert_whole(*NODES)


def test_a_second_job_on_one_cache_waits_for_the_first(pair: Stack) -> None:
    clear("worker")
    on("worker", f"mkdir -p {HUB}; nohup flock {HUB} sleep 300 >/dev/null 2>&1 &")
    run = pair.begin_up(None, *ONLY)
    run.until(lambda: "waiting for another job on this cache" in run.text, "a word on the other job")
    assert blobs("worker") == {}
    on("worker", "pkill -f 'sleep 300'")
    run.wait()
    assert_whole(*NODES)
