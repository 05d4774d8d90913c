"""The specs of all ranks, from settings and the shipped scripts: the one place that assembles a rank."""

import json

from components.facts.generation import PATCHES
from components.rank.argv import serve_argv
from components.rank.env import ifnames, rank_env
from components.rank.mounts import mounts
from components.rank.spec import HealthCheck, RankSpec, Upload, container_name
from components.settings.cluster import ClusterSettings
from loader import payload
from rank.start import StartInputs

HOME = "/opt/spark"
"""Folder in the container of rank.py and of its inputs."""


def rank_specs(settings: ClusterSettings, stack: str, *, has_api_key: bool) -> list[RankSpec]:
    """What every rank is started from, in rank order."""
    return [
        RankSpec(
            name=container_name(stack, rank),
            image=settings.image.pinned,
            entrypoint=(settings.image.python, f"{HOME}/rank.py"),
            argv=tuple(serve_argv(settings, rank)),
            env=rank_env(settings, rank),
            uploads=uploads(settings, rank),
            mounts=mounts(settings, rank, stack, has_api_key=has_api_key),
            labels={"spark.stack": stack, "spark.rank": str(rank), **patch_label(settings)},
            health_check=health_check(settings) if rank == 0 else None,
        )
        for rank in range(len(settings.nodes))
    ]


def uploads(settings: ClusterSettings, rank: int) -> tuple[Upload, ...]:
    """rank/start.py with its imports, and its inputs."""
    files = {
        "rank.py": payload("rank.start"),
        "start.json": json.dumps(start_inputs(settings, rank), indent=1, sort_keys=True),
    }
    return tuple(Upload(f"{HOME}/{name}", text) for name, text in sorted(files.items()))


def start_inputs(settings: ClusterSettings, rank: int) -> StartInputs:
    """What rank.py needs besides its command: the content of start.json."""
    node, checkpoint = settings.nodes[rank], settings.checkpoint
    return {
        "rank": rank,
        "fabric_ip": str(node.fabric_ip),
        "hca": node.hca,
        "links": [str(link) for link in node.links],
        "ifnames": ifnames(node),
        "gid_index": settings.fabric.gid_index,
        "repo": checkpoint.repo,
        "revision": checkpoint.revision,
        "shards": checkpoint.shards,
        "encoding_file": checkpoint.encoding_file,
        "encoding_target": settings.image.encoding_target,
        "patches": [patch.step() for patch in settings.patches.patches] if settings.patches else [],
        "patch_limit_s": settings.patches.limit_s if settings.patches else 0,
    }


def patch_label(settings: ClusterSettings) -> dict[str, str]:
    """Each patch with the first digits of its hash, so that the next preview can name those that changed."""
    if not settings.patches:
        return {}
    return {PATCHES: " ".join(f"{patch.name}@{patch.sha256[:8]}" for patch in settings.patches.patches)}


def health_check(settings: ClusterSettings) -> HealthCheck:
    """GET /health, for `docker ps`; it means alive, not ready. A worker has no HTTP server, so it gets no check."""
    url = f"{settings.engine.local_url}/health"
    probe = f"import urllib.request as r; r.urlopen({url!r}, timeout=5)"
    tests = ("CMD", settings.image.python, "-c", probe)
    return HealthCheck(tests, interval="30s", timeout="10s", start_period="8m0s", retries=3)
