"""A node with a hub cache, on which a test runs the checkpoint job in this process."""

import json
import threading
from pathlib import Path
from typing import Any, Literal

from download import job
from download.job import Offer
from download.job_status import Status
from download.tree import JobInputs
from hub.files import gaps
from hub.manifest import unverified
from hub.verified import NAME
from tests.unit.node.snapshots import ENCODER, REPO, REVISION, blob_of, contents

HEAD, WORKER = "127.0.0.1", "127.0.0.2"


class Node:
    """A cache and a job's folder."""

    def __init__(self, folder: Path, fabric_ip: str) -> None:
        self.hub, self.job, self.fabric_ip = folder / "hub", folder / "job", fabric_ip
        self.model = self.hub / "models--owner--name"
        self.snapshot = self.model / "snapshots" / REVISION
        self.hub.mkdir(parents=True)
        self.job.mkdir()

    def run(
        self,
        role: Literal["fetch", "mirror"],
        *,
        peers: list[str] | None = None,
        offer: Offer | None = None,
        patience_s: float = 10,
    ) -> None:
        inputs: JobInputs = {
            "id": f"{role}-job",
            "source_job": None,
            "role": role,
            "repo": REPO,
            "revision": REVISION,
            "shards": 3,
            "encoding_file": ENCODER,
            "patience_s": patience_s,
            "fabric_ips": [self.fabric_ip],
            "peer_fabric_ips": peers or [],
            "head_fabric_ip": HEAD if role == "mirror" else None,
            "endpoint": "https://huggingface.co",
            "image": "repo@sha256:1",
            "hub": str(self.hub),
        }
        (self.job / "secret.json").write_text(json.dumps({"hf_token": "hf_word", "offer": offer}))
        try:
            job.run(self.job, self.hub, inputs, Status(self.job / "status.json", inputs["id"]))
        finally:
            # a job that fails ends with its process; here its threads would still write while the next one runs
            for thread in threading.enumerate():
                if thread.name.startswith("ThreadPoolExecutor"):
                    thread.join(5)

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.job / "status.json").read_text())
        return status

    def assert_verified(self) -> None:
        assert gaps(self.snapshot, 3, ENCODER) == []
        assert unverified(self.snapshot) == []
        assert {path: (self.snapshot / path).read_bytes() for path in contents()} == contents()
        assert (self.model / "refs/main").read_bytes() == REVISION.encode()
        assert not (self.job / "secret.json").exists(), "the token is removed once it is read"
        kept = {path.name for path in self.model.rglob("*") if path.is_file() and not path.is_symlink()}
        assert kept == {*(blob_of(*item) for item in contents().items()), NAME, "main"}, "no leftovers"


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 0xFF])
