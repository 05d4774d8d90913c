"""All resources of a stack, each after what it builds on."""

from collections.abc import Sequence

from components import checkpoint, nfs, patches
from components.engine import Engine
from components.fabric import Fabric
from components.facts.generation import Generation
from components.facts.node_plan import NodePlan
from components.image import Image
from components.node import Node
from components.patches import Patches
from components.program import Secrets
from components.rank.spec import RankSpec
from components.readiness import Readiness
from components.settings.cluster import ClusterSettings
from components.ssh.target import Resolved, Target
from components.verified import NodeCheckpoint


class SparkPair:
    """The pair, declared: each node's folder, fabric, image and checkpoint, then the ranks and the wait for them.

    Not a ComponentResource: a parent is part of its children's URNs, so one around all of them would replace every
    resource of an existing stack.
    """

    head_host: str
    """Of the head, as ssh reaches it."""
    nodes: list[Node]
    fabrics: list[Fabric]
    images: list[Image]
    patches: list[Patches]
    """Empty where the stack starts without patches."""
    checkpoints: list[NodeCheckpoint]
    engine: Engine
    readiness: Readiness

    def __init__(
        self,
        cluster: ClusterSettings,
        targets: Sequence[tuple[Target, Resolved | None]],
        plans: Sequence[NodePlan],
        specs: Sequence[RankSpec],
        generation: Generation,
        secrets: Secrets,
    ) -> None:
        """Every sequence is in rank order."""
        self.cluster, self.generation = cluster, generation
        target, resolved = targets[0]
        self.head_host = resolved.host if resolved else target.host
        ranks = range(len(cluster.nodes))
        self.nodes = nodes = [Node(cluster, rank, *targets[rank], plans[rank], generation) for rank in ranks]
        self.fabrics = [Fabric(cluster, node) for node in nodes]
        self.images = [Image(cluster, node) for node in nodes]
        self.patches = patches.declare(cluster, nodes, secrets.hf_token)
        self.checkpoints = checkpoint.declare(cluster, nodes, self.images, secrets.hf_token)
        self.engine = Engine(
            cluster,
            specs,
            nodes,
            self.fabrics,
            self.images,
            self.checkpoints,
            self.patches,
            generation,
            secrets.api_key,
        )
        nfs.keep_serving(self.checkpoints, self.engine.ranks)
        self.readiness = Readiness(cluster, specs, nodes, self.engine)
