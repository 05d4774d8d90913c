"""The ranks: one container on each node, created and replaced as one unit.

A container's RankSpec says what it is; here it becomes Pulumi's arguments, with what only Pulumi knows.
"""

from collections.abc import Mapping, Sequence

import pulumi
import pulumi_command as command
import pulumi_docker as docker

from components.fabric import Fabric
from components.facts.generation import Generation
from components.image import Image
from components.node import Node
from components.patches import Patches
from components.rank.mounts import HUB
from components.rank.spec import Mount, RankSpec, spec_hash
from components.settings.cluster import ClusterSettings
from components.verified import NodeCheckpoint
from host.purge_page_cache import PurgeInputs
from host.put_secret import SecretInputs


class Engine(pulumi.ComponentResource):
    """Rank N to 1, then rank 0: delete head, delete workers, create workers, create head.

    The head's label `spark.after` carries the workers' ids and `replace_with` names them, so no rank is replaced alone.
    """

    ranks: list[docker.Container]
    """Containers in rank order."""

    def __init__(
        self,
        cluster: ClusterSettings,
        specs: Sequence[RankSpec],
        nodes: Sequence[Node],
        fabrics: Sequence[Fabric],
        images: Sequence[Image],
        checkpoints: Sequence[NodeCheckpoint],
        patches: Sequence[Patches],
        generation: Generation,
        api_key: pulumi.Output[str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("spark:engine:Engine", "engine", None, opts)
        keys = [self._key_file(node, api_key) for node in nodes] if api_key is not None else []
        shared: dict[str, pulumi.Input[str]] = {"spark.generation": generation.name, "spark.spec": spec_hash(specs)}
        # what one node alone decides becomes a label of every rank, so that no rank is replaced alone
        if keys:
            written = pulumi.Output.unsecret(pulumi.Output.all(*[key.stdout for key in keys]))
            shared["spark.secret"] = written.apply(",".join)
        if cluster.fabric.gid_index == "pin":
            indexes = pulumi.Output.all(*[fabric.gid_index for fabric in fabrics])
            shared["spark.gid"] = indexes.apply(lambda values: ",".join(map(str, values)))
        started: list[docker.Container] = []
        for rank in reversed(range(len(nodes))):
            node = nodes[rank]
            purged = self._purge(cluster, node, checkpoints, generation)
            depends: list[pulumi.Resource] = [fabrics[rank].lookup, images[rank].pulled, purged]
            depends += patches[rank].placed if patches else []
            labels = dict(shared)
            if rank == 0:
                labels["spark.after"] = pulumi.Output.all(*[other.id for other in started]).apply(",".join)
            started.append(
                docker.Container(
                    f"{node.role}-engine",
                    container_args(
                        specs[rank],
                        labels,
                        folder=node.folder,
                        hub=checkpoints[rank].hub,
                        gid_index=fabrics[rank].gid_index if cluster.fabric.gid_index == "pin" else None,
                    ),
                    opts=pulumi.ResourceOptions(
                        parent=self,
                        provider=node.docker,
                        delete_before_replace=True,
                        replace_with=list(started),
                        depends_on=[*depends, *keys, *started],
                        # whole scripts; the label spark.spec shows that they changed
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
        checkpoints: Sequence[NodeCheckpoint],
        generation: Generation,
    ) -> command.remote.Command:
        """Frees one node's page cache once in a generation, when no checkpoint is being written any more."""
        inputs: PurgeInputs = {
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
            "host.purge_page_cache",
            inputs,
            timeout_s=600,
            # a note, not a trigger: running again is an update then, and only the ranks show as replaced
            note=f"generation {generation.name}",
            opts=pulumi.ResourceOptions(parent=self, depends_on=[checkpoint.ready for checkpoint in checkpoints]),
        )

    def _key_file(self, node: Node, api_key: pulumi.Output[str]) -> command.remote.Command:
        """The API key as a file on a node; stdout is a new random word each time it is written."""
        inputs: SecretInputs = {"stack": pulumi.get_stack(), "name": "api_key"}
        return node.script(
            "api-key",
            "host.put_secret",
            inputs,
            timeout_s=30,
            secrets={"SPARK_SECRET": api_key},
            repair=node.plan.folder_gap,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[node.ready]),
        )


def container_args(
    spec: RankSpec,
    labels: Mapping[str, pulumi.Input[str]],
    *,
    folder: pulumi.Input[str],
    hub: pulumi.Input[str],
    gid_index: pulumi.Output[int | None] | None,
) -> docker.ContainerArgs:
    """A spec as Pulumi's arguments, with what no spec can know.

    That is: labels, where the stack's folder and the hub are on the node, and a pinned GID index.
    """
    env: pulumi.Input[list[str]] = env_list(spec.env)
    if gid_index is not None:
        env = gid_index.apply(lambda index: env_list({**spec.env, "NCCL_IB_GID_INDEX": str(index)}))
    all_labels = {**spec.labels, **labels}
    return docker.ContainerArgs(
        name=spec.name,
        image=spec.image,
        entrypoints=list(spec.entrypoint),
        command=list(spec.argv),
        envs=env,
        uploads=[docker.ContainerUploadArgs(file=file.path, content=file.content) for file in spec.uploads],
        mounts=[mount_args(mount, folder, hub) for mount in spec.mounts],
        devices=[docker.ContainerDeviceArgs(host_path=path) for path in spec.devices],
        gpus=spec.gpus,
        network_mode=spec.network_mode,
        ipc_mode=spec.ipc_mode,
        ulimits=[docker.ContainerUlimitArgs(**vars(limit)) for limit in spec.ulimits],
        restart=spec.restart,
        must_run=spec.must_run,
        destroy_grace_seconds=spec.stop_grace_s,
        log_driver=spec.log_driver,
        log_opts=spec.log_options,
        healthcheck=docker.ContainerHealthcheckArgs(**vars(spec.health_check)) if spec.health_check else None,
        labels=[docker.ContainerLabelArgs(label=label, value=value) for label, value in all_labels.items()],
    )


def env_list(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(env.items())]


def mount_args(mount: Mount, folder: pulumi.Input[str], hub: pulumi.Input[str]) -> docker.ContainerMountArgs:
    """`hub` is the path of the node's own hub cache, or the device of the head's export."""
    is_hub = mount.target == HUB
    source = mount.source and (hub if is_hub else pulumi.Output.concat(folder, "/", mount.source))
    volume = None
    if mount.volume:
        volume = docker.ContainerMountVolumeOptionsArgs(
            driver_name=mount.volume.driver,
            driver_options={**mount.volume.options, **({"device": hub} if is_hub else {})},
            labels=[
                docker.ContainerMountVolumeOptionsLabelArgs(label=label, value=value)
                for label, value in mount.volume.labels.items()
            ],
        )
    return docker.ContainerMountArgs(
        type=mount.type, target=mount.target, source=source, read_only=mount.read_only, volume_options=volume
    )
