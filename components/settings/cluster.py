"""What a stack file may say: `spark-stack:cluster`, validated as a whole, with every problem in one refusal.

Pure: no SSH, no network, no clock. What must be read from a node is a fact (components/facts/).
Secrets are never part of this tree: they are stack secrets of their own (SECRETS below).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from components.settings import ring
from components.settings.base import PROJECT_DIR, Settings, SettingsError, at_field, complaints, one_line
from components.settings.engine_settings import EngineSettings
from components.settings.patches import DIRECTION, PatchSettings
from components.settings.profile import profiles, read_profile, with_profile
from components.settings.sections import (
    DIGEST,
    CheckpointSettings,
    FabricSettings,
    HardwareSettings,
    ImageSettings,
    NodeSettings,
)
from patches.files import PatchError

SECRETS = ("api_key", "hf_token")
"""Stack secrets (`pulumi config set --secret NAME`): the API key clients send, the hub token for the download."""
USABLE_SECRET = re.compile(r"(?!-)[!-\[\]-~]+")
"""vLLM takes a leading - for a flag and a key's backslash for an escape. An HTTP header cannot carry the other
characters, and the HTTP client would print the whole header in its complaint."""


class ReadinessSettings(Settings):
    """How long `up` waits for the engine, and what shows that it is ready."""

    timeout_s: int = Field(default=3600, ge=30)
    """Limit from container start to a served API, in seconds. A cold start compiles kernels for about 11 minutes."""
    completion_timeout_s: int = Field(default=600, ge=10)
    """Limit of the first completion, in seconds."""
    warmup_passes: int = Field(default=8, ge=0, le=50)
    """Most passes at the end of the warm-up; 0: no warm-up at all."""
    warmup_max_tokens: int = Field(default=256, ge=8)
    """Length of a warm-up completion, in tokens."""
    warmup_agree: float = Field(default=0.05, gt=0, lt=1)
    """The warm-up ends when two passes in a row differ by less than this share."""
    warmup_limit_s: int = Field(default=1800, ge=1)
    """Limit of the whole warm-up, in seconds; the pair serves meanwhile, and also when it ends early."""


class ClusterSettings(Settings):
    """One pair of Sparks, one endpoint: the value of `spark-stack:cluster`."""

    profile: str
    """Name of a file in components/settings/profiles: image, model and engine settings, tested together."""
    nodes: list[NodeSettings] = Field(min_length=2)
    """The Sparks in rank order; the first is the head."""
    ssh_config: Path | None = None
    """SSH config file to use instead of ~/.ssh/config, relative to the project."""
    api_host: str | None = Field(default=None, pattern=r"^[0-9A-Za-z.:-]+$")
    """Name or address under which clients reach the head. Default: the bound address, or for a wildcard the host that
    `ssh` knows the head by."""
    facts: Literal["on", "off"] = "on"
    """off: preview from the settings alone, for a reviewer who cannot reach the nodes."""
    image: ImageSettings
    checkpoint: CheckpointSettings
    engine: EngineSettings
    patches: PatchSettings | None = None
    """Startup patches of the image's vLLM; off: none."""
    fabric: FabricSettings = FabricSettings()
    hardware: HardwareSettings = HardwareSettings()
    readiness: ReadinessSettings = ReadinessSettings()
    allow: frozenset[Literal["memory", "kernel", "foreign_gpu", "high_utilization", "docker_api", "other_image"]] = (
        frozenset()
    )
    """Preflight rules that only warn on this stack."""

    @field_validator("facts", mode="before")
    @classmethod
    def on_and_off_are_words(cls, value: object) -> object:
        # YAML 1.1 reads a bare on/off as a boolean
        return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value

    @field_validator("patches", mode="before")
    @classmethod
    def off_is_none(cls, value: object) -> object:
        return None if value in (False, "off") else value

    @field_validator("nodes")
    @classmethod
    def nodes_differ(cls, value: list[NodeSettings]) -> list[NodeSettings]:
        for field in ("ssh", "fabric_ip"):
            values = [str(getattr(node, field)) for node in value]
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"two nodes have {field} {twice[0]}: each Spark needs its own")
        return value

    @model_validator(mode="after")
    def drafts_suit_the_checkpoint(self) -> Self:
        if self.profile not in profiles():
            return self  # refused by with_profile
        drafts, k = read_profile(self.profile)[1].drafts, self.engine.num_speculative_tokens
        if not drafts.fit(k):
            fitting = " or ".join(map(str, drafts.near(k)))
            raise at_field(
                "engine/num_speculative_tokens",
                f"{k} does not suit this checkpoint's drafter: {drafts.why}: use {fitting}",
            )
        return self

    @model_validator(mode="after")
    def links_lead_somewhere(self) -> Self:
        if self.is_ring and (problem := ring.broken_link(self.nodes)):
            raise at_field(f"nodes/{problem.rank}/links", problem.text)
        return self

    @model_validator(mode="after")
    def ranks_divide_the_model(self) -> Self:
        count, sizes = len(self.nodes), self.engine.tensor_parallel_sizes
        if count in sizes or ring.runs_padding(count, self.patches):
            return self
        if count == ring.PADDED_NODES:
            raise at_field("nodes", ring.NEEDS_PADDING)
        allowed = " or ".join(map(str, sizes))
        raise at_field("nodes", f"{count} nodes, but profile {self.profile} is tested with {allowed}: list {allowed}")

    @property
    def is_ring(self) -> bool:
        """Whether the nodes' links are subnets of their own, beside the network where the ranks meet."""
        return any(node.links for node in self.nodes)

    def link_to_head(self, rank: int) -> tuple[str, str]:
        """The head's address and this rank's on the network that large data takes between them."""
        head, node = self.nodes[0], self.nodes[rank]
        shared = [(theirs, own) for theirs in head.links for own in node.links if ring.same_subnet(theirs, own)]
        theirs, own = shared[0] if shared else (head.fabric_ip, node.fabric_ip)
        return str(theirs), str(own)

    def reads_over_nfs(self, rank: int) -> bool:
        """Whether this rank reads the head's checkpoint instead of a copy of its own."""
        return rank > 0 and self.checkpoint.mode == "nfs"

    def role(self, rank: int) -> str:
        """The name that a rank's resources start with: head, worker, worker2 and so on."""
        return "head" if rank == 0 else "worker" if rank == 1 else f"worker{rank}"


def lacks_patches(settings: ClusterSettings) -> list[str]:
    """What stops a stack whose checkpoint needs patches that it does not start with."""
    needs = read_profile(settings.profile)[1].needs_patches
    runs = {patch.name for patch in settings.patches.patches} if settings.patches else set()
    if not (lacking := [name for name in needs.patches if name not in runs]):
        return []
    return [f"patches: {needs.why}: take {' and '.join(lacking)} back in, or another profile"]


def patch_problems(settings: ClusterSettings, has_hf_token: bool) -> list[str]:
    """Also what is wrong with the files in a folder of this machine, before anything is declared."""
    problems = lacks_patches(settings)
    if settings.patches and settings.patches.abliterated and not has_hf_token:
        page = f"{settings.checkpoint.endpoint}/{DIRECTION['repository']}"
        problems.append(
            f"patches/abliterated: its direction comes from a gated repository: accept the terms at {page}, then "
            "pulumi config set --secret hf_token ..."
        )
    try:
        if settings.patches:
            settings.patches.contents_here()
    except PatchError as error:
        problems += [f"patches/folder: {line}" for line in error.lines]
    return problems


NO_DIGEST = f"sha256:{0:064d}"
"""Takes the place of the digest of an image that is not built yet, where nothing is pulled."""


def with_digest(raw: dict[str, object], project_dir: Path, *, needed: bool) -> list[str]:
    """Put the digest of `image.digest_file` into the reference; returns what is wrong with that file."""
    image = raw.get("image")
    if not isinstance(image, dict) or not isinstance(image.get("digest_file"), str):
        return []
    path = project_dir / image["digest_file"]
    try:
        digest = path.read_text().strip()
    except FileNotFoundError:
        digest = "" if needed else NO_DIGEST
    except (OSError, ValueError):  # a folder, an impossible file name, bytes that are not text
        digest = ""
    if not DIGEST.fullmatch(digest):
        problem = f"holds {digest[:40]!r}, not a sha256: digest" if digest else "is not a file with a sha256: digest"
        hint = "build the image first (for the lab: lab/lab up)"
        return [one_line(f"image/digest_file: {image['digest_file']} {problem}: {hint}")]
    raw["image"] = {**image, "reference": f"{str(image.get('reference', '')).split('@')[0]}@{digest}"}
    return []


def load(
    raw: object,
    *,
    has_api_key: bool = False,
    has_hf_token: bool = False,
    project_dir: Path = PROJECT_DIR,
    to_start: bool = True,
) -> ClusterSettings:
    """Settings from the parsed value of `spark-stack:cluster`.

    `to_start` is false for a reader that starts nothing: then the image need not be built, nor patches be there.

    Raises SettingsError with one line for each problem: `path: complaint, way out`.
    """
    if not isinstance(raw, Mapping):
        raise SettingsError(["(top): spark-stack:cluster is missing or not a mapping: start from Pulumi.example.yaml"])
    values, profile_problems = with_profile(raw)
    digest_problems = with_digest(values, project_dir, needed=to_start)
    problems = profile_problems + digest_problems
    settings = None
    try:
        settings = ClusterSettings.model_validate(values)
    except ValidationError as error:
        problems += complaints(
            detail for detail in error.errors() if not repeats(detail, bool(profile_problems), bool(digest_problems))
        )
    if settings:
        problems += open_api(settings, has_api_key) + (patch_problems(settings, has_hf_token) if to_start else [])
    if problems or settings is None:
        raise SettingsError(problems)
    return settings


def repeats(detail: ErrorDetails, no_profile: bool, no_digest: bool) -> bool:
    """Whether a complaint only follows from a missing profile or digest."""
    top = detail["loc"][0] if detail["loc"] else ""
    filled = no_profile and detail["type"] == "missing" and top in ("image", "checkpoint", "engine")
    return filled or (no_profile and top == "profile") or (no_digest and top == "image")


def secret_problems(secrets: Mapping[str, str | None]) -> list[str]:
    """What is wrong with the stack's secrets, in words that hold nothing of them."""
    return [
        f"{name}: must be one word of printable ASCII without a backslash, and not start with -: set it again, without "
        f"a blank or a line's end (pulumi config set --secret {name} ...)"
        for name, value in secrets.items()
        if value is not None and not USABLE_SECRET.fullmatch(value)
    ]


def open_api(settings: ClusterSettings, has_api_key: bool) -> list[str]:
    engine = settings.engine
    if engine.binds_loopback or has_api_key or engine.allow_unauthenticated_lan:
        return []
    return [
        f"engine/host: {engine.host} opens the API to the network without a key: set one "
        "(pulumi config set --secret api_key ...), bind 127.0.0.1, or set engine.allow_unauthenticated_lan: true"
    ]
