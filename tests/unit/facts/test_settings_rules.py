"""What the preflight says about settings alone: allowed, and known to cost something."""

from typing import Any

import pytest

from tests.unit.facts.judged import judge, one


@pytest.mark.parametrize(
    ("profile", "engine", "says"),
    [
        ("dspark", {"max_num_seqs": 2}, "max_num_seqs: 2 captures smaller graphs (8 tokens), also for a single stream"),
        ("0731", {"max_num_batched_tokens": 16384}, "max_num_batched_tokens: 16384 takes from the KV pool"),
        ("0731", {"num_speculative_tokens": 7}, "num_speculative_tokens: 7 drafts more than the profile's 5"),
        (
            "0731",
            {"host": "203.0.113.7", "allow_unauthenticated_lan": True},
            "host: 203.0.113.7 also opens routes that ask for no key",
        ),
    ],
)
def test_a_change_that_others_have_paid_for_is_a_warning_with_the_price(
    profile: str, engine: dict[str, Any], says: str
):
    revision = {"checkpoint": {"revision": "3c5ed1f0a94b27d86ef1a0b9c2d4e87f5a6b0c13"}} if profile == "dspark" else {}
    assert one(judge(stack={"engine": engine, **revision}, profile=profile), "warning").startswith(f"engine/{says}")


def test_what_is_not_above_or_below_the_profile_costs_nothing():
    engine = {"max_num_seqs": 8, "max_num_batched_tokens": 4096, "default_thinking": "high"}
    assert judge(stack={"engine": engine}, profile="0731") == []
