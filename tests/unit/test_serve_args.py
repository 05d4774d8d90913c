"""The whole command and environment of every rank, as the two systems we replace start theirs.

What the engine makes of them is not decided here: vLLM's own parser is no dependency of the tests.
"""

from typing import Any

import pytest

from components.serve_args import (
    RankSpec,
    at_start,
    node_env,
    rank_env,
    serve_argv,
    shared_env,
    spec_hash,
    start_inputs,
)
from tests.unit.recipe import (
    BOTH_RANKS,
    DSPARK_HEAD,
    DSPARK_WORKER,
    FOUND_AT_START,
    TEXT_HEAD,
    TEXT_WORKER,
    VISION_HEAD,
    VISION_WORKER,
)
from tests.unit.stacks import REVISION, cluster, node


@pytest.mark.parametrize(
    ("profile", "rank", "argv"),
    [
        ("0731", 0, TEXT_HEAD),
        ("0731", 1, TEXT_WORKER),
        ("dspark", 0, DSPARK_HEAD),
        ("dspark", 1, DSPARK_WORKER),
        ("vision-exp", 0, VISION_HEAD),
        ("vision-exp", 1, VISION_WORKER),
    ],
)
def test_a_rank_is_started_with_this_command(profile: str, rank: int, argv: list[str]):
    assert serve_argv(cluster(profile), rank) == argv


@pytest.mark.parametrize("profile", ["0731", "dspark", "vision-exp"])
def test_a_rank_gets_this_environment(profile: str):
    stack = cluster(profile)
    assert rank_env(stack, 0) == {**BOTH_RANKS, "VLLM_HOST_IP": "198.51.100.1"}
    assert rank_env(stack, 1) == {**BOTH_RANKS, "VLLM_HOST_IP": "198.51.100.2"}


def flag(stack: Any, name: str, rank: int = 0) -> str:
    """The word after a flag, which must be there once."""
    argv = serve_argv(stack, rank)
    assert argv.count(name) == 1, f"{name} is there {argv.count(name)} times"
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize(
    ("seqs", "k", "size"),
    [(6, 3, "24"), (6, 5, "40"), (6, 6, "48"), (4, 6, "32"), (1, 3, "8"), (2, 3, "8"), (256, 6, "1792")],
)
def test_the_capture_size_covers_a_full_step_in_multiples_of_eight(seqs: int, k: int, size: str):
    stack = cluster(
        "dspark" if k in (3, 5) else "vision-exp", {"engine": {"max_num_seqs": seqs, "num_speculative_tokens": k}}
    )
    assert flag(stack, "--max-cudagraph-capture-size") == size


def test_a_capture_size_of_the_stack_file_is_taken_as_it_is():
    assert flag(cluster(change={"engine": {"max_cudagraph_capture_size": 42}}), "--max-cudagraph-capture-size") == "42"


@pytest.mark.parametrize(
    ("default", "kwargs"),
    [
        ("off", '{"thinking":false}'),
        (False, '{"thinking":false}'),
        ("low", '{"thinking":true,"reasoning_effort":"low"}'),
        ("high", '{"thinking":true,"reasoning_effort":"high"}'),
        ("max", '{"thinking":true,"reasoning_effort":"max"}'),
    ],
)
def test_the_default_of_thinking_is_what_the_chat_template_reads(default: object, kwargs: str):
    stack = cluster(change={"engine": {"default_thinking": default}})
    assert flag(stack, "--default-chat-template-kwargs") == kwargs


def test_a_pinned_kv_pool_stands_beside_the_utilization_that_admits_it():
    argv = serve_argv(cluster(change={"engine": {"kv_cache_memory_bytes": 18_253_611_008}}), 0)
    place = argv.index("--gpu-memory-utilization")
    assert argv[place : place + 4] == [
        *("--gpu-memory-utilization", "0.835"),
        *("--kv-cache-memory-bytes", "18253611008"),
    ]


def test_a_checkpoint_without_a_vision_encoder_gets_no_image_limit():
    assert "--limit-mm-per-prompt" not in serve_argv(cluster("0731"), 0)
    two = cluster("vision-exp", {"engine": {"limit_mm_per_prompt": {"image": 2}}})
    assert flag(two, "--limit-mm-per-prompt") == '{"image":2}'


def test_all_served_names_follow_one_flag():
    argv = serve_argv(cluster(change={"engine": {"served_model_name": ["flash", "ds/v4"]}}), 0)
    place = argv.index("--served-model-name")
    assert argv[place : place + 4] == ["--served-model-name", "flash", "ds/v4", "--host"]


@pytest.mark.parametrize("rank", [0, 1])
def test_further_arguments_come_last_on_every_rank_word_for_word(rank: int):
    extra = ["--enable-log-requests", "--hf-overrides", '{"a": "b c"}']
    argv = serve_argv(cluster(change={"engine": {"extra_args": extra}}), rank)
    assert argv[-3:] == extra


def test_only_the_rank_and_headless_differ_between_the_commands_of_a_pair():
    head, worker = (serve_argv(cluster(), rank) for rank in (0, 1))
    assert [pair for pair in zip(head, worker, strict=False) if pair[0] != pair[1]] == [("0", "1")]
    assert worker[len(head) :] == ["--headless"]


@pytest.mark.parametrize("gid_index", ["resolve", "pin", "unset", 3])
def test_only_variables_of_the_fabric_may_differ_between_the_ranks(gid_index: object):
    own = {**node(0, ifname="enp1s0f0np0", hca="rocep1s0f0"), "fabric": {"gid_index": gid_index}}
    stack = cluster(change=own)
    head, worker = rank_env(stack, 0), rank_env(stack, 1)
    differing = {name for name in {*head, *worker} if head.get(name) != worker.get(name)}
    assert differing <= {"VLLM_HOST_IP", *FOUND_AT_START}


@pytest.mark.parametrize(
    ("gid_index", "index", "later"),
    [
        ("resolve", None, FOUND_AT_START),
        ("pin", None, FOUND_AT_START),
        ("unset", None, FOUND_AT_START[:-1]),
        (0, "0", FOUND_AT_START[:-1]),
        (3, "3", FOUND_AT_START[:-1]),
    ],
)
def test_the_gid_index_is_in_the_environment_only_where_the_stack_file_gives_it(
    gid_index: object, index: str | None, later: list[str]
):
    stack = cluster(change={"fabric": {"gid_index": gid_index}})
    for rank in (0, 1):
        assert rank_env(stack, rank).get("NCCL_IB_GID_INDEX") == index
        assert at_start(stack, rank) == later
        assert start_inputs(stack, rank)["gid_index"] == gid_index


def test_a_named_interface_is_set_for_nccl_torch_and_gloo_alike_and_on_its_own_node_alone():
    stack = cluster(change=node(1, ifname="enP2p1s0f0np0", hca="=rocep1s0f0,roceP2p1s0f0"))
    assert node_env(stack, 1) == {
        "VLLM_HOST_IP": "198.51.100.2",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
        "NCCL_SOCKET_IFNAME": "enP2p1s0f0np0",
        "TP_SOCKET_IFNAME": "enP2p1s0f0np0",
        "GLOO_SOCKET_IFNAME": "enP2p1s0f0np0",
    }
    assert at_start(stack, 1) == ["NCCL_IB_GID_INDEX"]
    assert node_env(stack, 0) == {"VLLM_HOST_IP": "198.51.100.1"}


def test_nccl_variables_of_the_stack_file_reach_every_rank_as_text():
    stack = cluster(change={"fabric": {"nccl": {"NCCL_GIN_ENABLE": 0, "NCCL_DEBUG": "INFO"}}})
    for rank in (0, 1):
        env = rank_env(stack, rank)
        assert (env["NCCL_GIN_ENABLE"], env["NCCL_DEBUG"]) == ("0", "INFO")


def test_further_variables_of_the_engine_reach_every_rank_as_text():
    stack = cluster(change={"engine": {"extra_env": {"VLLM_LOGGING_LEVEL": "DEBUG", "OMP_NUM_THREADS": 4, "X": 0.5}}})
    assert {name: shared_env(stack)[name] for name in ("VLLM_LOGGING_LEVEL", "OMP_NUM_THREADS", "X")} == {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "OMP_NUM_THREADS": "4",
        "X": "0.5",
    }


@pytest.mark.parametrize("gid_index", ["resolve", "pin", "unset", 3])
def test_no_variable_is_ever_empty(gid_index: object):
    stack = cluster(change={"fabric": {"gid_index": gid_index}})
    assert [name for rank in (0, 1) for name, value in rank_env(stack, rank).items() if not value] == []


def test_a_ranks_start_file_says_whom_it_meets_and_what_it_must_find():
    assert start_inputs(cluster("dspark", node(1, hca="rocep1s0f1")), 1) == {
        "rank": 1,
        "fabric_ip": "198.51.100.2",
        "peer_ips": ["198.51.100.1"],
        "hca": "rocep1s0f1",
        "ifname": None,
        "gid_index": "resolve",
        "repo": "deepseek-ai/DeepSeek-V4-Flash-DSpark",
        "revision": REVISION,
        "shards": 48,
        "encoding_file": "encoding/encoding_dsv4.py",
        "encoding_target": "/usr/local/lib/python3.12/dist-packages/vllm/tokenizers/deepseek_v4_encoding.py",
    }


SPEC = RankSpec("image@sha256:1", ["vllm"], {"A": "1"}, {"rank": 0}, {"rank.py": "text"})


@pytest.mark.parametrize(
    "other",
    [
        RankSpec("image@sha256:2", ["vllm"], {"A": "1"}, {"rank": 0}, {"rank.py": "text"}),
        RankSpec("image@sha256:1", ["vllm", "x"], {"A": "1"}, {"rank": 0}, {"rank.py": "text"}),
        RankSpec("image@sha256:1", ["vllm"], {"A": "2"}, {"rank": 0}, {"rank.py": "text"}),
        RankSpec("image@sha256:1", ["vllm"], {"A": "1"}, {"rank": 1}, {"rank.py": "text"}),
        RankSpec("image@sha256:1", ["vllm"], {"A": "1"}, {"rank": 0}, {"rank.py": "other"}),
        RankSpec("image@sha256:1", ["vllm"], {"A": "1"}, {"rank": 0}, {"rank.py": "text"}, "/raid/hf"),
    ],
    ids=["image", "argv", "env", "start", "scripts", "hf_cache"],
)
def test_anything_a_rank_starts_from_changes_the_specs_name(other: RankSpec):
    assert spec_hash([SPEC, SPEC]) != spec_hash([SPEC, other])


def test_the_same_start_has_the_same_name_whatever_the_order_of_its_parts():
    one = RankSpec("i", ["vllm"], {"A": "1", "B": "2"}, {}, {})
    other = RankSpec("i", ["vllm"], {"B": "2", "A": "1"}, {}, {})
    assert spec_hash([one]) == spec_hash([other])
