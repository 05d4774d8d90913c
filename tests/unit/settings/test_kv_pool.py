"""Whether the KV pool that a profile's authors have is what a stack may expect."""

import pytest

from components.settings.kv_pool import expected_kv_tokens
from tests.unit.settings.mistakes import engine
from tests.unit.stacks import cluster


@pytest.mark.parametrize(("profile", "tokens"), [("0731", 2_493_464), ("vision-exp", 2_331_430), ("dspark", 2_555_830)])
def test_a_profile_as_it_is_has_its_authors_pool(profile: str, tokens: int):
    assert expected_kv_tokens(cluster(profile)) == tokens


def test_a_setting_that_does_not_reach_the_pool_changes_nothing():
    assert expected_kv_tokens(cluster(change=engine(default_thinking="high", port=9000))) is not None


@pytest.mark.parametrize(
    "change",
    [
        engine(gpu_memory_utilization=0.8),
        engine(max_num_batched_tokens=16384),
        engine(kv_cache_memory_bytes=1 << 34),
        {"hardware": {"memory_gib": 3.5}},
    ],
)
def test_other_settings_or_other_nodes_have_a_pool_that_nobody_measured(change: dict[str, object]):
    assert expected_kv_tokens(cluster(change=change)) is None
