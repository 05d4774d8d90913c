"""The preflight's rules about startup patches: the right image, and files that are the lock's. Pure."""

from collections.abc import Iterator

from components.facts.finding import Finding, NodeView
from components.settings.cluster import ClusterSettings
from patches.files import way_out


def image_fits(cluster: ClusterSettings) -> Iterator[Finding]:
    """A patch finds its place by the text around it: in another image's vLLM that may be another place."""
    if cluster.patches is None:
        return
    images = cluster.patches.read().images
    if images and cluster.image.digest not in images:
        yield Finding(
            "error",
            "patches/lock",
            f"{cluster.patches.lock} was made for the image {', '.join(images)}, this stack runs "
            f"{cluster.image.digest}: take the profile's image, or a lock made for yours (scripts/spark patches check "
            "tries it), or list other_image under allow",
            "other_image",
        )


def patches_to_be_had(view: NodeView) -> Iterator[Finding]:
    if view.cluster.patches is None or view.facts.patches is None:
        return
    if lines := view.facts.patches.problems:
        for line in lines:
            yield view.error(f"patches: {line}")
        yield view.error(f"patches: {way_out(view.cluster.patches.source)}")
