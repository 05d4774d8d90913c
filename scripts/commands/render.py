"""Show the exact command and environment that a rank would get; no node is touched.

It needs neither Pulumi nor a login: where pulumi cannot read the stack (yet), it says so on stderr and reads the stack
file alone. A profile that cannot start yet is shown too, with the reason on stderr. The document of --json has argv,
env, at_start (variables that rank.py adds on the node, from its own tables) and spec (the hash over all ranks, which
their containers carry as the label spark.spec).

example:    scripts/spark render --stack home --rank 1
"""

import argparse
import shlex

from components.rank.build import rank_specs
from components.rank.env import at_start
from components.rank.spec import spec_hash
from components.settings.cluster import lacks_patches
from host.console import say
from scripts.commands import Answer, Call
from scripts.stacks import StackError, cluster_of


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="0 is the head (default)")


def run(call: Call) -> Answer:
    values, rank = call.stack.values_or_file(), call.asked.rank
    cluster = cluster_of(values)
    if not 0 <= rank < len(cluster.nodes):
        raise StackError(f"there is no rank {rank}: this stack has ranks 0 to {len(cluster.nodes) - 1}")
    for line in lacks_patches(cluster):
        say(f"note: pulumi preview refuses this stack: {line}")
    specs = rank_specs(cluster, call.stack.name, has_api_key="api_key" in values)
    argv, env = specs[rank].argv, specs[rank].env
    later = at_start(env, cluster.fabric.gid_index)
    for name, value in sorted(env.items()):
        call.show(f"{name}={shlex.quote(value)}")
    for name in later:
        call.show(f"# {name}: found on the node at each start")
    lines: list[list[str]] = []
    for argument in argv:
        if argument.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(shlex.quote(argument))
    call.show(" \\\n  ".join(" ".join(line) for line in lines))
    return Answer({"argv": argv, "env": env, "at_start": later, "spec": spec_hash(specs)})
