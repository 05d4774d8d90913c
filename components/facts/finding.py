"""What a rule of the preflight says, and what it says it about: a node under its role."""

from dataclasses import dataclass
from typing import Literal

from components.facts.node_facts import NodeFacts
from components.settings.cluster import ClusterSettings


@dataclass(frozen=True)
class Finding:
    level: Literal["error", "warning"]
    where: str
    """Role of the node, or the settings path."""
    text: str
    """What is wrong, why it matters, the way out."""
    rule: str | None = None
    """Name under which `allow` turns an error into a warning."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True)
class NodeView:
    """One node as a rule sees it."""

    cluster: ClusterSettings
    rank: int
    facts: NodeFacts
    stack: str
    has_hf_token: bool = False

    @property
    def role(self) -> str:
        return self.cluster.role(self.rank)

    def error(self, text: str, rule: str | None = None) -> Finding:
        return Finding("error", self.role, text, rule)

    def warning(self, text: str) -> Finding:
        return Finding("warning", self.role, text)

    @property
    def runs_our_rank(self) -> bool:
        """Whether a rank of this stack runs there: replacing it frees what it holds."""
        rank = self.facts.live_rank(self.stack, self.rank, self.role)
        return rank is not None and rank.running

    @property
    def our_containers(self) -> set[str]:
        """Names of this stack's containers there, identified by label."""
        containers = self.facts.containers or []
        return {container.name for container in containers if container.labels.get("spark.stack") == self.stack}
