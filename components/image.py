"""The runtime image on one node, by digest."""

import pulumi
import pulumi_docker as docker

from components.node import Node
from components.settings.cluster import ClusterSettings
from host.pull_image import ImageInputs


class Image(pulumi.ComponentResource):
    """The image, pulled and kept.

    - a pull on the node, which shows its progress and the cause when the registry refuses
    - the docker image that the pull left, from which the ranks are created; destroy keeps it
    """

    def __init__(self, cluster: ClusterSettings, node: Node, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("spark:image:Image", f"{node.role}-image", None, opts)
        reference, limit_s = cluster.image.pinned, cluster.image.pull_timeout_s
        inputs: ImageInputs = {
            "image": reference,
            "architecture": cluster.hardware.architecture,
            "stack": pulumi.get_stack(),
        }
        pull = node.script(
            "image-pull",
            "host.pull_image",
            inputs,
            timeout_s=limit_s,
            repair=node.plan.image_gap,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[node.ready]),
        )
        image = docker.RemoteImage(
            f"{node.role}-image",
            name=reference,
            keep_locally=True,
            opts=pulumi.ResourceOptions(parent=self, provider=node.docker, depends_on=[pull]),
        )
        # ranks take the reference itself, not image.name, since a preview's diff must show it
        self.pulled = image
        self.register_outputs({"image": reference})
