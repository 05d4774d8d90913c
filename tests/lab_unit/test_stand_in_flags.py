"""The stand-in's command line with the recipe's flags."""

import pytest

from lab.runtime.vllm import config, flags
from tests.lab_unit.stand_in_machine import RECIPE


def parse(*more: str):
    return flags.parse(["serve", "org/model", *RECIPE, *more])


def refusal(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    with pytest.raises(SystemExit) as end:
        parse(*more)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_the_recipe_is_taken_and_means_what_it_says():
    derived = config.engine_config(parse("--node-rank", "1", "--headless"))
    assert (derived.num_speculative_tokens, derived.max_num_seqs, derived.max_model_len) == (3, 6, 1048576)
    assert derived.max_num_scheduled_tokens == 8180, "the number in the howtospark page's warning"
    assert derived.capture_sizes == [1, 2, 4, 8, 16, 24]
    assert derived.chat_template_kwargs == {"thinking": False}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--frobnicate", "1"], "vllm: error: unrecognized arguments: --frobnicate 1"),
        (["--max-num-seq", "2", "--max-num-se", "3", "--max", "3"], "error: ambiguous option: --max"),
        (["--max-num-seqs", "six"], "vllm serve: error: argument --max-num-seqs: invalid int value: 'six'"),
        (["--kv-cache-dtype", "fp3"], "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp3'"),
        (
            ["--speculative-config", "{method:dspark}"],
            "argument --speculative-config/-sc: Value {method:dspark} cannot be",
        ),
        (["--reasoning-config", '{"end":"x"}'], "argument --reasoning-config"),
        (["--moe-backend", "b12x"], "argument --moe-backend"),
    ],
)
def test_a_flag_that_vllm_does_not_take_ends_with_usage_and_exit_code_2(capsys, more, words):
    assert words in refusal(capsys, *more)


@pytest.mark.parametrize(
    ("more", "kind", "words"),
    [
        (["--speculative-config", '{"method":"sparkle","num_speculative_tokens":3}'], ValueError, "'dspark'"),
        (["--speculative-config", '{"method":"dspark","tokens":3}'], ValueError, "Unexpected keyword argument"),
        (["--max-num-partial-prefills", "2"], NotImplementedError, "Concurrent Partial Prefill"),
        (["--tool-call-parser", "nobody"], KeyError, "invalid tool call parser: nobody"),
        (["--node-rank", "2"], AssertionError, "node_rank"),
        (["--gpu-memory-utilization", "1.5"], ValueError, "gpu_memory_utilization"),
    ],
)
def test_what_the_parser_lets_through_is_refused_by_the_engine(more, kind, words):
    options = parse(*more)
    with pytest.raises(kind) as refused:
        config.engine_config(options)
    assert words in str(refused.value)


def test_underscores_prefixes_and_human_numbers_are_understood():
    options = flags.parse(
        ["serve", "m", "--max_model_len=1M", "--gpu-memory-util", "0.8", "--kv-cache-memory-bytes", "2g"]
    )
    assert (options.max_model_len, options.gpu_memory_utilization) == (1048576, 0.8)
    assert options.kv_cache_memory_bytes == 2_000_000_000


def test_the_default_arguments_line_holds_only_what_was_given():
    given = flags.parse(["serve", "m", "--api-key", "k1", "k2", "--port", "8000"]).non_default
    assert given == {"model_tag": "m", "api_key": ["k1", "k2"], "model": "m"}


def test_an_unrounded_capture_size_is_cut_as_in_the_field_reports():
    assert config.capture_sizes(42)[-1] == 40
