"""checkpoint.mode: nfs as the program declares it: one copy, one export, the mount in the worker's own container."""

from typing import Any

import pytest

from tests.program.pair import healthy
from tests.program.runner import HUB, Engine, Runner


def nfs(cluster: dict[str, Any]) -> None:
    cluster["checkpoint"]["mode"] = "nfs"


@pytest.fixture(scope="module")
def reading(run_program: Runner) -> Engine:
    return run_program("dev", nfs, documents=[{**item, "nfs": {"refused": None}} for item in healthy("x86_64")])


def hub_mount(engine: Engine, rank: int) -> dict[str, Any]:
    [mount] = [item for item in engine.ranks[rank].inputs["mounts"] if item["target"] == "/cache/huggingface/hub"]
    return dict(mount)


def test_the_worker_keeps_no_copy_and_the_head_exports_its_own_once_it_is_verified(reading: Engine):
    names = {item.name for item in reading.resources}
    assert {"head-checkpoint-job", "head-checkpoint", "head-nfs-export", "worker-checkpoint"} <= names
    assert "worker-checkpoint-job" not in names
    assert reading.one("head-nfs-export").after == {"head-checkpoint"}
    assert {"head-nfs-export", "worker-image"} <= reading.one("worker-checkpoint").after


def test_the_server_is_looked_after_until_the_rank_that_reads_from_it_is_gone(reading: Engine, dev: Engine):
    """A container whose NFS server is gone cannot be removed, so a destroy removes this step first, the export last."""
    step = reading.one("head-nfs-serves")
    assert {"worker-engine", "head-nfs-export"} <= step.after
    assert '"action":"serve"' in step.inputs["create"] and '"action":"serve"' in step.inputs["delete"]
    assert "head-nfs-serves" not in {item.name for item in dev.resources}


def test_the_outputs_tell_a_copy_from_what_is_read_over_nfs(reading: Engine):
    assert {role: copy["how"] for role, copy in reading.outputs["checkpoint"].items()} == {
        "head": "local",
        "worker": "nfs",
    }


def test_the_workers_hub_is_the_recipes_mount_in_its_own_container(reading: Engine):
    """Docker creates a named volume that is missing again, empty."""
    mount = hub_mount(reading, 1)
    assert mount["type"] == "volume" and "source" not in mount
    # Docker refuses it on a volume without a name; the mount option `ro` stands in for it
    assert "readOnly" not in mount
    options = mount["volumeOptions"]["driverOptions"]
    assert options == {
        "type": "nfs",
        "o": "addr=192.168.100.1,nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600",
        "device": f":{HUB}",
    }
    assert hub_mount(reading, 0) == {
        "type": "bind",
        "source": HUB,
        "target": "/cache/huggingface/hub",
        "readOnly": True,
    }


def test_compiled_kernels_stay_on_each_nodes_own_disk(reading: Engine, dev: Engine):
    """On a read-only mount they could not be written, and shared by two nodes each would overwrite the other's."""
    for rank in (0, 1):
        assert [m for m in reading.ranks[rank].inputs["mounts"] if m["target"] == "/cache/huggingface"] == [
            m for m in dev.ranks[rank].inputs["mounts"] if m["target"] == "/cache/huggingface"
        ]


def test_moving_to_nfs_makes_both_ranks_new(reading: Engine, dev: Engine):
    """The docker provider treats some changed mounts as an update, which it does not apply."""
    assert {rank.labels["spark.spec"] for rank in reading.ranks}.isdisjoint(
        rank.labels["spark.spec"] for rank in dev.ranks
    )


def test_only_the_workers_addresses_are_exported_to(reading: Engine):
    assert '"worker_fabric_ips":["192.168.100.2"]' in reading.one("head-nfs-export").inputs["create"]


def test_a_server_that_does_not_answer_is_restarted_and_verified_and_no_rank_is_touched(run_program: Runner):
    documents = healthy("x86_64")
    documents[1]["nfs"] = {"refused": "Connection refused"}
    engine = run_program("dev", nfs, documents=documents)
    for name in ("head-nfs-export", "worker-checkpoint"):
        [trigger] = engine.one(name).inputs["triggers"]
        assert "the head's NFS server does not answer it (Connection refused)" in trigger
    assert "triggers" not in engine.one("head-checkpoint-job").inputs
