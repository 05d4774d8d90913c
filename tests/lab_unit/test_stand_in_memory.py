"""The recipes' KV numbers, and the directions in which settings move them."""

import pytest

from lab.runtime.vllm import memory

DSPARK = (0.85, 8192, False, 3)
VISION = (0.835, 8192, True, 6)
LONG_BATCH = (0.85, 16384, False, 3)


def pool(utilization: float, batched: int, vision: bool, k: int) -> tuple[str, int]:
    kv_bytes = memory.available_bytes(utilization, batched, vision)
    return f"{kv_bytes / memory.GIB:.2f}", memory.pool_tokens(kv_bytes, k)


def test_the_seeds_settings_give_the_seeds_numbers():
    assert pool(*DSPARK) == ("17.21", 2_555_830)
    assert pool(*VISION) == ("17.04", 2_331_430)
    assert pool(*LONG_BATCH)[1] == 1_570_685


def test_a_pool_too_small_for_one_request_is_refused_with_the_length_that_fits():
    small = memory.available_bytes(0.75, 8192, False)
    with pytest.raises(
        ValueError, match=r"To serve at least one request .*\(1048576\).*estimated maximum model length is \d+"
    ):
        memory.pool_is_enough(small, 1048576, 3)
    with pytest.raises(ValueError, match="No available memory for the cache blocks"):
        memory.pool_is_enough(memory.available_bytes(0.6, 8192, False), 1048576, 3)
    memory.pool_is_enough(memory.available_bytes(0.85, 8192, False), 1048576, 3)


def test_more_than_is_free_is_refused_at_the_start():
    memory.admission(0.85)
    with pytest.raises(ValueError, match=r"Free memory on device cuda:0 \(117.30/121.69 GiB\).*\(0.99, 120.47 GiB\)"):
        memory.admission(0.99)
