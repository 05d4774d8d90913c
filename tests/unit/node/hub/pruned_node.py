"""A node whose cache is pruned: its containers, and prune run on it as it is shipped."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.unit.executables import run_shipped
from tests.unit.node import hub_cache as cache
from tests.unit.node.hub_cache import NEW, OLD, OTHER, REPO
from tests.unit.servers import Answer, Request, body, serving

Row = dict[str, Any]


class Node:
    """One node's cache, the containers that run there, and prune on it."""

    def __init__(self, home: Path) -> None:
        self.hub = home / "hf" / "hub"
        self.hub.mkdir(parents=True)
        self.containers: list[Row] = []
        self.docker_host = ""
        self.inputs: Row = {"models": [REPO], "keep": {REPO: {NEW: "Pulumi.dev.yaml"}}, "unneeded": {}}

    def dockerd(self, request: Request) -> Answer:
        if request[1] == "/containers/json":
            return body([{"Id": entry["Name"]} for entry in self.containers])
        return body(next(entry for entry in self.containers if request[1] == f"/containers/{entry['Name']}/json"))

    def run(self, action: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        inputs = {"action": action, "hf_cache": str(self.hub.parent), **self.inputs, **more}
        return run_shipped("hub.prune", inputs, DOCKER_HOST=self.docker_host)

    def list(self) -> Row:
        done = self.run("list")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def may_go(self) -> dict[str, int]:
        return {row["what"]: row["bytes"] for row in self.list()["candidates"]}

    def prune(self) -> Row:
        done = self.run("remove", expect=self.list()["candidates"])
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


@contextmanager
def running(home: Path) -> Iterator[Node]:
    """A node with an empty cache, while its dockerd answers."""
    made = Node(home)
    with serving(made.dockerd, home / "docker.sock") as (made.docker_host, _):
        yield made


def with_two_revisions(node: Node) -> Node:
    """Two revisions that share two of three files, verified by us, and somebody else's model beside them."""
    texts = {"model-1": "one", "model-2": "two", "encoding/encoder.py": "old"}
    cache.snapshot(node.hub, OLD, texts)
    cache.snapshot(node.hub, NEW, {**texts, "encoding/encoder.py": "new"})
    cache.ref(node.hub, OLD)
    cache.note_verified(node.hub, main=OLD)
    cache.snapshot(node.hub, OLD, {"weights": "theirs"}, OTHER)
    return node
