"""The stack, top to bottom: settings, facts and what follows from them, the pair, outputs."""

import pulumi

from components import outputs, program, source_positions
from components.facts import checkpoint_plan, node_plan, preflight
from components.rank.build import rank_specs
from components.settings.base import Refusal
from components.ssh.target import SshError
from components.stack import SparkPair

source_positions.keep_to_the_project()

try:
    stack = pulumi.get_stack()
    cluster, secrets = program.load_settings()

    targets, facts = program.read_nodes(cluster, stack)
    preflight.check(cluster, facts, stack, pulumi.log.warn, has_hf_token=secrets.hf_token is not None)
    for line in checkpoint_plan.lines(cluster, facts):
        pulumi.log.info(line)
    plans = node_plan.node_plans(cluster, facts, stack)
    specs = rank_specs(cluster, stack, has_api_key=secrets.api_key is not None)
    generation = program.decide_generation(cluster, facts, stack, specs)

    pair = SparkPair(cluster, targets, plans, specs, generation, secrets)
    outputs.export(pair)
except (Refusal, SshError) as refusal:
    raise pulumi.RunError(str(refusal)) from None
