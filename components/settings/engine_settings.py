"""The engine's settings, under vLLM's own names: one spelling in YAML, Python and on the command line."""

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from components.settings.arguments import SECRET_NAME, complaints
from components.settings.base import Settings, at_field
from components.settings.variables import Variables

MOST_CONTEXT = 1048576
"""Positions of the model's architecture, in tokens (max_position_embeddings of all its checkpoints)."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Values of `host` that bind every address -> the one that reaches them from the node itself."""


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class EngineSettings(Settings):
    """One vLLM engine over all nodes. Everything here reaches every rank alike: differing values break the pair."""

    served_model_name: list[str] = Field(min_length=1)
    """Names that clients may give as `model`; our own requests use the first."""
    host: str = "127.0.0.1"
    """Address that the head's API binds."""
    port: int = Field(default=8888, ge=1, le=65535)
    """TCP port of the head's API."""
    allow_unauthenticated_lan: bool = False
    """true: an API without a key may bind other addresses than loopback."""
    master_port: int = Field(default=25000, ge=1, le=65535)
    """TCP port of the rendezvous on the head's fabric address."""
    tensor_parallel_sizes: list[int] = Field(default=[2], min_length=1)
    """Numbers of nodes with which the profile was tested."""
    kv_cache_dtype: str = "nvfp4_ds_mla"
    """Storage type of the KV cache. nvfp4_ds_mla exists in the pinned image only."""
    block_size: int = Field(default=256, ge=1)
    """Tokens a KV block."""
    max_model_len: int = Field(default=MOST_CONTEXT, ge=1024)
    """Longest context, in tokens; a ceiling, not a reservation."""
    max_num_seqs: int = Field(default=6, ge=1, le=256)
    """Sequences that run at once. Lowering it also shrinks the captured graphs and slows a single stream."""
    max_num_batched_tokens: int = Field(default=8192, ge=256)
    """Tokens in a step. Raising it speeds up long prefill and costs KV pool and decode speed."""
    long_prefill_token_threshold: int | None = Field(default=1024, ge=0)
    """Most tokens of a long prompt in a step; null: no cap, so a lone long prompt takes the whole step."""
    max_cudagraph_capture_size: int | None = Field(default=None, ge=1)
    """Largest batch replayed as a graph, in tokens. Default: max_num_seqs x (num_speculative_tokens + 1), padded."""
    gpu_memory_utilization: float = Field(gt=0, lt=1)
    """Share of the unified memory that the engine may take."""
    kv_cache_memory_bytes: int | None = Field(default=None, gt=0)
    """KV pool of a rank in bytes; wins over gpu_memory_utilization, which stays as the admission check."""
    num_speculative_tokens: int = Field(ge=1)
    """Draft tokens in a step (k). The profile has a rule for it, since it must suit the checkpoint's drafter."""
    draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic"
    """How the drafter samples."""
    default_thinking: Literal["off", "low", "high", "max"] = "low"
    """Reasoning effort for a request that does not name one."""
    limit_mm_per_prompt: dict[Literal["image"], int] | None = None
    """Most images in a prompt, for a checkpoint with a vision encoder."""
    extra_args: list[str] = Field(default=[])
    """Further arguments of `vllm serve`, each a list item of its own, for flags without a setting here."""
    extra_env: Variables = Field(default={})
    """Further environment variables of every rank."""

    @field_validator("default_thinking", mode="before")
    @classmethod
    def off_is_a_word(cls, value: object) -> object:
        # YAML 1.1 reads a bare off as false
        return "off" if value is False else value

    @field_validator("served_model_name")
    @classmethod
    def names_are_usable(cls, value: list[str]) -> list[str]:
        for name in value:
            if not re.fullmatch(r"[\w./:-]+", name) or name.startswith("-"):
                raise ValueError(f"{name!r} cannot be a served model name: use letters, digits and ._/:-")
        return value

    @field_validator("max_model_len")
    @classmethod
    def the_model_has_it(cls, value: int) -> int:
        if value > MOST_CONTEXT:
            raise ValueError(
                f"{value:,} is beyond the {MOST_CONTEXT:,} positions that the model has: use at most those"
            )
        return value

    @field_validator("host")
    @classmethod
    def host_is_one_word(cls, value: str) -> str:
        if not re.fullmatch(r"[0-9A-Za-z.:-]+", value) or value.startswith("-"):
            raise ValueError(f"{value!r} is not an address to bind: give an IP address or a host name")
        return value

    @field_validator("extra_args")
    @classmethod
    def extra_args_add_only(cls, value: list[str]) -> list[str]:
        if problems := complaints(value, list(EngineSettings.model_fields)):
            raise ValueError("; ".join(problems))
        return value

    @field_validator("extra_env")
    @classmethod
    def extra_env_is_harmless(cls, value: Variables) -> Variables:
        for name in value:
            if SECRET_NAME.search(name.upper()):
                raise ValueError(
                    f"{name} looks like a secret, and a container's environment is readable: use a stack secret"
                )
            if name.startswith("NCCL_"):
                raise ValueError(f"{name} belongs in fabric.nccl")
        return value

    @model_validator(mode="after")
    def ports_differ(self) -> Self:
        if self.port == self.master_port:
            raise at_field("port", f"{self.port} is also the rendezvous port: give master_port or port another number")
        return self

    @property
    def binds_loopback(self) -> bool:
        """Whether only the head itself reaches the API."""
        return self.host in LOOPBACK

    @property
    def local_host(self) -> str:
        """The address under which the API answers on the head itself, ready for a URL."""
        return in_url(WILDCARDS.get(self.host, self.host))

    @property
    def local_url(self) -> str:
        return f"http://{self.local_host}:{self.port}"

    @property
    def graph_tokens(self) -> int:
        """Tokens of a full decode step: every sequence with its drafts and one sampled token."""
        return self.max_num_seqs * (self.num_speculative_tokens + 1)

    @property
    def capture_size(self) -> int:
        """--max-cudagraph-capture-size: padded, since vLLM captures multiples of 8 and would cut 42 to 40."""
        return self.max_cudagraph_capture_size or -(-self.graph_tokens // 8) * 8
