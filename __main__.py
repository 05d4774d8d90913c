"""The stack, top to bottom: settings, facts, preflight, nodes, fabric, image, checkpoint, engine, readiness."""

import pulumi

from components import facts, outputs, preflight, program, source_positions
from components.base import Refusal
from components.checkpoint import Checkpoint
from components.engine import Engine, wanted_spec
from components.fabric import Fabric
from components.image import Image
from components.node import Node
from components.readiness import Readiness
from components.ssh import SshError

source_positions.keep_to_the_project()

try:
    stack = pulumi.get_stack()
    cluster, secrets = program.load_settings()
    targets = program.targets(cluster)
    known = facts.gather(cluster, targets, stack) if cluster.facts == "on" else None
    preflight.check(cluster, known, stack, pulumi.log.warn)
    generation = program.decide_generation(cluster, known, stack, wanted_spec(cluster))

    ranks = range(len(cluster.nodes))
    seen = [known[rank] if known else None for rank in ranks]
    nodes = [Node(cluster, rank, *targets[rank], seen[rank], generation) for rank in ranks]
    fabrics = [Fabric(cluster, nodes[rank], program.table_seen(cluster, rank, seen[rank])) for rank in ranks]
    images = [Image(cluster, nodes[rank], seen[rank]) for rank in ranks]
    checkpoints = [Checkpoint(cluster, nodes[rank], images[rank], seen[rank], secrets["hf_token"]) for rank in ranks]
    engine = Engine(cluster, nodes, fabrics, images, checkpoints, generation, secrets["api_key"])
    readiness = Readiness(cluster, nodes, engine)
    outputs.export(cluster, nodes, fabrics, checkpoints, generation, readiness)
except (Refusal, SshError) as refusal:
    raise pulumi.RunError(str(refusal)) from None
