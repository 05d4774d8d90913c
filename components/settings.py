"""What a stack file may say: `spark-stack:cluster`, validated whole, every problem in one refusal.

Pure: no SSH, no network, no clock. What must be asked of a node is a fact (components/facts.py).
Secrets are never part of this tree; they are stack secrets of their own (SECRETS below).
"""

import re
from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from components.base import PROJECT_DIR, Settings, SettingsError, complaints, one_line
from components.engine_settings import EngineSettings

PROFILES_DIR = Path(__file__).parent / "profiles"
SECRETS = ("api_key", "hf_token")
"""Stack secrets (`pulumi config set --secret NAME`): the API key clients send, the hub token for the download."""

PLACEHOLDER = re.compile(
    r"change.?me|^<.*>$|head-roce-ip|worker-roce-ip|enpXsYfZ|^(head|worker)_(node_)?ip$", re.IGNORECASE
)
SSH_TARGET = re.compile(r"(?:(?P<user>[^@\s:/]+)@)?(?P<host>\[[0-9a-fA-F:.]+\]|[^@\s:/\[\]]+)(?::(?P<port>\d{1,5}))?")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def refuse_placeholder(value: str) -> str:
    if PLACEHOLDER.search(value):
        raise ValueError(f"{value!r} is a placeholder from an example: put this node's own value here")
    return value


class NodeSettings(Settings):
    """One DGX Spark. Its place in the list is its rank: the first is the head."""

    ssh: str
    """SSH target on the management network: user@host, user@host:port, or an alias of the SSH config."""
    fabric_ip: IPv4Address
    """IPv4 address of this node on the QSFP link. The ranks meet and exchange over it."""
    ifname: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,15}$")
    """Netdev of the fabric (NCCL_, TP_ and GLOO_SOCKET_IFNAME). Default: the one that holds fabric_ip at each start."""
    hca: str | None = None
    """NCCL_IB_HCA selector. Default: the HCA of fabric_ip and its PCIe twin, found at each start."""
    hf_cache: str = "~/.cache/huggingface"
    """Hugging Face cache on this node; ~ is the home of the SSH user there, not of the control host."""

    @field_validator("ssh")
    @classmethod
    def is_an_ssh_target(cls, value: str) -> str:
        refuse_placeholder(value)
        match = SSH_TARGET.fullmatch(value.removeprefix("ssh://"))
        if not match or (match["port"] and not 0 < int(match["port"]) < 65536):
            raise ValueError(
                f"{value!r} is not an SSH target: write user@host, user@host:port or an alias of your SSH config"
            )
        return value.removeprefix("ssh://")

    @field_validator("fabric_ip", mode="before")
    @classmethod
    def is_written_out(cls, value: object) -> object:
        # for Python a bare number is an address too
        return str(value) if isinstance(value, int) else value

    @field_validator("fabric_ip")
    @classmethod
    def is_a_host_address(cls, value: IPv4Address) -> IPv4Address:
        if value.is_loopback or value.is_multicast or value.is_unspecified:
            raise ValueError(f"{value} is no address of a QSFP link: give the IPv4 of this node's fabric netdev")
        return value

    @field_validator("ifname", "hca")
    @classmethod
    def is_a_real_name(cls, value: str | None) -> str | None:
        return value if value is None else refuse_placeholder(value)

    @field_validator("hf_cache")
    @classmethod
    def is_a_path_on_the_node(cls, value: str) -> str:
        if not value.startswith(("/", "~/")) or ".." in value.split("/"):
            raise ValueError(f"{value!r} is not a path on the node: start it with / or ~/")
        return value


class ImageSettings(Settings):
    """The runtime image, by digest."""

    reference: str
    """repository[:tag]@sha256:digest. The tag is for people; the digest is what is pulled."""
    digest_file: Path | None = None
    """File of the project that holds the digest of an image built here (as `skopeo copy --digestfile` writes it)."""
    python: str = "/usr/bin/python3"
    """Interpreter inside the image."""
    encoding_target: str = "/usr/local/lib/python3.12/dist-packages/vllm/tokenizers/deepseek_v4_encoding.py"
    """Where the image keeps its prompt encoder; the checkpoint's own is copied over it at each start."""
    pull_timeout_s: int = Field(default=7200, ge=60)
    """Limit of one node's pull, in seconds; the image is about 20 GB."""

    @property
    def repository(self) -> str:
        """Registry and name, without tag and digest."""
        name = self.reference.split("@")[0]
        head, _, last = name.rpartition("/")
        return f"{head}/{last.split(':')[0]}" if head else last.split(":")[0]

    @property
    def digest(self) -> str:
        return self.reference.partition("@")[2]

    @property
    def pinned(self) -> str:
        """What the nodes pull and run: repository@sha256:digest."""
        return f"{self.repository}@{self.digest}"

    @model_validator(mode="after")
    def is_pinned_by_digest(self) -> Self:
        if not DIGEST.fullmatch(self.digest):
            raise ValueError(
                f"reference: {self.reference!r} has no @sha256: digest, so the two nodes could run different images: "
                "add the digest (`docker buildx imagetools inspect IMAGE` prints it)"
            )
        return self


class CheckpointSettings(Settings):
    """The model's files: one revision of one repository, whole on every node."""

    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    """Hugging Face repository, owner/name."""
    revision: str
    """Commit of the repository, 40 hex digits."""
    shards: int = Field(ge=1)
    """Number of safetensors shards that the index must name."""
    size_gib: float = Field(gt=0)
    """Size of a full copy in GiB, for the disk check before a download."""
    endpoint: str = Field(default="https://huggingface.co", pattern=r"^https?://[^\s/]+$")
    """Hub to download from, as the nodes reach it."""
    download_timeout_s: int = Field(default=12 * 3600, ge=60)
    """Limit of one node's download, in seconds."""
    encoding_file: str = "encoding/encoding_dsv4.py"
    """File of the snapshot that replaces the image's own prompt encoder."""

    @field_validator("revision")
    @classmethod
    def is_a_commit(cls, value: str) -> str:
        if not re.fullmatch(r"[0-9a-f]{40}", value):
            raise ValueError(
                f"{value!r} is not a commit: branches move, so give its 40 hex digits "
                "(`git ls-remote https://huggingface.co/OWNER/NAME main` prints them)"
            )
        return value


class FabricSettings(Settings):
    """The QSFP link, for all nodes."""

    gid_index: Literal["resolve", "pin", "unset"] | int = "resolve"
    """resolve: each rank finds its index at every start. pin: the looked-up index is fixed in the container.
    unset: usable rows are proven, NCCL chooses. A number forces it on every node."""
    nccl: dict[str, str | int] = Field(default={})
    """Further NCCL_ variables for all ranks, such as NCCL_GIN_ENABLE: 0."""

    @field_validator("gid_index", mode="before")
    @classmethod
    def is_a_plain_decimal(cls, value: object) -> object:
        # NCCL reads 08 as octal and 3abc as 3: only the canonical form can mean one thing
        if isinstance(value, bool) or (isinstance(value, int) and not 0 <= value < 1024):
            raise ValueError(f"{value!r} is no GID index: a table has rows 0 to 1023")
        if isinstance(value, str) and value not in ("resolve", "pin", "unset"):
            raise ValueError(f"{value!r} is no GID index: use resolve, pin, unset or a plain number such as 3")
        return value

    @field_validator("nccl")
    @classmethod
    def are_set_nccl_variables(cls, value: dict[str, str | int]) -> dict[str, str | int]:
        for name, setting in value.items():
            if not re.fullmatch(r"NCCL_[A-Z0-9_]+", name):
                raise ValueError(f"{name} is no NCCL variable: other variables go into engine.extra_env")
            if name in OWNED_NCCL:
                raise ValueError(f"{name} is set per node by the program: use {OWNED_NCCL[name]}")
            if setting == "":
                raise ValueError(f"{name} is empty, which hides /etc/nccl.conf: leave the key out to unset it")
        return value


OWNED_NCCL = {
    "NCCL_IB_HCA": "nodes[].hca",
    "NCCL_SOCKET_IFNAME": "nodes[].ifname",
    "NCCL_IB_GID_INDEX": "fabric.gid_index",
}


class HardwareSettings(Settings):
    """What a node must be. The defaults are a DGX Spark's; the lab's pair says otherwise."""

    architecture: Literal["arm64", "amd64"] = "arm64"
    """Machine architecture that node and image must share."""
    memory_gib: float = Field(default=119, gt=0)
    """Least memory a healthy node shows, in GiB (a Spark has 121)."""


class ReadinessSettings(Settings):
    """How long `up` waits for the engine, and what proves it ready."""

    timeout_s: int = Field(default=3600, ge=30)
    """Limit from container start to a served API, in seconds. A cold start compiles kernels, about 11 minutes."""
    completion_timeout_s: int = Field(default=600, ge=10)
    """Limit of the first completion, in seconds."""
    warmup_passes: int = Field(default=8, ge=0, le=50)
    """Most warm-up completions after the first one."""
    warmup_max_tokens: int = Field(default=256, ge=8)
    """Length of a warm-up completion, in tokens."""
    warmup_agree: float = Field(default=0.05, gt=0, lt=1)
    """Warm-up ends when two passes in a row differ by less than this share."""


class ClusterSettings(Settings):
    """One pair of Sparks, one endpoint: the value of `spark-stack:cluster`."""

    profile: str
    """Name of a file in components/profiles: image, model and engine settings that were tested together."""
    nodes: list[NodeSettings] = Field(min_length=2)
    """The Sparks in rank order; the first is the head."""
    ssh_config: Path | None = None
    """SSH config file to use instead of ~/.ssh/config, relative to the project."""
    api_host: str | None = None
    """Name or address under which clients reach the head, for the output api_url when the API binds a wildcard."""
    facts: Literal["on", "off"] = "on"
    """off: preview from settings alone, for a reviewer who cannot reach the nodes."""
    image: ImageSettings
    checkpoint: CheckpointSettings
    engine: EngineSettings
    fabric: FabricSettings = FabricSettings()
    hardware: HardwareSettings = HardwareSettings()
    readiness: ReadinessSettings = ReadinessSettings()
    allow: frozenset[Literal["memory", "kernel", "foreign_gpu", "high_utilization", "docker_api"]] = frozenset()
    """Preflight rules that only warn on this stack."""

    @field_validator("facts", mode="before")
    @classmethod
    def on_and_off_are_words(cls, value: object) -> object:
        # YAML 1.1 reads a bare on/off as a boolean
        return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value

    @field_validator("nodes")
    @classmethod
    def nodes_differ(cls, value: list[NodeSettings]) -> list[NodeSettings]:
        for field in ("ssh", "fabric_ip"):
            values = [str(getattr(node, field)) for node in value]
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"two nodes have {field} {twice[0]}: each Spark needs its own")
        return value

    @model_validator(mode="after")
    def two_ranks(self) -> Self:
        if len(self.nodes) not in self.engine.tensor_parallel_sizes:
            allowed = " or ".join(map(str, self.engine.tensor_parallel_sizes))
            raise ValueError(
                f"nodes: {len(self.nodes)} nodes, but profile {self.profile} is tested with {allowed}: list {allowed}"
            )
        return self

    def role(self, rank: int) -> str:
        """The name that a rank's resources start with: head, worker, worker2 and so on."""
        return "head" if rank == 0 else "worker" if rank == 1 else f"worker{rank}"


def profiles() -> list[str]:
    return sorted(path.stem for path in PROFILES_DIR.glob("*.yaml"))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`; mappings merge key by key, everything else is taken whole."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result


def with_profile(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The stack's values over its profile's, and what is wrong with the choice of profile."""
    name = raw.get("profile")
    if name not in profiles():
        found = "missing" if name is None else f"there is no profile {name!r}"
        return dict(raw), [one_line(f"profile: {found}: use one of {', '.join(profiles())}")]
    return merged(yaml.safe_load((PROFILES_DIR / f"{name}.yaml").read_text()), raw), []


NO_DIGEST = f"sha256:{0:064d}"
"""Stands for the digest of an image that was not built yet, where nothing is pulled."""


def with_digest(raw: dict[str, Any], project_dir: Path, *, needed: bool) -> list[str]:
    """Put the digest of `image.digest_file` into the reference; returns what is wrong with that file."""
    image = raw.get("image")
    if not isinstance(image, dict) or not isinstance(image.get("digest_file"), str):
        return []
    path = project_dir / image["digest_file"]
    try:
        digest = path.read_text().strip()
    except FileNotFoundError:
        digest = "" if needed else NO_DIGEST
    except (OSError, ValueError):  # a folder, a name that no file can have, bytes that are no text
        digest = ""
    if not DIGEST.fullmatch(digest):
        found = f"holds {digest[:40]!r}, no sha256: digest" if digest else "is no file with a sha256: digest"
        hint = "build the image first (for the lab: lab/lab up)"
        return [one_line(f"image/digest_file: {image['digest_file']} {found}: {hint}")]
    raw["image"] = {**image, "reference": f"{str(image.get('reference', '')).split('@')[0]}@{digest}"}
    return []


def load(
    raw: object, *, has_api_key: bool = False, project_dir: Path = PROJECT_DIR, need_digest: bool = True
) -> ClusterSettings:
    """Settings from the parsed value of `spark-stack:cluster`. `need_digest` false is for reading without pulling.

    Raises SettingsError with one line a problem, each `path: complaint, way out`.
    """
    if not isinstance(raw, Mapping):
        raise SettingsError(["(top): spark-stack:cluster is missing or no mapping: start from Pulumi.example.yaml"])
    values, profile_problems = with_profile(raw)
    digest_problems = with_digest(values, project_dir, needed=need_digest)
    problems = profile_problems + digest_problems
    settings = None
    try:
        settings = ClusterSettings.model_validate(values)
    except ValidationError as error:
        problems += complaints(
            detail for detail in error.errors() if not repeats(detail, bool(profile_problems), bool(digest_problems))
        )
    if settings:
        problems += open_api(settings, has_api_key)
    if problems or settings is None:
        raise SettingsError(problems)
    return settings


def repeats(detail: Mapping[str, Any], no_profile: bool, no_digest: bool) -> bool:
    """Whether a complaint only follows from a profile or a digest that is not there."""
    top = detail["loc"][0] if detail["loc"] else ""
    filled = no_profile and detail["type"] == "missing" and top in ("image", "checkpoint", "engine")
    return filled or (no_profile and top == "profile") or (no_digest and top == "image")


def open_api(settings: ClusterSettings, has_api_key: bool) -> list[str]:
    engine = settings.engine
    if engine.host in ("127.0.0.1", "::1", "localhost") or has_api_key or engine.allow_unauthenticated_lan:
        return []
    return [
        f"engine/host: {engine.host} opens the API to the network without a key: set one "
        "(pulumi config set --secret api_key ...), bind 127.0.0.1, or say engine.allow_unauthenticated_lan: true"
    ]
