"""One Spark: how it is reached, its docker provider, and our folder on it."""

import json
from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_command as command
import pulumi_docker as docker

from components.remote import connection, script_resource
from components.settings import ClusterSettings, NodeSettings
from components.ssh import Resolved, Target


class Node(pulumi.ComponentResource):
    """A Spark under its role's name.

    - the docker provider, over the ssh program
    - our folder on the node: made with its mark at first, removed at destroy, when no container of ours is left
    """

    role: str
    rank: int
    settings: NodeSettings
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
        resolved: Resolved,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        self.role = cluster.role(rank)
        super().__init__("spark:node:Node", self.role, None, opts)
        self.rank = rank
        self.settings = cluster.nodes[rank]
        self._offline = cluster.facts == "off"
        self._connection = connection(target, resolved, known=not self._offline)
        ssh_opts = [*target.options, *([] if resolved.multiplexed else target.multiplexing)]
        self.docker = docker.Provider(
            self.role, host=target.url, ssh_opts=ssh_opts, opts=pulumi.ResourceOptions(parent=self)
        )
        inputs = {"stack": pulumi.get_stack(), "hf_cache": self.settings.hf_cache}
        made = self.script(
            "folder",
            "our_folder",
            {**inputs, "action": "make"},
            timeout_s=60,
            delete_inputs={**inputs, "action": "remove"},
            opts=pulumi.ResourceOptions(parent=self),
        )
        paths = made.stdout.apply(lambda text: json.loads(text) if text else {})
        self.folder = paths.apply(lambda found: found["folder"])
        self.hub = paths.apply(lambda found: found["hub"])
        self.ready = made
        self.register_outputs({"role": self.role})

    def script(
        self,
        purpose: str,
        script: str,
        inputs: pulumi.Input[Mapping[str, Any]],
        *,
        timeout_s: int,
        opts: pulumi.ResourceOptions,
        **options: Any,
    ) -> command.remote.Command:
        """A script of scripts/node as a resource `<role>-<purpose>` on this node."""
        if self._offline:
            # a reviewer's machine has neither the keys nor the known hosts that the state was made with
            opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(ignore_changes=["connection"]))
        return script_resource(
            f"{self.role}-{purpose}",
            script,
            inputs,
            connection=self._connection,
            timeout_s=timeout_s,
            opts=opts,
            **options,
        )
