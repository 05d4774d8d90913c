"""What a node's dockerd says, read over its socket: whether it may be used, which containers matter, the image.

Reads only. Does not pass on environment variables and commands of containers, because they can hold keys. Runs on a
node: standard library only, Python 3.10.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from facts.document import ContainerFacts, DockerFacts, ImageFacts
from host import dockerd

LIMIT_S = 10.0
OVERRIDES = ("NCCL_", "VLLM_HOST_IP")
"""Beginnings of an image's variables that steer the fabric of a rank; those that end with _SOCKET_IFNAME do too."""


class Unusable(Exception):
    """dockerd cannot be used; `status` says which of three ways out applies: missing, denied or down."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def on_path(program: str) -> bool:
    """Whether a program is installed, even if the session's PATH leaves out the sbin folders."""
    folders = [*os.environ.get("PATH", "").split(":"), "/usr/bin", "/usr/sbin", "/usr/local/bin", "/snap/bin"]
    return any(os.access(f"{folder}/{program}", os.X_OK) for folder in folders if folder)


def get_json(path: str) -> Any:
    """The parsed answer of a GET; None for a 404. Raises Unusable, or OSError with dockerd's message."""
    where = dockerd.where()
    try:
        return dockerd.get(path, timeout_s=LIMIT_S)
    except dockerd.DockerError as error:
        if error.status == 404:
            return None
        raise OSError(f"dockerd answered {path} with {error.status}: {str(error)[:200]}") from None
    except PermissionError:
        raise Unusable("denied", f"{where} is closed to this user") from None
    except FileNotFoundError:
        installed = on_path("dockerd") or on_path("docker")
        raise Unusable("down" if installed else "missing", f"there is no {where}") from None
    except OSError as error:
        # the socket's own message names the call, not the daemon
        message = str(error)
        raise Unusable("down", message if message.startswith(where) else f"{where}: {message}") from None


def read_status(groups: list[str]) -> DockerFacts:
    """Whether dockerd can be used, and its version. `groups` are those of this session."""
    try:
        version, info = get_json("/version") or {}, get_json("/info") or {}
    except Unusable as error:
        detail = str(error)
        if error.status == "denied":
            listed = "docker" in groups
            detail += ": the session is in group docker, so look at the socket" if listed else _not_in_group()
        return DockerFacts(error.status, detail)
    server, root_dir, driver = version.get("Version"), info.get("DockerRootDir"), info.get("Driver")
    api, cli = version.get("ApiVersion"), shutil.which("docker") is not None
    return DockerFacts("ok", None, server, api, root_dir, driver, cli, elsewhere())


def elsewhere() -> str | None:
    """What sends docker's own program, but not us, to another daemon: its context, or a host that is no socket."""
    if host := os.environ.get("DOCKER_HOST"):
        return None if host.startswith("unix://") else f"DOCKER_HOST={host}"
    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    try:
        with open(f"{folder}/config.json", encoding="utf-8") as file:
            chosen = json.load(file).get("currentContext")
    except (OSError, ValueError, AttributeError):
        chosen = None
    context = os.environ.get("DOCKER_CONTEXT") or chosen
    return None if context in (None, "", "default") else f"docker context {context}"


def _not_in_group() -> str:
    """Why this user may not use the socket: not in the group, or not when this session began."""
    import grp
    import pwd

    user = pwd.getpwuid(os.getuid()).pw_name
    try:
        members = grp.getgrnam("docker").gr_mem
    except KeyError:
        return ": there is no group docker"
    if user in members:
        return f": {user} was added to group docker after this SSH connection began"
    return f": {user} is not in group docker"


def list_containers() -> list[dict[str, Any]]:
    """dockerd's own list of all its containers. Raises Unusable or OSError."""
    listed = get_json("/containers/json?all=1")
    assert isinstance(listed, list)
    return listed


def names_of(listed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Names by container id."""
    return {entry["Id"]: (entry.get("Names") or ["/?"])[0].lstrip("/") for entry in listed}


def published_ports(listed: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Name of the container that publishes each host port; containers in the host's network publish none."""
    names = names_of(listed)
    return {p["PublicPort"]: names[e["Id"]] for e in listed for p in e.get("Ports") or [] if p.get("PublicPort")}


def describe(listed: Sequence[Mapping[str, Any]]) -> list[ContainerFacts]:
    """The containers that matter to a stack, by name.

    Ours in any state (label spark.stack, or a name that begins with spark-), and each running one that has the GPU or
    runs vLLM. Passes on spark.* labels only.
    """
    facts: list[ContainerFacts] = []
    names = names_of(listed)
    for entry in listed:
        identity, name = entry["Id"], names[entry["Id"]]
        ours = "spark.stack" in (entry.get("Labels") or {}) or name.startswith("spark-")
        if not ours and entry.get("State") not in ("running", "paused", "restarting"):
            continue
        detail = get_json(f"/containers/{identity}/json")
        if not isinstance(detail, dict):
            continue  # removed since it was listed
        fact = _container(identity, name, detail)
        if ours or fact.gpu or fact.vllm:
            facts.append(fact)
    return sorted(facts, key=lambda fact: fact.name)


def _container(identity: str, name: str, detail: dict[str, Any]) -> ContainerFacts:
    config, state, host = detail.get("Config") or {}, detail.get("State") or {}, detail.get("HostConfig") or {}
    labels = config.get("Labels")
    return ContainerFacts(
        id=identity,
        name=name,
        running=state.get("Running") is True,
        labels={k: v for k, v in labels.items() if k.startswith("spark.")} if isinstance(labels, dict) else {},
        exit_code=state.get("ExitCode"),
        oom_killed=state.get("OOMKilled") is True,
        error=state.get("Error") or None,
        gpu=has_gpu(config, host),
        vllm="vllm" in json.dumps([config.get(key) for key in ("Image", "Entrypoint", "Cmd")]).lower(),
    )


def has_gpu(config: dict[str, Any], host: dict[str, Any]) -> bool:
    """Whether a container has the GPU: by device request (--gpus, CDI), by NVIDIA's runtime, or as a device."""
    asked = json.dumps([host.get("DeviceRequests"), host.get("Devices")]).lower()
    if "gpu" in asked or "nvidia" in asked:
        return True
    variables = config.get("Env")
    visible = [v for v in variables if v.startswith("NVIDIA_VISIBLE_DEVICES=")] if isinstance(variables, list) else []
    return host.get("Runtime") == "nvidia" and any(v.split("=")[1] not in ("", "void", "none") for v in visible)


def read_image(reference: str) -> ImageFacts:
    """Whether an image is on this node, for which machine, and which of its variables would steer the fabric."""
    image = get_json(f"/images/{reference}/json")
    if not isinstance(image, dict):
        return ImageFacts(present=False)
    names = [text.partition("=")[0] for text in (image.get("Config") or {}).get("Env") or []]
    steering = [name for name in names if name.startswith(OVERRIDES) or name.endswith("_SOCKET_IFNAME")]
    return ImageFacts(True, image.get("Architecture"), sorted(steering))
