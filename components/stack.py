"""All resources of a stack, in the order in which they build on each other."""

from collections.abc import Mapping, Sequence

import pulumi

from components import checkpoint, nfs, program
from components.engine import Engine
from components.fabric import Fabric
from components.facts.generation import Generation
from components.facts.node_facts import NodeFacts
from components.image import Image
from components.nfs import NfsCheckpoint
from components.node import Node
from components.rank.spec import RankSpec
from components.readiness import Readiness
from components.settings.cluster import ClusterSettings
from components.ssh.target import Resolved, Target


class SparkPair:
    """The pair, declared: for each node folder, fabric, image and checkpoint, then the ranks and the wait for them.

    Not a ComponentResource: a parent is part of each child's URN, so one around them all would replace every resource
    of a stack that exists.
    """

    nodes: list[Node]
    fabrics: list[Fabric]
    images: list[Image]
    checkpoints: list[checkpoint.Checkpoint | NfsCheckpoint]
    engine: Engine
    readiness: Readiness

    def __init__(
        self,
        cluster: ClusterSettings,
        targets: Sequence[tuple[Target, Resolved]],
        facts: Sequence[NodeFacts] | None,
        specs: Sequence[RankSpec],
        generation: Generation,
        secrets: Mapping[str, pulumi.Output[str] | None],
    ) -> None:
        """Every sequence is in rank order; `facts` is None when they are off."""
        self.cluster, self.generation = cluster, generation
        ranks = range(len(cluster.nodes))
        seen = [facts[rank] if facts else None for rank in ranks]
        self.nodes = nodes = [Node(cluster, rank, *targets[rank], seen[rank], generation) for rank in ranks]
        self.fabrics = [Fabric(cluster, nodes[rank], program.table_seen(cluster, rank, seen[rank])) for rank in ranks]
        self.images = [Image(cluster, nodes[rank], seen[rank]) for rank in ranks]
        self.checkpoints = checkpoint.declare(
            cluster, nodes, self.images, seen, pulumi.get_stack(), secrets["hf_token"]
        )
        self.engine = Engine(
            cluster, specs, nodes, self.fabrics, self.images, self.checkpoints, generation, secrets["api_key"]
        )
        nfs.keep_serving(self.checkpoints, self.engine.ranks)
        self.readiness = Readiness(cluster, specs, nodes, self.engine)
