"""The preflight's rules for one node: from the settings and its facts to findings. Pure."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from components.facts.checkpoint_plan import amount, missing_gib
from components.facts.finding import Finding, NodeView
from components.rank.spec import container_name
from facts.document import DockerFacts
from gid.members import Refusal as FabricRefusal
from hub.files import snapshot_of

GIB_KB = 1 << 20
NEAR_GIB = 1.5
"""Memory left for everything else, in GiB, below which a start is close to failing."""
DISK_MARGIN_GIB = 5
IMAGE_GIB = 25
"""Disk space that the pinned image takes when unpacked, in GiB, rounded up generously."""
BAD_KERNELS = ("7.0.0-1019",)
LEAST_DOCKER_API = (1, 45)
"""Of Docker 26: the first with mount options in a container's own mounts."""


def docker_usable(view: NodeView) -> Iterator[Finding]:
    docker = view.facts.docker or DockerFacts(status="down", detail="no answer")
    ways_out = {
        "missing": "Docker is not installed: install it and the NVIDIA container toolkit",
        "denied": f"Docker refuses user {view.facts.user}: add it to group docker and open a new connection",
        "down": "dockerd does not answer: start it (systemctl start docker)",
    }
    if docker.status != "ok":
        yield view.error(f"{ways_out.get(docker.status, docker.status)} ({docker.detail or 'no detail'})")
    elif view.facts.containers is None:
        # without them a serving pair would look like none, and be replaced
        yield view.error("the containers could not be read, so what runs there is unknown: try again")
    elif docker.elsewhere:
        yield view.error(
            f"{docker.elsewhere} sends the docker program to another daemon than /var/run/docker.sock, which these "
            "facts describe: docker context use default, and take DOCKER_HOST and DOCKER_CONTEXT out of its shell"
        )
    elif not docker.cli:
        yield view.error("the docker program is not on the PATH of an SSH session: install docker-cli, or extend PATH")
    elif docker.api_version and tuple(map(int, re.findall(r"\d+", docker.api_version)[:2])) < LEAST_DOCKER_API:
        yield view.error(
            f"Docker speaks API {docker.api_version}, but ranks need 1.45 for their mounts: update Docker", "docker_api"
        )


def fabric_usable(view: NodeView) -> Iterator[Finding]:
    node = view.cluster.nodes[view.rank]
    if view.facts.hcas is None or view.facts.interfaces is None:
        yield view.error("the GID table could not be read, so no rank could use the fabric: see the problems above")
        return
    try:
        resolution = view.facts.resolution(node, view.cluster.fabric.gid_index)
    except FabricRefusal as refusal:
        yield view.error(str(refusal))
        return
    for note in resolution["notes"]:
        yield view.warning(note)
    yield from gloo_address(view, node.socket_ifnames.gloo or node.ifname or resolution["ifname"])
    for name in sorted({node.ifname or "", *node.socket_ifnames.names} - {"", *view.facts.interfaces}):
        present = ", ".join(sorted(view.facts.interfaces))
        yield view.error(f"there is no netdev {name} (present: {present}): leave ifname out, or correct it")


def gloo_address(view: NodeView, ifname: str) -> Iterator[Finding]:
    """Gloo binds the first address of its netdev (seen with vLLM 0.25.1 by `make test-engine`), and has no setting."""
    fabric_ip = str(view.cluster.nodes[view.rank].fabric_ip)
    held = [address["ip"] for address in (view.facts.interfaces or {}).get(ifname, [])]
    if fabric_ip in held[1:]:
        yield view.warning(
            f"{ifname} has {held[0]} before {fabric_ip}, and Gloo binds a netdev's first address: unless the peers "
            f"reach it, the ranks never meet; take {held[0]} off, or add it after {fabric_ip}"
        )


def memory_enough(view: NodeView) -> Iterator[Finding]:
    memory, hardware = view.facts.memory, view.cluster.hardware
    if memory is None or not memory.MemTotal:
        yield view.error("/proc/meminfo could not be read")
        return
    total, available = memory.MemTotal / GIB_KB, (memory.MemAvailable or 0) / GIB_KB
    if total < hardware.memory_gib:
        yield view.warning(
            f"{total:.1f} GiB of memory, where a healthy node shows {hardware.memory_gib:g} or more: find what hides it"
        )
    utilization = view.cluster.engine.gpu_memory_utilization
    share, reserve = utilization * total, hardware.reserve_gib
    short = share + reserve - available
    if view.runs_our_rank or short < -NEAR_GIB:
        return
    text = (
        f"{available:.1f} GiB of memory are available; gpu_memory_utilization {utilization:g} takes {share:.1f} of "
        f"{total:.1f}, and the engine's processes {reserve:g} beside it: free memory on the node (`ps aux --sort -rss`)"
    )
    if short > 0:
        yield view.error(f"{text}, or lower the setting", "memory")
    else:
        yield view.warning(f"{text}; that leaves {-short:.1f} GiB for everything else")


def kernel_sound(view: NodeView) -> Iterator[Finding]:
    facts, memory = view.facts, view.facts.memory
    broken = memory is not None and (memory.CmaFree or 0) > (memory.CmaTotal or 0)
    listed = (facts.kernel or "").startswith(BAD_KERNELS) and not facts.kho_off
    if broken or listed:
        evidence = "CmaFree is above CmaTotal in /proc/meminfo" if broken else "a known fault of this version"
        yield view.error(
            f"kernel {facts.kernel} cannot register memory for RDMA ({evidence}), so NCCL would fail with ENOMEM: "
            "boot 6.17, or add kho=off to the kernel command line",
            "kernel",
        )


def architecture_fits(view: NodeView) -> Iterator[Finding]:
    names = {"aarch64": "arm64", "x86_64": "amd64"}
    expected = view.cluster.hardware.architecture
    machine = names.get(view.facts.machine or "", view.facts.machine)
    if machine and machine != expected:
        yield view.error(f"this node is {machine}, but the stack is for {expected}: check that nodes[].ssh is a Spark")
    image = view.facts.image
    if image and image.present and image.architecture and image.architecture != expected:
        yield view.error(
            f"the image is for {image.architecture}, but this node is {expected}: use the digest for {expected}"
        )


def disk_enough(view: NodeView) -> Iterator[Finding]:
    disks = view.facts.disk
    if disks is None or disks.hf_cache is None:
        yield view.error("the disk of the Hugging Face cache could not be read")
        return
    cache, checkpoint = disks.hf_cache, view.cluster.checkpoint
    model = snapshot_of(Path(cache.path) / "hub", checkpoint.repo, checkpoint.revision).parent.parent
    if cache.unwritable and Path(cache.unwritable).is_relative_to(model):
        yield view.warning(
            f"{cache.unwritable} belongs to another user: the checkpoint's step will give it to {view.facts.user}"
        )
    elif cache.unwritable:
        yield view.error(f"{view.facts.user} cannot write to {cache.unwritable}: chown it, or set hf_cache")
    missing = 0.0 if view.cluster.reads_over_nfs(view.rank) else missing_gib(view.cluster, view.facts)
    size = checkpoint.size_gib
    # a small checkpoint, such as the lab's, needs no larger margin than its own size
    margin = min(DISK_MARGIN_GIB, size)
    free = cache.free_bytes / 2**30
    if missing and free < missing + margin:
        yield view.error(
            f"the checkpoint lacks {amount(missing)} on this node, and {cache.path} has {amount(free)} free, of which "
            f"{amount(margin)} must stay free: make room (scripts/spark prune lists what is removable), "
            "or set hf_cache to a larger disk"
        )
    docker = disks.docker_root
    if (
        docker
        and view.facts.image
        and not view.facts.image.present
        and size > 1
        and docker.free_bytes / 2**30 < IMAGE_GIB
    ):
        yield view.error(
            f"the image still has to be pulled and needs about {IMAGE_GIB} GiB, but {docker.path} has "
            f"{docker.free_bytes / 2**30:.1f} GiB free: make room (docker system df)"
        )


def checkpoint_reachable(view: NodeView) -> Iterator[Finding]:
    """What a step would find out only after minutes: a folder that no container sees, a hub that refuses."""
    facts, settings = view.facts.checkpoint, view.cluster.checkpoint
    if facts is None or view.cluster.reads_over_nfs(view.rank):
        return
    if facts.outside:
        yield view.error(
            f"the model's folder is a link to {facts.outside}, outside the cache, where no container can follow it: "
            "set hf_cache to the cache on that disk"
        )
    error = facts.hub_error
    if error is None or view.facts.job_runs(view.stack):
        return
    hub, page = f"the hub {settings.endpoint}", f"{settings.endpoint}/{settings.repo}"
    if error.status is None:
        yield view.error(
            f"{hub} cannot be reached from this node ({error.message}), and the checkpoint is not verified "
            f"({view.facts.checkpoint_gap()}): connect the node to the internet, or correct checkpoint.endpoint"
        )
    elif error.code == "RepoNotFound":
        if not view.has_hf_token:
            yield view.error(
                f"{hub} has no repository {settings.repo} that it shows without an account (status {error.status}): "
                "correct checkpoint.repo, or for a private one pulumi config set --secret hf_token ..."
            )
    elif error.status in (401, 403):
        if not view.has_hf_token:
            yield view.error(
                f"{hub} does not give out {settings.repo} without an account (status {error.status}): accept its "
                f"licence at {page}, then pulumi config set --secret hf_token ..."
            )
    elif error.status == 404:
        yield view.error(
            f"{hub} has no revision {settings.revision} of {settings.repo} with an index ({error.message}): compare "
            f"checkpoint.repo and checkpoint.revision with {page}"
        )
    else:
        yield view.warning(f"{hub} answers with status {error.status} ({error.message}): the download will wait for it")


def ports_free(view: NodeView) -> Iterator[Finding]:
    for listener in view.facts.listeners or []:
        # only root sees who holds a port: our rank's may have no holder in the facts
        our_rank = view.runs_our_rank and view.rank == 0 and not listener.container and not listener.pid
        if listener.container not in view.our_containers and not our_rank:
            holder = listener.container and f"container {listener.container}"
            holder = holder or (
                f"{listener.process} (pid {listener.pid})" if listener.pid else "a process of another user"
            )
            setting = "engine.port" if listener.port == view.cluster.engine.port else "engine.master_port"
            yield view.error(
                f"port {listener.port} is held by {holder} on {listener.address}: stop it, or change {setting}"
            )


def names_ours(view: NodeView) -> Iterator[Finding]:
    name = container_name(view.stack, view.rank)
    for container in view.facts.containers or []:
        if container.name == name and container.labels.get("spark.stack") != view.stack:
            yield view.error(
                f"container {name} exists without our label, so it is not ours to replace: rename or remove it"
            )


def gpu_unshared(view: NodeView) -> Iterator[Finding]:
    for container in view.facts.containers or []:
        stack = container.labels.get("spark.stack")
        # a checkpoint job runs the same image, without the GPU
        holds = container.gpu or (container.vllm and "spark.job" not in container.labels)
        if container.running and stack != view.stack and holds:
            whose = f"of stack {stack}" if stack else "not ours"
            yield view.error(
                f"container {container.name} ({whose}) holds the GPU's memory: stop it first", "foreign_gpu"
            )
    for app in view.facts.gpu.apps if view.facts.gpu else []:
        if app.container not in view.our_containers and not (app.container is None and view.runs_our_rank):
            used = f", {app.used_mib:,} MiB" if app.used_mib else ""
            yield view.error(
                f"process {app.name} (pid {app.pid}{used}) holds the GPU's memory: stop it first", "foreign_gpu"
            )


def host_notes(view: NodeView) -> Iterator[Finding]:
    if view.facts.earlyoom:
        yield view.warning(
            "earlyoom runs and may kill the engine at its planned memory use: stop it, or exclude vllm from it"
        )
    # every rank overrides the interface names and the host's address
    inherited = [
        name
        for name in (view.facts.image.env if view.facts.image else [])
        if not name.endswith(("_SOCKET_IFNAME", "VLLM_HOST_IP"))
    ]
    if inherited:
        yield view.warning(
            f"the image itself sets {', '.join(inherited)}: override it in fabric.nccl unless you want its value"
        )
    for problem in view.facts.problems:
        yield view.warning(f"could not read {problem.probe}: {problem.error}")


NODE_RULES: tuple[Callable[[NodeView], Iterator[Finding]], ...] = (
    docker_usable,
    fabric_usable,
    architecture_fits,
    memory_enough,
    kernel_sound,
    disk_enough,
    checkpoint_reachable,
    ports_free,
    names_ours,
    gpu_unshared,
    host_notes,
)
