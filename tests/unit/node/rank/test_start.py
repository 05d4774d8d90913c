"""Process 1 of a rank: the shipped rank.start over a node's tables and a snapshot, up to the engine that it becomes."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gid import sysfs
from rank import start
from tests.unit.node.node_tree import (
    HCA,
    HEAD,
    LOCAL,
    NETDEV,
    T_HEAD,
    T_HOLE,
    T_NOIP,
    TWIN,
    Hca,
    Rows,
    both,
    gid_of,
    pair,
)
from tests.unit.node.rank.container import Container
from tests.unit.node.rank.tokenizers import handed_on
from tests.unit.node.snapshots import ENCODER, REPO, names

KEY = "sk-0123456789"
TWIN_ROWS: Rows = {**LOCAL, **both(2, gid_of("203.0.113.1"))}
FABRIC = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_GID_INDEX")


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def fabric(env: dict[str, str]) -> dict[str, str]:
    return {name: env[name] for name in FABRIC if name in env}


def test_the_rank_becomes_the_engine_with_its_command_and_exit_code(container: Container):
    container.apart = True
    done = container.run()
    assert done.returncode == 7
    assert container.engine.calls("engine") == [["serve", "owner/name", "--port", "8888"]]
    assert done.stdout.splitlines() == [
        "spark: rank 0 starts",
        f"spark: fabric {HCA} on {NETDEV}, GID index 3",
        f"spark: checkpoint {REPO} at 86f746b3: all 3 shards are whole",
        f"spark: prompt encoder of the snapshot is {container.encoder}",
        f"spark: reasoning effort in {container.efforts}: applied",
        "spark: starting the engine: engine serve owner/name",
        "the engine runs",
    ]


def test_the_fabric_is_set_from_this_nodes_own_tables(container: Container):
    container.hcas = pair(T_HEAD, TWIN_ROWS, "203.0.113.1/24")
    assert fabric(container.started()) == {
        "NCCL_IB_HCA": f"={HCA},{TWIN}",
        "NCCL_SOCKET_IFNAME": NETDEV,
        "TP_SOCKET_IFNAME": NETDEV,
        "GLOO_SOCKET_IFNAME": NETDEV,
        "NCCL_IB_GID_INDEX": "3",
    }


def test_an_index_that_drifted_is_resolved_again_at_the_next_start(container: Container):
    """Slot 3 became a hole, the row is at 4 now."""
    before = container.started()
    container.hcas = {HCA: Hca(T_HOLE)}
    after = container.started()
    assert (before["NCCL_IB_GID_INDEX"], after["NCCL_IB_GID_INDEX"]) == ("3", "4")


def test_interface_names_that_the_image_bakes_in_are_overridden(container: Container):
    baked = dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "enP7s7")
    env = container.started(**baked)
    assert [env[name] for name in baked] == [NETDEV] * 3


def test_an_interface_of_the_stack_file_is_taken_for_all_three(container: Container):
    container.start["ifname"] = "enp1s0f1np1.100"
    env = container.started()
    assert {env[name] for name in FABRIC[1:4]} == {"enp1s0f1np1.100"}


def test_a_selector_of_the_stack_file_is_handed_on_as_it_is(container: Container):
    container.hcas = pair(T_HEAD, TWIN_ROWS, "203.0.113.1/24")
    container.start["hca"] = "=rocep1s0f1:1"
    done = container.run()
    assert f"spark: note: {TWIN} port 1, the other half of the QSFP port, could be used too" in done.stdout
    assert "NCCL_IB_HCA==rocep1s0f1:1\0" in (container.folder / "engine.env").read_text()


def test_empty_nccl_variables_are_left_out_and_set_ones_kept(container: Container):
    """An empty one hides /etc/nccl.conf."""
    done = container.run(NCCL_IB_MERGE_NICS="", NCCL_GIN_ENABLE="0", OTHER="")
    assert "spark: NCCL_IB_MERGE_NICS is empty, which would hide /etc/nccl.conf: left out" in done.stdout.splitlines()
    text = (container.folder / "engine.env").read_text()
    assert "NCCL_IB_MERGE_NICS" not in text and "NCCL_GIN_ENABLE=0\0" in text and "OTHER=\0" in text


@pytest.mark.parametrize("inherited", ["", "5"])
def test_unset_leaves_the_index_to_nccl_whatever_the_image_says(inherited: str, container: Container):
    container.start["gid_index"] = "unset"
    env = container.started(NCCL_IB_GID_INDEX=inherited)
    assert "NCCL_IB_GID_INDEX" not in env


def test_unset_says_so_and_still_proves_a_usable_row(container: Container):
    container.start["gid_index"] = "unset"
    assert f"spark: fabric {HCA} on {NETDEV}, GID index left to NCCL" in container.run().stdout
    container.hcas = {HCA: Hca(T_NOIP)}
    (container.folder / "engine.env").unlink()
    assert "no GID row that NCCL can use" in container.refused()[1]


def test_a_pinned_index_is_kept_while_it_is_usable(container: Container):
    container.start["gid_index"] = "pin"
    assert container.started(NCCL_IB_GID_INDEX="3")["NCCL_IB_GID_INDEX"] == "3"


def test_a_pinned_index_that_drifted_is_refused_with_the_table(container: Container):
    """Another one would be a change that no preview showed."""
    container.start["gid_index"] = "pin"
    container.hcas = {HCA: Hca(T_HOLE)}
    lines = container.refused(NCCL_IB_GID_INDEX="3")
    assert lines[1] == f"spark: error: gid_index 3 is not usable on every HCA (usable: {HCA} port 1: 4)"
    assert ["spark:", "4", HEAD, "RoCE", "v2", NETDEV, "usable"] in [line.split() for line in lines]


def test_a_forced_number_must_be_usable_too(container: Container):
    container.start["gid_index"] = 1
    lines = container.refused()
    assert "gid_index 1 is not usable" in lines[1]


@pytest.mark.parametrize(
    ("hcas", "words"),
    [
        ({HCA: Hca(T_HEAD, addresses=[])}, f"fabric address {HEAD} is on no interface of this node"),
        ({HCA: Hca(T_HEAD, state="1: DOWN")}, "none can be opened"),
        ({HCA: Hca(T_NOIP)}, "no GID row that NCCL can use"),
    ],
    ids=["no-address", "cable-out", "no-row"],
)
def test_a_fabric_that_cannot_be_used_ends_the_start_with_the_reason(
    hcas: dict[str, Hca], words: str, container: Container
):
    container.hcas = hcas
    lines = container.refused()
    assert lines[1].startswith("spark: error: ") and words in lines[1]


def test_interfaces_that_the_kernel_does_not_list_end_the_start_in_words(
    container: Container, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def unread() -> None:
        raise OSError(1, "netlink refused to list the addresses")

    monkeypatch.setattr(sysfs, "read_table", unread)
    with pytest.raises(SystemExit) as ended:
        start.set_fabric(container.start, {})
    assert ended.value.code == 1
    assert capsys.readouterr().out == (
        "spark: error: the interfaces of this node cannot be read: [Errno 1] netlink refused to list the addresses\n"
    )


def test_a_missing_shard_is_named_and_ends_the_start_before_the_engine(container: Container):
    (container.snapshot / names(3)[1]).unlink()
    lines = container.refused()
    assert lines[-1] == (
        f"spark: error: the checkpoint is not whole: {names(3)[1]} is missing: pulumi up fetches what is missing"
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


def test_another_revision_than_the_one_that_is_here_is_not_whole(container: Container):
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


def test_low_no_longer_thinks_like_high_and_a_second_start_says_that_it_is_mended(container: Container):
    container.started()
    assert (handed_on(container.efforts, "low"), handed_on(container.efforts, "high")) == (
        ("thinking", None),
        ("thinking", "high"),
    )
    done = container.run()
    assert f"spark: reasoning effort in {container.efforts}: skipped, it is mended already" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("break_it", "found"),
    [
        (lambda file: file.write_text("EFFORTS = {}\n"), 'looked for elif reasoning_effort in ("max", "xhigh"): / '),
        (lambda file: file.unlink(), "No such file or directory"),
        (lambda file: file.write_bytes(b"\xff"), "can't decode"),
    ],
    ids=["moved", "missing", "no-text"],
)
def test_an_image_that_maps_efforts_in_another_way_ends_the_start_in_words(
    break_it: Callable[[Path], object], found: str, container: Container
):
    break_it(container.efforts)
    lines = container.refused()
    assert lines[-1].startswith(f"spark: error: the reasoning effort in {container.efforts} cannot be mended: ")
    assert found in lines[-1]
    assert lines[-1].endswith(": use the profile's image, this edit is made for it")


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
