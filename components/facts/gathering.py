"""Reading every node's facts, all nodes at once: on every preview and up, before anything is declared."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from components.facts.node_facts import NodeFacts, parse, with_missing
from components.settings.base import Refusal
from components.settings.cluster import ClusterSettings
from components.ssh.node_script import run_script
from components.ssh.target import Resolved, SshError, Target
from facts.document import BEGIN, FactsInputs, PatchInputs

LIMIT_S = 60


class FactsError(Refusal):
    title = "the nodes could not be read"


def inputs_of(settings: ClusterSettings, rank: int, stack: str) -> FactsInputs:
    node, engine = settings.nodes[rank], settings.engine
    return {
        "stack": stack,
        "hf_cache": node.hf_cache,
        "repo": settings.checkpoint.repo,
        "revision": settings.checkpoint.revision,
        "shards": settings.checkpoint.shards,
        "encoding_file": settings.checkpoint.encoding_file,
        "image": settings.image.pinned,
        "ports": [engine.port, engine.master_port] if rank == 0 else [],
        # only the head downloads, and only a worker that reads over the fabric needs the head's server
        "endpoint": settings.checkpoint.endpoint if rank == 0 else None,
        "patches": patch_inputs(settings, rank),
        "exports": rank == 0 and settings.reads_over_nfs(1),
        "head_fabric_ip": settings.link_to_head(rank)[0] if settings.reads_over_nfs(rank) else None,
    }


def patch_inputs(settings: ClusterSettings, rank: int) -> PatchInputs | None:
    patches = settings.patches
    if patches is None:
        return None
    return {"lock": patches.digest, "source": patches.source, "fetches": rank == 0 and patches.folder is None}


Reader = Callable[[Target, Resolved, FactsInputs], str]


def read_node(target: Target, resolved: Resolved, inputs: FactsInputs) -> str:
    return run_script(target, resolved, "facts.gather", inputs, timeout_s=LIMIT_S)


def gather(
    settings: ClusterSettings,
    targets: Sequence[tuple[Target, Resolved]],
    stack: str,
    read: Reader = read_node,
) -> list[NodeFacts]:
    """Every node's facts, in rank order. Raises FactsError with a line for each node that could not be read."""

    def one(rank: int) -> NodeFacts | str:
        role = settings.role(rank)
        try:
            text = read(*targets[rank], inputs_of(settings, rank, stack))
            if (printed := text.partition(BEGIN)[0].strip()) and BEGIN in text:
                return (
                    f"{role}: reading facts: the login shell prints {printed.splitlines()[0]!r} before a command's own "
                    "output, which breaks Docker over SSH too: let its start file print on a terminal alone"
                )
            return parse(text)
        except SshError as error:
            return f"{role}: reading facts: {error}"
        except ValueError as error:
            return f"{role}: reading facts: what came back is not a facts document: {error}"

    with ThreadPoolExecutor(max_workers=len(targets)) as pool:
        results = list(pool.map(one, range(len(targets))))
    if failed := [result for result in results if isinstance(result, str)]:
        raise FactsError([*failed, "facts: off in the stack file previews without the nodes"])
    return with_missing([result for result in results if isinstance(result, NodeFacts)])
