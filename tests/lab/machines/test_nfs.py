"""checkpoint.mode nfs: the worker reads the head's copy over the fabric and keeps none, and nobody else can read it."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab.checkpoint import BEFORE, verified
from tests.lab.pair import Stack, ask, identities, on, words_of

HUB = "/home/spark/.cache/huggingface/hub"
MODEL = f"{HUB}/models--deepseek-ai--DeepSeek-V4-Flash-DSpark"
EXPORTS = "/etc/exports.d/spark-stack-dev.exports"
ONLY = ["--target", "**checkpoint**", "--target", "**nfs-export**"]
MOUNTS = "timeout 20 mount -t nfs4 -o ro,soft,timeo=50,retry=0"


def nfs(cluster: dict[str, Any]) -> None:
    cluster["checkpoint"]["mode"] = "nfs"


@pytest.fixture(scope="module")
def reading(stack: Stack) -> Iterator[Stack]:
    """A pair in nfs mode, without a copy on the worker."""
    on("worker", f"rm -rf {MODEL}")
    stack.up(nfs)
    yield stack


def test_a_worker_without_a_copy_serves_from_the_heads(reading: Stack) -> None:
    assert "4183" in ask()
    [mount] = [
        line for line in on("worker", "docker exec spark-dev-rank1 cat /proc/mounts").splitlines() if " nfs4 " in line
    ]
    device, target, _, options = mount.split()[:4]
    assert (device, target) == (f":{HUB}", "/cache/huggingface/hub")
    wanted = "ro,vers=4.2,nconnect=8,hard,timeo=600,addr=192.168.100.1,clientaddr=192.168.100.2"
    assert set(wanted.split(",")) <= set(options.split(","))
    assert on("worker", f"find {HUB} -type f 2>/dev/null | wc -l").strip() == "0"


def test_a_second_up_changes_nothing(reading: Stack) -> None:
    before = identities()
    reading.up(nfs, "--expect-no-changes")
    assert identities() == before


def test_compiled_kernels_are_on_the_workers_own_disk(reading: Stack) -> None:
    kinds = on(
        "worker", "docker exec spark-dev-rank1 stat -f -c %T /cache/huggingface/triton-cache /cache/huggingface/hub"
    )
    assert kinds.split()[0] != "nfs" and kinds.split()[1] == "nfs"


def test_the_hub_alone_is_exported_read_only_to_the_workers_fabric_address_alone(reading: Stack) -> None:
    """The user's hub token is stored beside hub/, and must not be readable from another machine."""
    on("head", "echo hf_secret >~/.cache/huggingface/token")
    table = on("head", "cat /var/lib/nfs/etab", root=True).splitlines()
    [line] = [line for line in table if not line.startswith("#")]
    path, client = line.split()
    assert path == HUB and client.startswith("192.168.100.2(")
    assert {"ro", "root_squash"} <= set(client.rstrip(")").partition("(")[2].split(","))
    seen = on(
        "worker",
        f"mkdir -p /mnt/x; {MOUNTS} 192.168.100.1:/ /mnt/x && find /mnt/x -name token; umount /mnt/x",
        root=True,
    )
    assert "token" not in seen
    refused = on("head", f"{MOUNTS} 192.168.100.1:{HUB} /mnt 2>&1; echo code $?", root=True)
    assert "code 0" not in refused, "another address may not mount it"
    on("head", "rm ~/.cache/huggingface/token")


def test_a_server_that_stops_while_the_pair_serves_is_back_after_an_up_that_replaces_no_rank(reading: Stack) -> None:
    before = identities()
    on("head", "systemctl stop nfs-server", root=True)
    shown = words_of(reading.preview(nfs).text)
    assert "worker verifies that it can read the head's copy: the head's NFS server does not answer it" in shown
    reading.up(nfs)
    assert on("head", "systemctl is-active nfs-server").strip() == "active"
    assert identities() == before
    assert "4183" in ask()


def test_a_server_that_is_down_before_a_start_is_started_first(reading: Stack) -> None:
    """The worker's hard mount would hang without the server."""
    on("worker", "docker rm -f spark-dev-rank1")
    on("head", "docker rm -f spark-dev-rank0; systemctl stop nfs-server", root=True)
    reading.up(nfs)
    assert "4183" in ask()


def test_a_shard_that_the_worker_cannot_read_is_named_before_a_rank_starts(reading: Stack) -> None:
    shard = "model-00031-of-00048.safetensors"
    blob = on("head", f"readlink -f {MODEL}/snapshots/*/{shard}").strip()
    on("head", f"chmod 600 {blob}; docker rm -f spark-dev-rank0")
    on("worker", "docker rm -f spark-dev-rank1")
    on("head", "systemctl restart nfs-server", root=True)
    on("head", "systemctl stop nfs-server", root=True)
    done = reading.up(nfs, check=False)
    assert done.code != 0 and shard in words_of(done.text)
    assert on("worker", "docker ps -aq --filter label=spark.rank") == ""
    on("head", f"chmod 644 {blob}")
    reading.up(nfs)
    assert "4183" in ask()


def test_the_way_back_to_local_is_a_readable_diff(reading: Stack) -> None:
    shown = words_of(reading.preview().text)
    assert re.search(r"worker mirrors 3\d\.\d MiB from head: it has nothing of this model yet", shown)
    steps = reading.steps()
    assert steps["head-nfs-export"] == "delete"
    assert {name for name, step in steps.items() if "replace" in step} >= {"head-engine", "worker-engine"}


def test_destroy_takes_back_the_export_and_what_was_started_for_it(reading: Stack) -> None:
    """Even if the server has stopped, when removing the worker's rank would hang with its mount."""
    before = on("head", f"find {HUB} -type f | sort | xargs sha256sum | sha256sum")
    on("head", "systemctl stop nfs-server", root=True)
    reading.destroy()
    assert on("head", f"ls {EXPORTS} 2>/dev/null; systemctl is-active nfs-server; true").strip() == "inactive"
    assert on("head", "systemctl is-enabled nfs-server; true").strip() != "enabled"
    assert on("worker", "docker volume ls -q; grep ' nfs4 ' /proc/mounts; true") == ""
    assert on("head", f"find {HUB} -type f | sort | xargs sha256sum | sha256sum") == before


@pytest.fixture
def other() -> Iterator[Stack]:
    """A second stack on the same nodes, removed at the end."""
    made = Stack("other")
    yield made
    made.pulumi("stack", "rm", "--yes", "--force", "other")


def test_two_stacks_that_export_one_tree_share_the_server_until_the_last_goes(reading: Stack, other: Stack) -> None:
    # only the checkpoint's steps: two stacks' ranks cannot share the ports and the GPU
    reading.destroy()
    for stack in (reading, other):
        stack.up(nfs, *BEFORE, *ONLY)
    reading.destroy()
    assert on("head", "systemctl is-active nfs-server").strip() == "active"
    assert HUB in on("head", "exportfs -v", root=True)
    other.destroy()
    assert on("head", "systemctl is-active nfs-server; true").strip() == "inactive"


@pytest.fixture
def on_another_disk(reading: Stack) -> Iterator[None]:
    """Make the model's folder a mount inside the hub, as if on a second disk."""
    reading.destroy()
    there = "/home/spark/another-disk"
    on("head", f"mv {MODEL} {there} && mkdir {MODEL} && mount --bind {there} {MODEL}", root=True)
    yield
    reading.destroy()
    on("head", f"umount {MODEL} && rmdir {MODEL} && mv {there} {MODEL}", root=True)


def test_a_model_that_is_mounted_inside_the_hub_is_no_empty_folder_for_the_worker(
    reading: Stack, on_another_disk
) -> None:
    """Without crossmnt, a mount inside an export looks like an empty folder to the client."""
    reading.up(nfs, *BEFORE, *ONLY)
    assert verified(reading) == {"head": "local", "worker": "nfs"}


EXPORTER = """docker run --detach --name their-exporter --privileged --network host --volume /:/host \\
  --entrypoint chroot $(docker images --quiet --no-trunc | head -1) /host sh -ec '
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
exportfs -i -o ro,root_squash,fsid=0 192.168.100.2:%s
rpc.nfsd --no-nfs-version 3 4
exec rpc.mountd --foreground --no-nfs-version 3'"""
"""The kernel's NFS server, started by a container in the host's network instead of a service of the node."""


@pytest.fixture
def their_exporter(reading: Stack) -> Iterator[Callable[[str], None]]:
    """A function that runs the owner's own exporter of a folder, in a container."""
    reading.destroy()
    end = "docker rm -f their-exporter; rpc.nfsd 0; exportfs -ua"

    def export(folder: str) -> None:
        on("head", f"{end}; mkdir -p {folder}; {EXPORTER % folder}", root=True)
        on("head", "timeout 30 sh -c 'until ss -ltn | grep -q :2049; do sleep 1; done'")

    yield export
    reading.destroy()
    on("head", end, root=True)


def test_an_exporter_in_a_container_is_refused_by_name_or_used_and_left_alone(
    reading: Stack, their_exporter: Callable[[str], None]
) -> None:
    """The recipe's own exporter is such a container."""
    their_exporter("/srv/films")
    done = reading.up(nfs, *BEFORE, *ONLY, check=False)
    assert done.code != 0
    assert "Port 2049 of the head is held by their-exporter (" in words_of(done.text)
    their_exporter(HUB.removesuffix("/hub"))
    reading.up(nfs, *BEFORE, *ONLY)
    assert verified(reading) == {"head": "local", "worker": "nfs"}
    reading.destroy()
    assert on("head", "docker ps --quiet --filter name=their-exporter") != ""
    assert on("head", f"ls {EXPORTS} 2>/dev/null; true") == ""
    assert ":2049" in on("head", "ss -ltn")


@pytest.fixture
def somebody_elses(reading: Stack) -> Iterator[None]:
    """The owner's own NFS server, with an export of its own."""
    on("head", "mkdir -p /srv/photos && echo '/srv/photos 10.0.0.0/8(ro)' >>/etc/exports", root=True)
    on("head", "systemctl start nfs-server && exportfs -ra", root=True)
    reading.up(nfs, *BEFORE)
    yield
    on("head", "sed -i '/photos\\|huggingface/d' /etc/exports && exportfs -ra && systemctl stop nfs-server", root=True)
    reading.destroy()


def test_a_server_that_exports_something_else_is_refused_by_name_and_left_alone(reading: Stack, somebody_elses) -> None:
    """A server that we did not start may not be changed."""
    done = reading.up(nfs, *ONLY, check=False)
    shown = words_of(done.text)
    assert done.code != 0 and "exports /srv/photos and not" in shown and "is not ours to change" in shown
    assert on("head", f"ls {EXPORTS} 2>&1; exportfs -v", root=True).count("/srv/photos") == 1


def test_an_export_of_the_tree_that_lives_already_is_used_and_left_at_destroy(reading: Stack, somebody_elses) -> None:
    """An exporter of the same tree is not treated as foreign."""
    on("head", f"echo '{HUB} 192.168.100.2(ro,root_squash)' >>/etc/exports && exportfs -ra", root=True)
    shown = words_of(reading.up(nfs, *ONLY).text)
    assert "is exported already, not by us: used as it is" in shown
    reading.destroy()
    assert HUB in on("head", "exportfs -v", root=True)
