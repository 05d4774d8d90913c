"""The KV pool's arithmetic on a pretended GB10, calibrated so that the recipes' settings give the recipes' numbers.

Three measured points fix it: k = 3 at utilization 0.85 has 17.21 GiB and 2,555,830 tokens a rank; the same with
16384 batched tokens has 1,570,685 tokens; Vision-Exp with k = 6 at 0.835 has 17.04 GiB and 2,331,430 tokens.
Between them it is linear: a guess, but good enough to see in which direction a setting moves the numbers.
"""

from dataclasses import dataclass

GIB = 1 << 30
TOTAL_GIB = 121.69
"""Memory that CUDA reports on a GB10."""
FREE_GIB = 117.3
"""How much of it is free on an otherwise idle node."""


@dataclass(frozen=True)
class Footprint:
    """The memory of one rank outside the KV pool."""

    weights_gib: float
    fixed_gib: float
    gib_per_batched_token: float

    def gib(self, batched_tokens: int) -> float:
        return self.weights_gib + self.fixed_gib + self.gib_per_batched_token * batched_tokens


TEXT = Footprint(weights_gib=78.41, fixed_gib=1.183178, gib_per_batched_token=6.633522 / 8192)
VISION = Footprint(weights_gib=78.93, fixed_gib=1.183178, gib_per_batched_token=4.457922 / 8192)

BYTES_PER_TOKEN = 7230.0886
"""KV bytes for each token on each rank, with k = 3."""
BYTES_PER_DRAFT = 205.906
"""KV bytes more for each draft token above 3."""


def footprint(vision: bool) -> Footprint:
    return VISION if vision else TEXT


def bytes_per_token(num_speculative_tokens: int) -> float:
    return BYTES_PER_TOKEN + BYTES_PER_DRAFT * (num_speculative_tokens - 3)


def requested_gib(utilization: float) -> float:
    return utilization * TOTAL_GIB


def available_bytes(utilization: float, batched_tokens: int, vision: bool) -> int:
    """The KV bytes of a rank; negative if weights and activations alone are too much."""
    return int((requested_gib(utilization) - footprint(vision).gib(batched_tokens)) * GIB)


def pool_tokens(kv_bytes: int, num_speculative_tokens: int) -> int:
    return int(kv_bytes / bytes_per_token(num_speculative_tokens))


def admission(utilization: float) -> None:
    """Raise ValueError with vLLM's message if the GPU has less free memory than the engine requests."""
    need = requested_gib(utilization)
    if need > FREE_GIB:
        raise ValueError(
            f"Free memory on device cuda:0 ({FREE_GIB:.2f}/{TOTAL_GIB} GiB) on startup is less than desired GPU memory "
            f"utilization ({utilization}, {need:.2f} GiB). Decrease GPU memory utilization or reduce GPU memory used "
            "by other processes."
        )


def pool_is_enough(kv_bytes: int, max_model_len: int, num_speculative_tokens: int) -> None:
    """Raise ValueError with vLLM's message if the pool cannot hold one request of the longest context."""
    if kv_bytes <= 0:
        raise ValueError(
            "No available memory for the cache blocks. "
            "Try increasing `gpu_memory_utilization` when initializing the engine."
        )
    needed = max_model_len * bytes_per_token(num_speculative_tokens)
    if needed > kv_bytes:
        fits = pool_tokens(kv_bytes, num_speculative_tokens)
        raise ValueError(
            f"To serve at least one request with the model's max seq len ({max_model_len}), ({needed / GIB:.2f} GiB "
            f"KV cache is needed, which is larger than the available KV cache memory ({kv_bytes / GIB:.2f} GiB). "
            f"Based on the available memory, the estimated maximum model length is {fits}. Try increasing "
            "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
            "`max_model_len` when initializing the engine."
        )
