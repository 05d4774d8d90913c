"""What the tests read of the checkpoint on the lab's nodes, and an `up` of only its steps."""

import json
from typing import Any

from tests.lab.pair import Done, Stack, on

HUB = "~/.cache/huggingface/hub"
MODEL = f"{HUB}/models--deepseek-ai--DeepSeek-V4-Flash-DSpark"
REVISION = "3c5ed1f0a94b27d86ef1a0b9c2d4e87f5a6b0c13"
SNAPSHOT = f"{MODEL}/snapshots/{REVISION}"
JOB = "~/.local/share/spark-stack/dev/job"
BEFORE = ["--target", "**folder", "--target", "**image**", "--target", "**Node**"]
"""Targets that the checkpoint's steps need."""
ONLY = ["--target", "**checkpoint**"]


def clear(*nodes: str) -> None:
    """Remove the checkpoint, its job, and the last job's status from the nodes."""
    for node in nodes:
        on(node, f"docker rm -f spark-dev-checkpoint; rm -rf {MODEL} {HUB}/.locks {JOB}", check=False)


def status(node: str) -> dict[str, Any]:
    text = on(node, f"cat {JOB}/status.json 2>/dev/null || echo '{{}}'")
    found: dict[str, Any] = json.loads(text)
    return found


def verified(stack: Stack) -> dict[str, str]:
    """How each node's checkpoint was verified, by the stack's outputs, which must give its size and the time."""
    outputs = stack.outputs()["checkpoint"]
    for node, copy in outputs.items():
        assert copy["bytes"] > 30_000_000 and copy["verified_at"].endswith("Z"), node
    return {node: copy["how"] for node, copy in outputs.items()}


def files(node: str) -> int:
    return int(status(node).get("files", [0, 0])[0])


def blobs(node: str) -> dict[str, str]:
    """The inode and mtime of every complete blob, by its name."""
    lines = on(node, f"cd {MODEL}/blobs 2>/dev/null && stat -c '%n %i %Y' *; true").splitlines()
    found = dict(line.split(" ", 1) for line in lines)
    return {name: identity for name, identity in found.items() if "." not in name}


def mib(node: str, folder: str) -> float:
    """The MiB of all files below a folder, following links."""
    sizes = on(node, f"find -L {folder} -type f -printf '%s\\n'").split()
    return sum(map(int, sizes)) / 2**20


def assert_whole(*nodes: str) -> None:
    """Every link leads to a blob whose hash is its name, there is a proper ref, and no file of ours is left over."""
    for node in nodes:
        on(node, f"cd {MODEL}/blobs && ls | grep -E '^.{{64}}$' | sed 's/.*/&  &/' | sha256sum --check --quiet")
        assert on(node, f"find -L {SNAPSHOT} -type f | wc -l").strip() == "56"
        assert len(on(node, f"cat {MODEL}/refs/main")) == 40
        assert on(node, f"find {MODEL} -name '*.incomplete' -o -name '*.spark-part' -o -name '*.damaged'") == ""
        job = on(node, "timeout 60 sh -c 'while docker ps -q --filter label=spark.job | grep -q .; do sleep 1; done'")
        assert job == "", "no job is left"


def up(stack: Stack, change: Any = None, *, check: bool = True) -> Done:
    return stack.up(change, *ONLY, check=check)
