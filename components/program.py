"""What __main__.py does before the first resource: the stack's values, where the nodes are, which start this is."""

import json
import os
from collections.abc import Sequence
from hashlib import sha256

import pulumi

from components.facts.generation import Generation, decide
from components.facts.node_facts import NodeFacts
from components.rank.spec import RankSpec, spec_hash
from components.settings.base import PROJECT_DIR, SettingsError
from components.settings.cluster import SECRETS, ClusterSettings, load
from components.ssh.target import Resolved, SshError, Target, resolve


def load_settings() -> tuple[ClusterSettings, dict[str, pulumi.Output[str] | None]]:
    """The validated cluster and the stack's secrets. Raises SettingsError with every problem.

    Secrets stay outside the tree that is validated, printed and hashed.
    """
    config = pulumi.Config()
    secrets = {name: config.get_secret(name) for name in SECRETS}
    problems = unknown_keys(pulumi.get_project())
    try:
        cluster = load(
            config.get_object("cluster"), has_api_key=secrets["api_key"] is not None, project_dir=PROJECT_DIR
        )
    except SettingsError as error:
        raise SettingsError(problems + error.lines) from None
    if problems:
        raise SettingsError(problems)
    return cluster, secrets


def unknown_keys(project: str) -> list[str]:
    """Keys of our namespace that nothing reads: a misspelt one must not be ignored."""
    keys = json.loads(os.environ.get("PULUMI_CONFIG", "{}"))
    ours = [key.split(":", 1)[1] for key in keys if key.startswith(f"{project}:")]
    return [
        f"{key}: unknown key: the stack's values belong under cluster, its secrets are {' and '.join(SECRETS)}"
        for key in sorted(ours)
        if key not in ("cluster", *SECRETS)
    ]


def targets(cluster: ClusterSettings) -> list[tuple[Target, Resolved]]:
    """Each node's SSH words, and what the ssh program makes of them; without facts it need not know the nodes."""

    def resolved(target: Target) -> Resolved:
        try:
            return resolve(target)
        except SshError:
            if cluster.facts == "on":
                raise
            return Resolved(target.host, target.user or "", target.port or 22, [], [])

    parsed = [Target.parse(node.ssh, cluster.ssh_config) for node in cluster.nodes]
    return [(target, resolved(target)) for target in parsed]


def decide_generation(
    cluster: ClusterSettings, known: Sequence[NodeFacts] | None, stack: str, specs: Sequence[RankSpec]
) -> Generation:
    """The live generation, or a new one with its reason said. Without facts the label is left out of the comparison.

    Raises SettingsError where there are no facts and this is no preview.
    """
    if known is None:
        if not pulumi.runtime.is_dry_run():
            # without facts no preflight ran, and no host key is known: nothing may be changed on that footing
            raise SettingsError(["facts: off is for previews: set it to on before an up"])
        pulumi.log.warn("facts: off: this preview knows the stack file and the state, not the nodes")
        return Generation("unknown", None)
    roles = [cluster.role(rank) for rank in range(len(cluster.nodes))]
    live = [facts.live_rank(stack, rank, roles[rank]) for rank, facts in enumerate(known)]
    generation = decide(live, roles, spec_hash(specs))
    if generation.reason:
        pulumi.log.info(f"both ranks start anew, generation {generation.name}: {generation.reason}")
    return generation


def table_seen(cluster: ClusterSettings, rank: int, facts: NodeFacts | None) -> str | None:
    """Boot and GID table of a node in a few characters: when they change, the lookup runs again and says why."""
    if facts is None:
        return None
    node = cluster.nodes[rank]
    found = facts.resolution(str(node.fabric_ip), node.hca, cluster.fabric.gid_index)
    boot = sha256((facts.boot_id or "").encode()).hexdigest()[:8]
    return f"boot {boot} table {found['table_digest'][:8]}"
