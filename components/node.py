"""One Spark: how it is reached, its docker provider, and our folder on it."""

import json
from collections.abc import Mapping
from typing import Unpack

import pulumi
import pulumi_command as command
import pulumi_docker as docker

from components.facts.generation import Generation
from components.facts.node_plan import NodePlan
from components.remote import ScriptOptions, connection, script_resource
from components.settings.cluster import ClusterSettings
from components.settings.sections import NodeSettings
from components.ssh.target import Resolved, Target
from host.our_folder import Folder, FolderInputs


class Node(pulumi.ComponentResource):
    """A Spark under its role's name.

    - the docker provider, over the ssh program
    - our folder on the node: made with its marker first, removed by destroy when no container of ours is left
    """

    role: str
    rank: int
    settings: NodeSettings
    plan: NodePlan
    docker: docker.Provider
    folder: pulumi.Output[str]
    """Absolute path of our folder on the node."""
    hub: pulumi.Output[str]
    """Absolute path of the Hugging Face hub cache on the node."""

    def __init__(
        self,
        cluster: ClusterSettings,
        rank: int,
        target: Target,
        resolved: Resolved | None,
        plan: NodePlan,
        generation: Generation,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        self.role = cluster.role(rank)
        super().__init__("spark:node:Node", self.role, None, opts)
        self.rank = rank
        self.settings = cluster.nodes[rank]
        self.plan = plan
        self._generation = generation.name
        self._connection = connection(target, resolved)
        ssh_opts = [*target.options, *([] if resolved and resolved.multiplexed else target.multiplexing)]
        self.docker = docker.Provider(
            self.role, host=target.url, ssh_opts=ssh_opts, opts=pulumi.ResourceOptions(parent=self)
        )
        stack, hf_cache = pulumi.get_stack(), self.settings.hf_cache
        make: FolderInputs = {"action": "make", "stack": stack, "hf_cache": hf_cache, "new": False}
        new: FolderInputs = {**make, "new": True}
        remove: FolderInputs = {**make, "action": "remove"}
        made = self.script(
            "folder",
            "host.our_folder",
            new,
            timeout_s=120,
            repair=plan.folder_gap,
            update_inputs=make,
            delete_inputs=remove,
            # a repair replaces the resource: removing the old one last would undo it
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        paths: pulumi.Output[Folder] = made.stdout.apply(json.loads)
        self.folder = paths.apply(lambda printed: printed["folder"])
        self.hub = paths.apply(lambda printed: printed["hub"])
        self.ready = made
        self.register_outputs({"role": self.role})

    def script(
        self,
        purpose: str,
        script: str,
        inputs: Mapping[str, object],
        *,
        timeout_s: int,
        opts: pulumi.ResourceOptions,
        repair: str | None = None,
        **options: Unpack[ScriptOptions],
    ) -> command.remote.Command:
        """A script of scripts/node as a resource `<role>-<purpose>` on this node.

        `repair` says what the node lacks although the state has it: the script runs again, once in a generation.
        """
        if not repair:
            # the state keeps the last repair's reason; having none now is not a change
            opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(ignore_changes=["triggers"]))
        return script_resource(
            f"{self.role}-{purpose}",
            script,
            inputs,
            connection=self._connection,
            timeout_s=timeout_s,
            triggers=[f"{repair} (generation {self._generation})"] if repair else None,
            opts=opts,
            **options,
        )
