"""List what the nodes' Hugging Face caches need not keep of the project's models, and remove it when told to.

Asks the nodes of one stack over SSH. What any Pulumi.<stack>.yaml names stays (Pulumi.example.yaml is not a stack), and
so does what a running container uses or a ref of yours points to; models that no profile and no stack file names are
not touched. Removes after a typed "yes", or with --yes, and only what the list shows. With --json nobody is asked: it
lists, and removes only with --yes.

example:    scripts/spark prune --stack home
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from components.facts.checkpoint_plan import amount
from components.settings.cluster import ClusterSettings, profiles, read_profile, with_profile
from components.ssh.node_script import run_script
from components.ssh.target import Resolved, SshError, Target, resolve_nodes
from hub.prune import Kept, Listing, PruneInputs, Removed, Row
from scripts.commands import Answer, Call, say, waiting
from scripts.stacks import Stack, StackError, Values, cluster_of, stack_files

LIST_S, REMOVE_S = 120, 900

Json = dict[str, Any]


class Named(NamedTuple):
    """What one stack file wants."""

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
    report: Json = field(default_factory=dict)
    """For --json: the node's list, the bytes it removed, or what went wrong."""

    @property
    def title(self) -> str:
        return f"{self.role} ({self.target.host})"

    def listing(self) -> Listing | None:
        """None when there is no answer, which is said in the node's own words."""
        found: Listing | None = self._ask(self.inputs, LIST_S)
        return found

    def remove(self, expect: Sequence[Row]) -> Removed | None:
        """Of what a list just showed. None as for a list."""
        done: Removed | None = self._ask({**self.inputs, "action": "remove", "expect": [*expect]}, REMOVE_S)
        return done

    def _ask(self, inputs: PruneInputs, timeout_s: int) -> Any:
        try:
            with waiting(f"{self.title}: {inputs['action']}"):
                answer = run_script(self.target, self.resolved, "hub.prune", inputs, timeout_s=timeout_s)
        except SshError as error:
            self.fails(str(error))
            return None
        found = json.loads(answer)
        self.report |= found
        return found

    def fails(self, problem: str) -> None:
        self.report["problem"] = problem
        say(problem)


def named(file: Path, values: Values) -> Named | None:
    """What a stack file names, None when it holds no cluster. Raises StackError when that cannot be told."""
    raw = values.get("cluster")
    if raw is None:
        return None
    merged = with_profile(raw)[0] if isinstance(raw, dict) else {}
    checkpoint = merged.get("checkpoint")
    wanted = checkpoint if isinstance(checkpoint, dict) else {}
    repo, revision = wanted.get("repo"), wanted.get("revision")
    if not isinstance(repo, str) or not isinstance(revision, str):
        raise StackError(
            f"{file.name} names no model and revision, so nobody knows what it needs: mend it, or move it away"
        )
    return Named(file, repo, revision)


def wants(stack: Stack, values: Values) -> list[Named]:
    """What all stack files name, this stack's own too, whatever its name is."""
    files = sorted({*stack_files().values(), stack.file})
    found = [named(file, values if file == stack.file else stack.values(file)) for file in files]
    return [each for each in found if each]


def nodes_of(cluster: ClusterSettings, own: Path, wanted: list[Named]) -> Iterator[Node]:
    """The nodes with what each must keep; `own` is their stack's file. Raises SshError for a broken configuration."""
    of_profiles = [read_profile(name)[0]["checkpoint"]["repo"] for name in profiles()]
    models = sorted({*of_profiles, *(each.repo for each in wanted)})
    for rank, (target, resolved) in enumerate(resolve_nodes(cluster)):
        keep: dict[str, dict[str, str]] = {}
        unneeded: dict[str, list[str]] = {}
        for each in wanted:
            if cluster.reads_over_nfs(rank) and each.file == own:
                unneeded.setdefault(each.repo, []).append(each.revision)
                continue
            who, name = keep.setdefault(each.repo, {}), each.file.name
            who[each.revision] = f"{who[each.revision]}, {name}" if each.revision in who else name
        inputs: PruneInputs = {
            "action": "list",
            "hf_cache": cluster.nodes[rank].hf_cache,
            "models": models,
            "keep": keep,
            "unneeded": unneeded,
        }
        yield Node(cluster.role(rank), target, resolved, inputs)


def size(count: int) -> str:
    """Bytes for a person."""
    return amount(count / 2**30)


def table(node: Node, found: Listing) -> Iterator[str]:
    """The node's lines: what may go and what stays, each with its size and reason."""
    yield f"{node.title}  {found['hub']}  {size(found['free'])} free"
    rows: list[tuple[str, Kept]] = [("may go", row) for row in found["candidates"]]
    rows += [("stays", row) for row in found["kept"]]
    cells = [(word, size(row["bytes"]), f"{row['model']}  {row['what']}", row["why"]) for word, row in rows]
    if found["others"]:
        cells.append(("stays", "", f"other models: {found['others']}", "no profile and no stack file names them"))
    width = max((len(cell[2]) for cell in cells), default=0)
    for word, bytes_, what, why in cells:
        yield f"  {word:6}  {bytes_:>11}  {what:{width}}  {why}"
    if not found["candidates"]:
        yield "  nothing may go"


def confirmed(titles: list[str], total: int) -> bool:
    print(f'remove {size(total)} from {", ".join(titles)}? Only "yes" removes: ', end="", flush=True)
    answer = sys.stdin.readline().strip()
    if answer != "yes":
        print("nothing was removed")
    return answer == "yes"


def prune(call: Call, nodes: list[Node]) -> None:
    """List, ask, remove; a node that refuses or fails ends no other node's part."""
    lists: list[tuple[Node, Listing]] = []
    for node in nodes:
        found = node.listing()
        if found is None:
            continue
        for line in table(node, found):
            call.show(line)
        if found["busy"]:
            node.fails(f"{node.title}: a checkpoint job runs: wait until it ends, then list again")
        elif found["candidates"]:
            lists.append((node, found))
    total = sum(row["bytes"] for _, found in lists for row in found["candidates"])
    if not lists or not (
        call.asked.yes or (not call.asked.json and confirmed([node.title for node, _ in lists], total))
    ):
        return
    for node, found in lists:
        done = node.remove(found["candidates"])
        if done:
            call.show(f"{node.title}  {size(done['removed'])} removed, {size(done['free'])} free now")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="remove what is listed without asking")


def run(call: Call) -> Answer:
    values = call.stack.values()
    # whether the API has a key is of no interest here
    cluster = cluster_of(values, has_api_key=True)
    nodes = list(nodes_of(cluster, call.stack.file, wants(call.stack, values)))
    call.show(f"stack {call.stack.title}")
    prune(call, nodes)
    reports = [{"role": node.role, "host": node.target.host, **node.report} for node in nodes]
    failed = any("problem" in node.report for node in nodes)
    return Answer({"stack": call.stack.title, "nodes": reports}, code=1 if failed else 0)
