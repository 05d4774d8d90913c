"""What a rank sees of its node's disk: kernels compiled for its image, the hub cache (read-only), our /tmp, secrets."""

from components.rank.spec import Mount, Volume
from components.settings.cluster import ClusterSettings
from patches import direction as direction_file
from patches.files import FOLDER
from rank.patch_steps import MOUNT

CACHE = "/cache/huggingface"
HUB = f"{CACHE}/hub"
ABLATION = f"{CACHE}/dspark-ablation"
"""Folder of the direction's file, where the recipe has it."""
SECRETS = "/run/spark"
NFS_OPTIONS = "nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600"
"""The recipe's mount options, without the address. hard: reads wait for a server that restarts, and do not fail."""


def mounts(settings: ClusterSettings, rank: int, stack: str, *, has_api_key: bool) -> tuple[Mount, ...]:
    """Our cache folder for this image, the hub inside it, and our /tmp, but not the user's hub token."""
    kernels = settings.image.digest.removeprefix("sha256:")[:12]
    cache = Mount("bind", CACHE, f"cache/{kernels}", read_only=False)
    tmp = Mount("bind", "/tmp", "tmp", read_only=False)
    secrets = (Mount("bind", SECRETS, "secrets", read_only=True),) if has_api_key else ()
    return (cache, hub_mount(settings, rank, stack), tmp, *secrets, *patches_mount(settings))


def patches_mount(settings: ClusterSettings) -> tuple[Mount, ...]:
    if not settings.patches:
        return ()
    files = Mount("bind", str(MOUNT), f"{FOLDER}/{settings.patches.digest}", read_only=True)
    direction = Mount("bind", ABLATION, direction_file.FOLDER, read_only=True)
    return (files, direction) if settings.patches.abliterated else (files,)


def hub_mount(settings: ClusterSettings, rank: int, stack: str) -> Mount:
    """The node's own hub cache, or the head's over NFS, which the container declares itself.

    The volume has no name, since Docker creates a named one that is missing again, empty. Docker refuses read_only on a
    volume without a name, so the mount option `ro` stands in for it.
    """
    if not settings.reads_over_nfs(rank):
        return Mount("bind", HUB, f"{settings.nodes[rank].hf_cache}/hub", read_only=True)
    head, (address, _) = settings.nodes[0], settings.link_to_head(rank)
    options = {"type": "nfs", "o": f"addr={address},{NFS_OPTIONS}", "device": f":{head.hf_cache}/hub"}
    # by its label, destroy finds it where an interrupted removal left it behind
    return Mount("volume", HUB, volume=Volume("local", options, {"spark.stack": stack}))
