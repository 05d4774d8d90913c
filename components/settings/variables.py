"""Environment variables that a stack file may set: what a value is, and which names have a setting of their own."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from components.settings.base import short

OWN_SETTING = {
    "NCCL_IB_HCA": "nodes[].hca",
    "NCCL_SOCKET_IFNAME": "nodes[].ifname, or nodes[].socket_ifnames.nccl",
    "NCCL_IB_GID_INDEX": "fabric.gid_index",
    "VLLM_HOST_IP": "nodes[].fabric_ip",
    "TP_SOCKET_IFNAME": "nodes[].ifname, or nodes[].socket_ifnames.tp",
    "GLOO_SOCKET_IFNAME": "nodes[].ifname, or nodes[].socket_ifnames.gloo",
}
"""Variables that differ between the nodes, so that the program sets them."""
OFFLINE = "a rank reads the checkpoint that was verified on its node, and never a hub"
FIXED = {
    "HF_HOME": "the node's hub cache is mounted there: use nodes[].hf_cache",
    "HF_HUB_CACHE": "the node's hub cache is mounted in HF_HOME: use nodes[].hf_cache",
    "HF_HUB_OFFLINE": OFFLINE,
    "TRANSFORMERS_OFFLINE": OFFLINE,
}
"""Variables that the program relies on, and why."""


def text_or_number(value: object) -> object:
    if value is not None and not isinstance(value, (str, int, float)):
        raise ValueError(f"must be text, a number or null, found {short(value)}")
    return value


Scalar = Annotated[str | int | float | None, BeforeValidator(text_or_number)]
"""The value of a variable; null takes out one that the program or the profile sets."""


def named(pattern: str, other_name: str) -> AfterValidator:
    """Refuses a name that does not match, saying `other_name` of it, one that the program sets, and an empty value."""

    def check(variables: dict[str, Scalar]) -> dict[str, Scalar]:
        for name, value in variables.items():
            if not re.fullmatch(pattern, name):
                raise ValueError(f"{name!r} {other_name}")
            if name in OWN_SETTING:
                raise ValueError(f"{name} differs between the nodes, so the program sets it: use {OWN_SETTING[name]}")
            if name in FIXED:
                raise ValueError(f"{name}: {FIXED[name]}")
            if value == "":
                hides = ", which hides /etc/nccl.conf" if name.startswith("NCCL_") else ""
                raise ValueError(f"{name} is empty{hides}: write null to unset it")
        return variables

    return AfterValidator(check)


Variables = Annotated[
    dict[str, Scalar],
    named(r"[A-Za-z_][A-Za-z0-9_]*", "is not a name for an environment variable: use letters, digits and _"),
]
NcclVariables = Annotated[
    dict[str, Scalar],
    named(r"NCCL_[A-Z0-9_]+", "is not an NCCL variable: other variables go into engine.extra_env"),
]
