"""What every node's checkpoint has, be it its own copy or the head's: a step to wait for, and what was verified."""

import json
from typing import Literal, TypedDict

import pulumi

from download.step import Verified
from nfs.proof import Proof


class Verification(TypedDict):
    """What an `up` verified of one node's checkpoint."""

    how: Literal["local", "nfs"]
    """local: a copy of its own, every file by its hash. nfs: the head's, by reading every shard through the mount."""
    bytes: int
    verified_at: str
    """ISO 8601, UTC, by the node's clock."""


class NodeCheckpoint(pulumi.ComponentResource):
    """The checkpoint as one node's rank will read it."""

    ready: pulumi.Resource
    """The step after which a rank may start."""
    verified: pulumi.Output[Verification | None]
    """None in a preview, before the step has run."""
    hub: pulumi.Output[str]
    """What the rank mounts: the path of the node's hub cache, or the device of the head's export."""


def verification(how: Literal["local", "nfs"], stdout: str) -> Verification | None:
    """From what the step printed; None where the state holds nothing yet, or what an earlier release printed."""
    step: Verified | Proof = json.loads(stdout or "{}")
    if not step.get("verified_at"):
        return None
    return {"how": how, "bytes": step["bytes"], "verified_at": step["verified_at"]}
