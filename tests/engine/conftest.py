"""Gives the tests here a pair of node-containers whose stack serves the tiny model with a real vLLM (lab/vllm_cpu)."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from lab.hub.tiny import CONTEXT, TINY
from lab.runtime import oci
from lab.runtime.services import registry_address
from lab.vllm_cpu import image
from tests.lab.conftest import guard, stack  # noqa: F401 (fixtures)
from tests.lab.pair import Stack, lab, place, project

PUSH_LIMIT_S = 600


def pushed() -> str:
    """The engine's image as the nodes pull it, after a push to this pair's registry."""
    built, address = image.build(), registry_address(place())
    registry = oci.Registry(address, timeout_s=PUSH_LIMIT_S)
    if not registry.has(image.NAME, built.digest):
        registry.push(built, image.NAME, image.VERSION)
    return f"{address}/{image.NAME}@{built.digest}"


def cluster_of_a_real_engine(cluster: dict[str, Any]) -> None:
    """Change the shipped stack: another image and model, and an engine as small as the model. The rest stays."""
    cluster["image"] = {"reference": pushed(), "encoding_target": image.ENCODER}
    cluster["checkpoint"] |= {"repo": TINY.name, "revision": TINY.revision, "size_gib": 0.01}
    cluster["engine"] = {
        "served_model_name": ["tiny"],
        "kv_cache_dtype": "auto",
        "block_size": 128,
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": 512,
        "long_prefill_token_threshold": 256,
        "gpu_memory_utilization": 0.1,
        "kv_cache_memory_bytes": 64 << 20,
        "extra_args": ["--enforce-eager"],
    }
    cluster["readiness"]["warmup_passes"] = 2


@pytest.fixture(scope="module")
def engine(stack: Stack) -> Stack:  # noqa: F811 (the fixture)
    # a real Gloo binds the first address of the netdev that it is given, and the lab's worker has another one first
    lab("addresses", "worker", "192.168.100.2/24", "--now")
    file = project() / "Pulumi.dev.yaml"
    document = yaml.safe_load(file.read_text())
    cluster_of_a_real_engine(document["config"]["spark-stack:cluster"])
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return stack


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str, float], None]:
    """figure(what, seconds) shows a duration after the tests, for docs/measured.md."""
    return lambda what, seconds: record_property(what, f"{seconds:.0f} s")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for what, value in report.user_properties if report.when == "call" else ():
            terminalreporter.write_line(f"{what}: {value}")
