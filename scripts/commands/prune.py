"""List what the nodes' Hugging Face caches no longer need of the project's models, and remove it when told to.

Asks the nodes of one stack over SSH. What any Pulumi.<stack>.yaml names stays (Pulumi.example.yaml is not a stack),
and so does what a running container uses or a ref of yours points to. Models that no profile and no stack file names
are not touched. Removes after a typed "yes", or with --yes, and only what the list shows. With --json nobody is asked:
it lists, and removes only with --yes.

example:    scripts/spark prune --stack home
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from components.facts.checkpoint_plan import size
from components.settings.cluster import ClusterSettings
from components.settings.profile import profile_repos, with_profile
from components.ssh.node_script import run_script
from components.ssh.target import Resolved, SshError, Target, resolve_nodes
from host.console import say
from hub.prune import Kept, Listing, PruneInputs, Removed, Row
from scripts.commands import Answer, Call, waiting
from scripts.stacks import Stack, StackError, Values, cluster_of, stack_files

LIST_S, REMOVE_S = 120, 900


class Need(NamedTuple):
    """What one stack file needs on its nodes."""

    file: Path
    repo: str
    revision: str


@dataclass
class Node:
    role: str
    target: Target
    resolved: Resolved
    inputs: PruneInputs
    """Of a list."""
    listing: Listing | None = None
    removed: Removed | None = None
    problem: str | None = None
    """What went wrong, if anything."""

    @property
    def title(self) -> str:
        return f"{self.role} ({self.target.host})"

    def list(self) -> Listing | None:
        """None when there is no answer; the problem says why."""
        if answer := self._ask(self.inputs, LIST_S):
            self.listing = json.loads(answer)
        return self.listing

    def remove(self, expect: Sequence[Row]) -> Removed | None:
        """Remove what a list just showed. None as for a list."""
        if answer := self._ask({**self.inputs, "action": "remove", "expect": [*expect]}, REMOVE_S):
            self.removed = json.loads(answer)
        return self.removed

    def _ask(self, inputs: PruneInputs, timeout_s: int) -> str:
        try:
            with waiting(f"{self.title}: {inputs['action']}"):
                return run_script(self.target, self.resolved, "hub.prune", inputs, timeout_s=timeout_s)
        except SshError as error:
            self.fails(str(error))
            return ""

    def fails(self, problem: str) -> None:
        self.problem = problem
        say(problem)

    @property
    def document(self) -> dict[str, object]:
        """For --json."""
        problem = {"problem": self.problem} if self.problem else {}
        return {"role": self.role, "host": self.target.host, **(self.listing or {}), **(self.removed or {}), **problem}


def need_of(file: Path, values: Values) -> Need | None:
    """What a stack file needs, None when it holds no cluster. Raises StackError when that cannot be told."""
    raw = values.get("cluster")
    if raw is None:
        return None
    cluster = with_profile(raw)[0] if isinstance(raw, dict) else {}
    checkpoint = cluster.get("checkpoint")
    repo, revision = (checkpoint.get(key) if isinstance(checkpoint, dict) else None for key in ("repo", "revision"))
    if not isinstance(repo, str) or not isinstance(revision, str):
        raise StackError(
            f"{file.name} names no model and revision, so what it needs is unknown: correct it, or move it away"
        )
    return Need(file, repo, revision)


def all_needs(stack: Stack, values: Values) -> list[Need]:
    """What all stack files need, this stack's own too, whatever its name is."""
    files = sorted({*stack_files().values(), stack.file})
    needs = [need_of(file, values if file == stack.file else stack.values(file)) for file in files]
    return [need for need in needs if need]


def nodes_of(cluster: ClusterSettings, own: Path, needs: list[Need]) -> Iterator[Node]:
    """The nodes with what each must keep; `own` is their stack's file. Raises SshError for a broken configuration."""
    models = sorted(profile_repos() | {need.repo for need in needs})
    for rank, (target, resolved) in enumerate(resolve_nodes(cluster)):
        keep: dict[str, dict[str, str]] = {}
        unneeded: dict[str, list[str]] = {}
        for need in needs:
            if cluster.reads_over_nfs(rank) and need.file == own:
                unneeded.setdefault(need.repo, []).append(need.revision)
                continue
            names, name = keep.setdefault(need.repo, {}), need.file.name
            names[need.revision] = f"{names[need.revision]}, {name}" if need.revision in names else name
        inputs: PruneInputs = {
            "action": "list",
            "hf_cache": cluster.nodes[rank].hf_cache,
            "models": models,
            "keep": keep,
            "unneeded": unneeded,
        }
        yield Node(cluster.role(rank), target, resolved, inputs)


def table(node: Node, listing: Listing) -> Iterator[str]:
    """The node's lines: what is removable and what stays, each with its size and reason."""
    yield f"{node.title}  {listing['hub']}  {size(listing['free'])} free"
    rows: list[tuple[str, Kept]] = [("removable", row) for row in listing["candidates"]]
    rows += [("stays", row) for row in listing["kept"]]
    cells = [(verdict, size(row["bytes"]), f"{row['model']}  {row['what']}", row["why"]) for verdict, row in rows]
    if listing["others"]:
        cells.append(("stays", "", f"other models: {listing['others']}", "no profile and no stack file names them"))
    widths = [max((len(cell[column]) for cell in cells), default=0) for column in range(3)]
    for verdict, bytes_, what, why in cells:
        yield f"  {verdict:{widths[0]}}  {bytes_:>{widths[1]}}  {what:{widths[2]}}  {why}"
    if not listing["candidates"]:
        yield "  nothing is removable"


def confirmed(titles: list[str], total: int) -> bool:
    print(f'remove {size(total)} from {", ".join(titles)}? Only "yes" removes: ', end="", flush=True)
    answer = sys.stdin.readline().strip()
    if answer != "yes":
        print("nothing was removed")
    return answer == "yes"


def prune(call: Call, nodes: list[Node]) -> None:
    """List, ask, remove; a node that refuses or fails does not stop the others."""
    removable: list[tuple[Node, list[Row]]] = []
    for node in nodes:
        listing = node.list()
        if listing is None:
            continue
        for line in table(node, listing):
            call.show(line)
        if listing["busy"]:
            node.fails(f"{node.title}: a checkpoint job runs: wait until it ends, then list again")
        elif listing["candidates"]:
            removable.append((node, listing["candidates"]))
    total = sum(row["bytes"] for _, rows in removable for row in rows)
    if not removable or not (
        call.asked.yes or (not call.asked.json and confirmed([node.title for node, _ in removable], total))
    ):
        return
    for node, rows in removable:
        if done := node.remove(rows):
            call.show(f"{node.title}  {size(done['removed'])} removed, {size(done['free'])} free now")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="remove what is listed without asking")


def run(call: Call) -> Answer:
    values = call.stack.values()
    # nothing is served here, so the API needs no key
    cluster = cluster_of(values, has_api_key=True)
    nodes = list(nodes_of(cluster, call.stack.file, all_needs(call.stack, values)))
    call.show(f"stack {call.stack.title}")
    prune(call, nodes)
    failed = any(node.problem for node in nodes)
    return Answer({"stack": call.stack.title, "nodes": [node.document for node in nodes]}, code=1 if failed else 0)
