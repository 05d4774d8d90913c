"""The whole command of every rank, as the two systems we replace start theirs.

What the engine makes of it is not decided here: vLLM's own parser is no dependency of the tests.
"""

from typing import Any

import pytest

from components.rank.argv import serve_argv
from tests.unit.recipe import DSPARK_HEAD, DSPARK_WORKER, TEXT_HEAD, TEXT_WORKER, VISION_HEAD, VISION_WORKER
from tests.unit.stacks import cluster


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


def flag(stack: Any, name: str, rank: int = 0) -> str:
    """The argument after a flag, which must be there once."""
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


def test_a_capture_size_in_the_stack_file_is_used_as_it_is():
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


def test_a_pinned_kv_pool_comes_after_the_utilization_that_admits_it():
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
