"""Sums are computed, never canned; drafts are accepted at the rate that the howtospark page measured."""

import pytest

from lab.runtime.vllm import answers


@pytest.mark.parametrize(
    ("prompt", "result"),
    [
        ("What is 47 x 89?", "4183"),
        ("What is 46 x 89?", "4094"),
        ("12 * -3", "-36"),
        ("1.5 plus 2", "3.5"),
        ("7 divided by 2?", "3.5"),
        ("First 2 + 2, then 10 minus 4", "6"),
        ("1 / 0", None),
        ("Write 200 words", None),
    ],
)
def test_a_sum_is_computed(prompt, result):
    assert answers.compute(prompt) == result


def test_the_same_prompt_has_the_same_text_and_another_prompt_another():
    text = answers.reply("p", "Explain paging", 40, thinking=False)
    assert text == answers.reply("p", "Explain paging", 40, thinking=False)
    assert text != answers.reply("q", "Explain paging", 40, thinking=False)
    assert (text.tokens, text.finished) == (40, False)


def test_thinking_comes_first_and_may_use_up_all_tokens():
    whole = answers.reply("p", "What is 47 x 89?", 64, thinking=True)
    assert "".join(whole.content) == "4183."
    assert whole.finished
    short = answers.reply("p", "What is 47 x 89?", 4, thinking=True)
    assert (len(short.reasoning), short.content, short.finished) == (4, [], False)


def test_drafts_are_accepted_at_the_measured_rate():
    steps = 3000
    accepted = sum(answers.accepted("Write prose", step, 3) for step in range(steps))
    assert accepted / (3 * steps) == pytest.approx(0.526, abs=0.02)
