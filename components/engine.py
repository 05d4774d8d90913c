"""The ranks: one container a node, created and replaced as one unit."""

import json
from collections.abc import Mapping, Sequence

import pulumi
import pulumi_command as command
import pulumi_docker as docker

from components.checkpoint import Checkpoint
from components.fabric import Fabric
from components.generation import Generation
from components.image import Image
from components.nfs import NfsCheckpoint
from components.node import Node
from components.node_script import SCRIPTS, modules_of
from components.serve_args import CACHE, START_FILE, RankSpec, rank_env, serve_argv, spec_hash, start_inputs
from components.settings import ClusterSettings

HOME = "/opt/spark"
SECRETS = "/run/spark"


def rank_spec(cluster: ClusterSettings, rank: int) -> RankSpec:
    """What one rank is started from, from settings and the shipped scripts alone."""
    return RankSpec(
        image=cluster.image.pinned,
        argv=serve_argv(cluster, rank),
        env=rank_env(cluster, rank),
        start=start_inputs(cluster, rank),
        hub=hub_of(cluster, rank),
        scripts={f"{name}.py": (SCRIPTS / f"{name}.py").read_text() for name in modules_of("rank")},
    )


def hub_of(cluster: ClusterSettings, rank: int) -> str:
    """Where a rank's checkpoint is, as the stack file says it; the docker provider does not apply a changed mount."""
    if cluster.reads_over_nfs(rank):
        head = cluster.nodes[0]
        return f"nfs {head.fabric_ip} {head.hf_cache}"
    return cluster.nodes[rank].hf_cache


def wanted_spec(cluster: ClusterSettings) -> str:
    """The label spark.spec of all ranks: another value means another pair."""
    return spec_hash([rank_spec(cluster, rank) for rank in range(len(cluster.nodes))])


def container_name(stack: str, rank: int) -> str:
    return f"spark-{stack}-rank{rank}"


def probe_host(host: str) -> str:
    """The address under which a server bound to `host` answers on its own node, ready for a URL."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


class Engine(pulumi.ComponentResource):
    """Rank N to 1, then rank 0: delete head, delete workers, create workers, create head.

    The head's label `spark.after` carries the workers' ids and `replace_with` names them, so no rank is replaced alone.
    """

    ranks: list[docker.Container]
    """Containers in rank order."""

    def __init__(
        self,
        cluster: ClusterSettings,
        nodes: Sequence[Node],
        fabrics: Sequence[Fabric],
        images: Sequence[Image],
        checkpoints: Sequence[Checkpoint | NfsCheckpoint],
        generation: Generation,
        api_key: pulumi.Output[str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("spark:engine:Engine", "engine", None, opts)
        keys = [self._key_file(node, api_key) for node in nodes] if api_key is not None else []
        shared: dict[str, pulumi.Input[str]] = {
            "spark.stack": pulumi.get_stack(),
            "spark.generation": generation.name,
            "spark.spec": wanted_spec(cluster),
        }
        # what one node alone decides is a label of every rank, or only that node's rank would be replaced
        if keys:
            written = pulumi.Output.unsecret(pulumi.Output.all(*[key.stdout for key in keys]))
            shared["spark.secret"] = written.apply(",".join)
        if cluster.fabric.gid_index == "pin":
            indexes = pulumi.Output.all(*[fabric.gid_index for fabric in fabrics])
            shared["spark.gid"] = indexes.apply(lambda found: ",".join(map(str, found)))
        started: list[docker.Container] = []
        for rank in reversed(range(len(nodes))):
            node = nodes[rank]
            purged = self._purge(cluster, node, checkpoints, generation)
            depends: list[pulumi.Resource] = [fabrics[rank].lookup, images[rank].pulled, purged]
            labels = {**shared, "spark.rank": str(rank)}
            if rank == 0:
                labels["spark.after"] = pulumi.Output.all(*[other.id for other in started]).apply(",".join)
            started.append(
                docker.Container(
                    f"{node.role}-engine",
                    name=container_name(pulumi.get_stack(), rank),
                    image=cluster.image.pinned,
                    entrypoints=[cluster.image.python, f"{HOME}/rank.py"],
                    command=serve_argv(cluster, rank),
                    envs=self._envs(cluster, rank, fabrics[rank]),
                    uploads=uploads(rank_spec(cluster, rank)),
                    mounts=mounts(cluster, node, checkpoints[rank].hub_mount, with_secrets=bool(keys)),
                    devices=[docker.ContainerDeviceArgs(host_path="/dev/infiniband")],
                    gpus="all",
                    network_mode="host",
                    # with the host's IPC a shm_size has no effect, so none is declared
                    ipc_mode="host",
                    ulimits=[
                        docker.ContainerUlimitArgs(name="memlock", soft=-1, hard=-1),
                        docker.ContainerUlimitArgs(name="stack", soft=67108864, hard=67108864),
                    ],
                    # dockerd cannot restore a pair, and a crash loop eats unified memory
                    restart="no",
                    must_run=True,
                    # a serving worker of the real engine needs 12 s from SIGTERM to its end
                    destroy_grace_seconds=20,
                    log_driver="json-file",
                    log_opts={"max-size": "50m", "max-file": "3"},
                    healthcheck=healthcheck(cluster) if rank == 0 else None,
                    labels=[docker.ContainerLabelArgs(label=label, value=value) for label, value in labels.items()],
                    opts=pulumi.ResourceOptions(
                        parent=self,
                        provider=node.docker,
                        delete_before_replace=True,
                        replace_with=list(started),
                        depends_on=[*depends, *keys, *started],
                        # the generation is known from facts alone: without them it must not look like a change
                        ignore_changes=["labels"] if cluster.facts == "off" else None,
                        # whole scripts; that they changed shows in the label spark.spec
                        hide_diffs=["uploads"],
                    ),
                )
            )
        self.ranks = list(reversed(started))
        self.register_outputs({"generation": generation.name})

    def _purge(
        self,
        cluster: ClusterSettings,
        node: Node,
        checkpoints: Sequence[Checkpoint | NfsCheckpoint],
        generation: Generation,
    ) -> command.remote.Command:
        """The page cache of one node, given back once a generation, when no checkpoint is being written any more."""
        inputs = {
            "stack": pulumi.get_stack(),
            "image": cluster.image.pinned,
            "python": cluster.image.python,
            "need_gib": round(cluster.engine.gpu_memory_utilization * cluster.hardware.memory_gib, 1),
            "hf_cache": node.settings.hf_cache,
            "repo": cluster.checkpoint.repo,
            "revision": cluster.checkpoint.revision,
        }
        return node.script(
            "page-cache",
            "purge_page_cache",
            inputs,
            timeout_s=600,
            # a note, not a trigger: it runs again as an update, and only the ranks show as replaced
            note=f"generation {generation.name}",
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[copy.complete for copy in checkpoints],
                ignore_changes=["create"] if cluster.facts == "off" else None,
            ),
        )

    def _key_file(self, node: Node, api_key: pulumi.Output[str]) -> command.remote.Command:
        """The API key as a file on a node; stdout is another word each time it is written."""
        return node.script(
            "api-key",
            "put_secret",
            {"stack": pulumi.get_stack(), "name": "api_key"},
            timeout_s=30,
            secrets={"SPARK_SECRET": api_key},
            repair=node.folder_gap,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[node.ready]),
        )

    @staticmethod
    def _envs(cluster: ClusterSettings, rank: int, fabric: Fabric) -> pulumi.Input[list[str]]:
        env = rank_env(cluster, rank)
        if cluster.fabric.gid_index == "pin":
            return fabric.gid_index.apply(lambda index: env_list({**env, "NCCL_IB_GID_INDEX": str(index)}))
        return env_list(env)


def env_list(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(env.items())]


def uploads(spec: RankSpec) -> list[docker.ContainerUploadArgs]:
    """rank.py, what it imports, and its inputs, written into the container before it starts."""
    files = {f"{HOME}/{name}": text for name, text in spec.scripts.items()}
    files[START_FILE] = json.dumps(spec.start, indent=1, sort_keys=True)
    return [docker.ContainerUploadArgs(file=path, content=text) for path, text in sorted(files.items())]


def mounts(
    cluster: ClusterSettings, node: Node, hub: docker.ContainerMountArgs, *, with_secrets: bool
) -> list[docker.ContainerMountArgs]:
    """Our cache folder for this image, the hub read-only inside it, our /tmp; the user's hub token stays outside."""
    jit = cluster.image.digest.removeprefix("sha256:")[:12]
    binds: list[tuple[pulumi.Input[str], str, bool]] = [
        (pulumi.Output.concat(node.folder, "/cache/", jit), CACHE, False),
        (pulumi.Output.concat(node.folder, "/tmp"), "/tmp", False),
    ]
    if with_secrets:
        binds.append((pulumi.Output.concat(node.folder, "/secrets"), SECRETS, True))
    ours = [
        docker.ContainerMountArgs(type="bind", source=source, target=target, read_only=read_only)
        for source, target, read_only in binds
    ]
    return [ours[0], hub, *ours[1:]]


def healthcheck(cluster: ClusterSettings) -> docker.ContainerHealthcheckArgs:
    """GET /health, for `docker ps`; it says alive, not ready. A worker has no HTTP server and gets none."""
    url = f"http://{probe_host(cluster.engine.host)}:{cluster.engine.port}/health"
    probe = f"import urllib.request as r; r.urlopen({url!r}, timeout=5)"
    # durations as Docker prints them, or each refresh would differ
    return docker.ContainerHealthcheckArgs(
        tests=["CMD", cluster.image.python, "-c", probe],
        interval="30s",
        timeout="10s",
        start_period="8m0s",
        retries=3,
    )
