"""Process 1 of a rank: what it checks and prepares before it becomes the engine."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.node.node_tree import HCA, NETDEV
from tests.unit.node.rank.container import Container
from tests.unit.node.rank.tokenizers import handed_on
from tests.unit.node.snapshots import ENCODER, REPO, names

KEY = "sk-0123456789"


def test_the_rank_becomes_the_engine_with_its_command_and_exit_code(container: Container):
    container.apart = True
    done = container.run()
    assert done.returncode == 7
    assert container.engine.calls("engine") == [["serve", "owner/name", "--port", "8888"]]
    assert done.stdout.splitlines() == [
        "spark: rank 0 starts",
        f"spark: fabric {HCA} on {NETDEV}, GID index 3",
        f"spark: checkpoint {REPO} at 86f746b3: all 3 shards are complete",
        f"spark: prompt encoder of the snapshot: copied to {container.encoder}",
        f"spark: reasoning effort in {container.efforts}: corrected",
        "spark: starting the engine: engine serve owner/name",
        "the engine runs",
    ]


def test_a_missing_shard_is_named_and_ends_the_start_before_the_engine(container: Container):
    (container.snapshot / names(3)[1]).unlink()
    lines = container.refused()
    assert lines[-1] == (
        f"spark: error: the checkpoint is incomplete: {names(3)[1]} is missing: pulumi up fetches what is missing"
    )


def test_every_shard_that_is_cut_or_dangling_is_named(container: Container):
    first, second, _ = names(3)
    blob = (container.snapshot / first).resolve()
    size = blob.stat().st_size
    os.truncate(blob, size - 1)
    (container.snapshot / second).resolve().unlink()
    lines = container.refused()
    assert (
        f"{first} has {size - 1} bytes instead of {size}; {second} is a link to a file that is not there" in lines[-1]
    )


def test_another_revision_than_the_one_on_disk_is_incomplete(container: Container):
    container.start["revision"] = "b" * 40
    lines = container.refused()
    assert "there is no snapshot" in lines[-1]


def test_the_snapshots_prompt_encoder_is_the_images(container: Container):
    container.started()
    assert container.encoder.read_text() == "PROMPT = 4\n"


def test_a_snapshot_without_its_prompt_encoder_ends_the_start(container: Container):
    (container.snapshot / ENCODER).unlink()
    lines = container.refused()
    assert lines[-1] == f"spark: error: {ENCODER} is missing in the snapshot: pulumi up fetches it"
    assert container.encoder.read_text() == "PROMPT = 3\n"


def test_an_image_without_a_place_for_the_encoder_ends_the_start_in_words(container: Container):
    container.start["encoding_target"] = str(container.folder / "nowhere/encoding.py")
    lines = container.refused()
    assert "nowhere/encoding.py" in lines[-1] and "image.encoding_target" in lines[-1]


def test_low_no_longer_thinks_like_high_and_a_second_start_says_that_it_was_corrected(container: Container):
    container.started()
    assert (handed_on(container.efforts, "low"), handed_on(container.efforts, "high")) == (
        ("thinking", None),
        ("thinking", "high"),
    )
    done = container.run()
    assert f"spark: reasoning effort in {container.efforts}: was corrected before" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("break_it", "cause"),
    [
        (lambda file: file.write_text("EFFORTS = {}\n"), 'looked for elif reasoning_effort in ("max", "xhigh"): / '),
        (lambda file: file.unlink(), "No such file or directory"),
        (lambda file: file.write_bytes(b"\xff"), "can't decode"),
    ],
    ids=["moved", "missing", "no-text"],
)
def test_an_image_that_maps_efforts_in_another_way_ends_the_start_in_words(
    break_it: Callable[[Path], object], cause: str, container: Container
):
    break_it(container.efforts)
    lines = container.refused()
    assert lines[-1].startswith(f"spark: error: the reasoning effort in {container.efforts} cannot be corrected: ")
    assert cause in lines[-1]
    assert lines[-1].endswith(": use the profile's image, for which this edit is made")


def test_the_head_alone_has_the_key_and_nobody_reads_it_in_argv_or_log(container: Container):
    (container.folder / "api_key").write_text(KEY)
    done = container.run()
    assert "spark: the API needs a key" in done.stdout and KEY not in done.stdout
    assert f"VLLM_API_KEY={KEY}\0" in (container.folder / "engine.env").read_text()
    assert KEY not in json.dumps(container.engine.calls("engine"))
    container.start["rank"] = 1
    assert "VLLM_API_KEY" not in container.started()


def test_without_a_key_file_the_engine_gets_no_key(container: Container):
    assert "VLLM_API_KEY" not in container.started()


def test_cuda_is_found_first_and_the_caches_exist(container: Container):
    env = container.started(LD_LIBRARY_PATH="/opt/lib")
    assert env["PATH"] == f"/usr/local/cuda/bin:/usr/local/bin:{container.engine.path}"
    assert env["LD_LIBRARY_PATH"] == "/usr/local/cuda/lib64:/opt/lib"
    made = {path.name for path in (container.folder / "cache").iterdir()}
    assert made == {"hub", "triton-cache", "vllm-cache", "flashinfer", "nccl-fr"}


def test_without_a_library_path_no_empty_part_is_added(container: Container):
    """An empty part is the working folder."""
    assert container.started()["LD_LIBRARY_PATH"] == "/usr/local/cuda/lib64"


def test_an_image_without_the_engine_is_told_by_its_digest(container: Container):
    done = container.run(command="no-such-engine")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == (
        "spark: error: no-such-engine is not in this image: compare its digest with the profile's"
    )
