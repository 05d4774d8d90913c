"""The stack, top to bottom: settings, facts, preflight, nodes, fabric, image, checkpoint, engine, readiness."""

import pulumi

from components import checkpoint, nfs, outputs, program, source_positions
from components.engine import Engine
from components.fabric import Fabric
from components.facts import checkpoint_plan, gathering, preflight
from components.image import Image
from components.node import Node
from components.rank.build import rank_specs
from components.readiness import Readiness
from components.settings.base import Refusal
from components.ssh.target import SshError

source_positions.keep_to_the_project()

try:
    stack = pulumi.get_stack()
    cluster, secrets = program.load_settings()
    targets = program.targets(cluster)
    known = gathering.gather(cluster, targets, stack) if cluster.facts == "on" else None
    preflight.check(cluster, known, stack, pulumi.log.warn, has_hf_token=secrets["hf_token"] is not None)
    for line in checkpoint_plan.lines(cluster, known or []):
        pulumi.log.info(line)
    specs = rank_specs(cluster, stack, has_api_key=secrets["api_key"] is not None)
    generation = program.decide_generation(cluster, known, stack, specs)

    ranks = range(len(cluster.nodes))
    seen = [known[rank] if known else None for rank in ranks]
    nodes = [Node(cluster, rank, *targets[rank], seen[rank], generation) for rank in ranks]
    fabrics = [Fabric(cluster, nodes[rank], program.table_seen(cluster, rank, seen[rank])) for rank in ranks]
    images = [Image(cluster, nodes[rank], seen[rank]) for rank in ranks]
    checkpoints = checkpoint.declare(cluster, nodes, images, seen, stack, secrets["hf_token"])
    engine = Engine(cluster, specs, nodes, fabrics, images, checkpoints, generation, secrets["api_key"])
    nfs.keep_serving(checkpoints, engine.ranks)
    readiness = Readiness(cluster, specs, nodes, engine)
    outputs.export(cluster, nodes, fabrics, checkpoints, generation, readiness)
except (Refusal, SshError) as refusal:
    raise pulumi.RunError(str(refusal)) from None
