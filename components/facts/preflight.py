"""From settings and facts to findings. Errors stop a preview and an up alike, all at once, before anything changes.

Pure. A rule that a stack lists under `allow` only warns.
"""

from collections.abc import Callable, Iterator, Sequence

from components.facts.finding import Finding, NodeView
from components.facts.link_rules import cables
from components.facts.node_facts import NodeFacts
from components.facts.node_rules import NODE_RULES
from components.facts.patch_rules import image_fits, patches_to_be_had
from components.facts.settings_rules import settings_findings
from components.settings.base import Refusal
from components.settings.cluster import ClusterSettings


class PreflightError(Refusal):
    title = "preflight stopped this stack; nothing was changed"


def asymmetries(cluster: ClusterSettings, facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Differences between the nodes, which have made one of them slow or fail."""
    columns: dict[str, list[str | None]] = {
        "kernel": [node.kernel for node in facts],
        "driver": [node.gpu.driver if node.gpu else None for node in facts],
        "Docker": [node.docker.version if node.docker else None for node in facts],
        "storage driver": [node.docker.storage_driver if node.docker else None for node in facts],
        "OS": [node.os for node in facts],
    }
    for name, values in columns.items():
        if len(set(values)) > 1:
            shown = ", ".join(f"{cluster.role(rank)} {value}" for rank, value in enumerate(values))
            yield Finding("warning", "nodes", f"{name} differs ({shown}): update them together")


def nfs_server(cluster: ClusterSettings, facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """A head that cannot export, where nobody else serves its cache: found out before the download, not after it."""
    if not facts or facts[0].nfs is None or facts[0].nfs.tools:
        return
    if any(node.nfs and node.nfs.refused for node in facts[1:]):
        text = "checkpoint.mode is nfs, but it has no NFS server: sudo apt install nfs-kernel-server, or use local"
        yield Finding("error", cluster.role(0), text)


def findings(
    cluster: ClusterSettings, facts: Sequence[NodeFacts], stack: str, *, has_hf_token: bool = False
) -> list[Finding]:
    """Everything that settings and facts say, errors first; `facts` is empty with `facts: off`."""
    views = [NodeView(cluster, rank, node, stack, has_hf_token) for rank, node in enumerate(facts)]
    every = [
        *settings_findings(cluster),
        *image_fits(cluster),
        *(finding for view in views for rule in (*NODE_RULES, patches_to_be_had) for finding in rule(view)),
        *asymmetries(cluster, facts),
        *cables(cluster, facts),
        *nfs_server(cluster, facts),
    ]
    allowed = [
        Finding("warning", item.where, f"{item.text} (allowed by this stack)", item.rule)
        if item.level == "error" and item.rule in cluster.allow
        else item
        for item in every
    ]
    return sorted(allowed, key=lambda item: item.level)


def check(
    cluster: ClusterSettings,
    facts: Sequence[NodeFacts],
    stack: str,
    warn: Callable[[str], None],
    *,
    has_hf_token: bool = False,
) -> None:
    """Pass every warning to `warn`. Raises PreflightError with every error."""
    every = findings(cluster, facts, stack, has_hf_token=has_hf_token)
    for item in every:
        if item.level == "warning":
            warn(str(item))
    if errors := [str(item) for item in every if item.level == "error"]:
        raise PreflightError(errors)
