"""A node on which an SSH session begins or follows the checkpoint's job: its `docker` is as a test tells it."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.unit.executables import Recorder, run_shipped
from tests.unit.node.snapshots import ENCODER, REPO, REVISION

FETCH: dict[str, Any] = {
    "role": "fetch",
    "repo": REPO,
    "revision": REVISION,
    "shards": 3,
    "encoding_file": ENCODER,
    "endpoint": "https://huggingface.co",
    "patience_s": 600,
    "image": "repo@sha256:1",
    "python": "/usr/bin/python3",
    "hf_cache": "~/.cache/huggingface",
    "stack": "dev",
    "fabric_ips": ["192.168.100.1"],
    "peer_fabric_ips": ["192.168.100.2"],
    "head_fabric_ip": None,
}
MIRROR = {
    **FETCH,
    "role": "mirror",
    "fabric_ips": ["192.168.100.2"],
    "peer_fabric_ips": [],
    "head_fabric_ip": "192.168.100.1",
}
TOKEN = "hf_0123456789"
OFFER = {"job": "a1", "port": 40001, "token": "0123456789abcdef"}
BEGUN = {"job": "a1", "offer": OFFER}
DONE: dict[str, Any] = {
    "id": "a1",
    "state": "done",
    "phase": "verified",
    "files": [5, 5],
    "bytes": [9, 9],
    "rate": 0,
    "notes": [],
    "trouble": None,
    "error": None,
}


class Node:
    """A home with a hub cache, and its `docker`: one container that runs or not."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self.home, self.recorder = folder / "home", recorder
        self.hub = self.home / ".cache/huggingface/hub"
        self.hub.mkdir(parents=True)
        self.ours = self.home / ".local/share/spark-stack/dev"
        self.job = self.ours / "job"
        self.ours.mkdir(parents=True)
        self.running = folder / "running"
        self.answers()

    def answers(self, begins: str = "") -> None:
        """`begins` is what the container does when it starts; it runs from then on."""
        runs = f'case "$*" in *--detach*) echo c1 >{self.running}; {begins or "true"};; esac'
        self.recorder.answer(
            "docker",
            f"case $1 in ps) cat {self.running} 2>/dev/null; true;; run) {runs};; rm) rm -f {self.running};; esac",
        )

    def says(self, **status: Any) -> None:
        self.job.mkdir(exist_ok=True)
        (self.job / "status.json").write_text(json.dumps({**DONE, **status}))

    def offers(self) -> str:
        """What a job of the head does: it starts serving the other nodes."""
        text = json.dumps(OFFER)
        return f"echo '{text}' >{self.job}/source.json"

    def step(self, inputs: dict[str, Any], action: str, **env: str) -> "subprocess.CompletedProcess[str]":
        env |= {"HOME": str(self.home), "PATH": self.recorder.path}
        return run_shipped("download.step", {**inputs, "action": action}, apart=False, **env)

    def docker_runs(self) -> list[list[str]]:
        return [call for call in self.recorder.calls("docker") if call[0] == "run"]
