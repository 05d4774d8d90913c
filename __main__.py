"""The stack, top to bottom: settings, facts and what follows from them, the pair, outputs."""

import pulumi

from components import outputs, program, source_positions
from components.facts import checkpoint_plan, gathering, preflight
from components.rank.build import rank_specs
from components.settings.base import Refusal
from components.ssh.target import SshError
from components.stack import SparkPair

source_positions.keep_to_the_project()

try:
    stack = pulumi.get_stack()
    cluster, secrets = program.load_settings()
    targets = program.targets(cluster)

    facts = gathering.gather(cluster, targets, stack) if cluster.facts == "on" else None
    preflight.check(cluster, facts, stack, pulumi.log.warn, has_hf_token=secrets["hf_token"] is not None)
    for line in checkpoint_plan.lines(cluster, facts or []):
        pulumi.log.info(line)
    specs = rank_specs(cluster, stack, has_api_key=secrets["api_key"] is not None)
    generation = program.decide_generation(cluster, facts, stack, specs)

    pair = SparkPair(cluster, targets, facts, specs, generation, secrets)
    outputs.export(pair)
except (Refusal, SshError) as refusal:
    raise pulumi.RunError(str(refusal)) from None
