"""The checkpoint on one node: every file of one revision, before a rank may start."""

import pulumi

from components.facts import NodeFacts
from components.image import Image
from components.node import Node
from components.settings import ClusterSettings


class Checkpoint(pulumi.ComponentResource):
    """One node's copy of the model, fetched by huggingface_hub inside the runtime image, never removed.

    The step runs when the revision changes and when the facts say that files are missing; a whole copy costs nothing.
    """

    whole: pulumi.Output[bool]
    """Whether the step has proven every file of the index on this node."""

    def __init__(
        self,
        cluster: ClusterSettings,
        node: Node,
        image: Image,
        facts: NodeFacts | None,
        hf_token: pulumi.Output[str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("spark:checkpoint:Checkpoint", f"{node.role}-checkpoint", None, opts)
        wanted = cluster.checkpoint
        inputs = {
            "repo": wanted.repo,
            "revision": wanted.revision,
            "shards": wanted.shards,
            "size_gib": wanted.size_gib,
            "endpoint": wanted.endpoint,
            "encoding_file": wanted.encoding_file,
            "image": cluster.image.pinned,
            "python": cluster.image.python,
            "hf_cache": node.settings.hf_cache,
            "stack": pulumi.get_stack(),
        }
        self.complete = node.script(
            "checkpoint",
            "fetch_checkpoint",
            inputs,
            timeout_s=wanted.download_timeout_s,
            repair=facts.checkpoint_gap() if facts else None,
            secrets={"HF_TOKEN": hf_token} if hf_token else None,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[node.ready, image.pulled]),
        )
        # what a hub token could have touched is secret as a whole; that the step ended well is not
        self.whole = pulumi.Output.unsecret(self.complete.stdout.apply(lambda text: '"snapshot"' in text))
        self.register_outputs({"revision": wanted.revision})
