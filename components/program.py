"""What __main__.py does before the first resource: the stack's values, the nodes' facts, the generation."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from components import facts_off
from components.facts import gathering
from components.facts.generation import PATCHES, UNKNOWN, Generation, decide
from components.facts.node_facts import NodeFacts
from components.rank.spec import RankSpec, spec_hash
from components.settings.base import PROJECT_DIR, SettingsError
from components.settings.cluster import SECRETS, ClusterSettings, load, secret_problems
from components.settings.stack_file import octal_numbers
from components.ssh.target import Resolved, Target, resolve_nodes, targets_of


@dataclass(frozen=True)
class Secrets:
    """The stack's secrets, which stay outside the tree that is validated, printed and hashed."""

    api_key: pulumi.Output[str] | None
    hf_token: pulumi.Output[str] | None


def load_settings() -> tuple[ClusterSettings, Secrets]:
    """The validated cluster and the stack's secrets. Raises SettingsError with every problem."""
    config = pulumi.Config()
    secrets = Secrets(**{name: config.get_secret(name) for name in SECRETS})
    problems = (
        leading_zeros(pulumi.get_stack())
        + unknown_keys(pulumi.get_project())
        + secret_problems({name: config.get(name) for name in SECRETS})
    )
    try:
        cluster = load(
            config.get_object("cluster"),
            has_api_key=secrets.api_key is not None,
            has_hf_token=secrets.hf_token is not None,
            project_dir=PROJECT_DIR,
        )
    except SettingsError as error:
        raise SettingsError(problems + error.lines) from None
    if problems:
        raise SettingsError(problems)
    return cluster, secrets


def leading_zeros(stack: str) -> list[str]:
    """Numbers that YAML has changed, if the stack's values come from its usual file; --config-file cannot be seen."""
    try:
        return octal_numbers((PROJECT_DIR / f"Pulumi.{stack}.yaml").read_text())
    except (OSError, ValueError):
        return []


def unknown_keys(project: str) -> list[str]:
    """Keys of our namespace that nothing reads: a misspelled one must not be ignored."""
    keys = json.loads(os.environ.get("PULUMI_CONFIG", "{}"))
    ours = [key.split(":", 1)[1] for key in keys if key.startswith(f"{project}:")]
    return [
        f"{key}: unknown key: the stack's values belong under cluster, its secrets are {' and '.join(SECRETS)}"
        for key in sorted(ours)
        if key not in ("cluster", *SECRETS)
    ]


def read_nodes(
    cluster: ClusterSettings, stack: str
) -> tuple[Sequence[tuple[Target, Resolved | None]], Sequence[NodeFacts]]:
    """How ssh reaches each node, and each node's facts, in rank order.

    With `facts: off` neither the ssh program nor a node is asked: no Resolved, no facts. Raises SshError, FactsError.
    """
    if cluster.facts == "off":
        facts_off.preview_only()
        return [(target, None) for target in targets_of(cluster)], []
    targets = resolve_nodes(cluster)
    return targets, gathering.gather(cluster, targets, stack)


def decide_generation(
    cluster: ClusterSettings, facts: Sequence[NodeFacts], stack: str, specs: Sequence[RankSpec]
) -> Generation:
    """The live generation, or a new one, shown with its reason; unknown without facts."""
    if not facts:
        return UNKNOWN
    roles = [cluster.role(rank) for rank in range(len(cluster.nodes))]
    live = [node.live_rank(stack, rank, roles[rank]) for rank, node in enumerate(facts)]
    generation = decide(live, roles, spec_hash(specs), specs[0].labels.get(PATCHES, ""))
    if generation.reason:
        verb = "restarting" if any(live) else "starting"
        pulumi.log.info(f"{verb} both ranks, generation {generation.name}: {generation.reason}")
    return generation
