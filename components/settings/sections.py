"""The parts of a stack file that describe the hardware and what is put on it: nodes, image, checkpoint, fabric.

Pure, like cluster.py, which combines them.
"""

import re
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from components.settings.base import Settings, at_field
from components.settings.variables import NcclVariables

PLACEHOLDER = re.compile(
    r"change.?me|^<.*>$|(head|worker)-(host-or-)?roce-ip|XsYfZ|^(head|worker)_(node_)?ip$", re.IGNORECASE
)
SSH_TARGET = re.compile(r"(?:(?P<user>[^@\s:/]+)@)?(?P<host>\[[0-9a-fA-F:.]+\]|[^@\s:/\[\]]+)(?::(?P<port>\d{1,5}))?")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def refuse_placeholder(value: str) -> str:
    if PLACEHOLDER.search(value):
        raise ValueError(f"{value!r} is a placeholder from an example: put this node's own value here")
    return value


IFNAME = r"^[A-Za-z0-9._-]{1,15}$"


class SocketIfnames(Settings):
    """Netdevs for what is exchanged over TCP, where they are not one; each defaults to the node's ifname."""

    nccl: str | None = Field(default=None, pattern=IFNAME)
    """NCCL_SOCKET_IFNAME: NCCL's bootstrap."""
    gloo: str | None = Field(default=None, pattern=IFNAME)
    """GLOO_SOCKET_IFNAME: the process groups on the CPU."""
    tp: str | None = Field(default=None, pattern=IFNAME)
    """TP_SOCKET_IFNAME: TensorPipe."""

    @property
    def names(self) -> list[str]:
        """Those that are given."""
        return [name for name in (self.nccl, self.gloo, self.tp) if name]


class NodeSettings(Settings):
    """One DGX Spark. Its place in the list is its rank: the first is the head."""

    ssh: str
    """SSH target on the management network: user@host, user@host:port, or an alias of the SSH config."""
    fabric_ip: IPv4Address
    """IPv4 address of this node on the QSFP link. The ranks meet and exchange over it."""
    links: list[IPv4Address] = Field(default=[])
    """This node's addresses on its QSFP links, where fabric_ip is on none of them. In a ring of three without a switch,
    each two nodes share a link with its own subnet, and the ranks meet at fabric_ip on a network that all have."""
    ifname: str | None = Field(default=None, pattern=IFNAME)
    """Netdev of the fabric (NCCL_, TP_ and GLOO_SOCKET_IFNAME). Default: the one that holds fabric_ip at each start."""
    socket_ifnames: SocketIfnames = SocketIfnames()
    hca: str | None = None
    """NCCL_IB_HCA selector. Default: the HCA of fabric_ip and its PCIe twin, found at each start."""
    hf_cache: str = "~/.cache/huggingface"
    """Hugging Face cache on this node; ~ is the SSH user's home there, not one on the control host."""

    @field_validator("ssh")
    @classmethod
    def is_an_ssh_target(cls, value: str) -> str:
        refuse_placeholder(value)
        match = SSH_TARGET.fullmatch(value.removeprefix("ssh://"))
        if not match or (match["port"] and not 0 < int(match["port"]) < 65536):
            raise ValueError(
                f"{value!r} is not an SSH target: write user@host, user@host:port or an alias of your SSH config "
                "(for a user with @ or an address with a zone, an alias with User and HostName)"
            )
        return value.removeprefix("ssh://")

    @field_validator("fabric_ip", mode="before")
    @classmethod
    def is_written_out(cls, value: object) -> object:
        # Python takes a bare number for an address too
        return str(value) if isinstance(value, int) else value

    @field_validator("links")
    @classmethod
    def links_are_host_addresses(cls, value: list[IPv4Address]) -> list[IPv4Address]:
        return [cls.is_a_host_address(address) for address in value]

    @field_validator("fabric_ip")
    @classmethod
    def is_a_host_address(cls, value: IPv4Address) -> IPv4Address:
        if value.is_loopback or value.is_multicast or value.is_unspecified or value.is_reserved:
            raise ValueError(f"{value} is not an address of a QSFP link: give the IPv4 of this node's fabric netdev")
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
    """Where the image has its prompt encoder, which the checkpoint's own replaces at each start."""
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
            raise at_field(
                "reference",
                f"{self.reference!r} has no @sha256: digest, so the two nodes could run different images: "
                "add the digest (`docker buildx imagetools inspect IMAGE` prints it)",
            )
        return self


class CheckpointSettings(Settings):
    """The model's files: one revision of one repository, verified on every node."""

    mode: Literal["local", "nfs"] = "local"
    """local: every node holds a copy, the workers' made over the fabric. nfs: the workers read the head's."""
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    """Hugging Face repository, owner/name."""
    revision: str
    """Commit of the repository, 40 hex digits."""
    shards: int = Field(ge=1)
    """Number of safetensors shards that the index must name."""
    size_gib: float = Field(gt=0)
    """Size of a full copy in GiB: what a node without a copy lacks, where no list of files says it exactly."""
    endpoint: str = Field(default="https://huggingface.co", pattern=r"^https?://[^\s/?#]+$")
    """Hub to download from, as the nodes reach it."""
    download_timeout_s: int = Field(default=12 * 3600, ge=60)
    """How long `up` follows one node's copy, in seconds. The job itself continues, and the next up follows it again."""
    hub_patience_s: int = Field(default=600, ge=1)
    """Seconds without a byte of a file after which its download gives up on a hub that is out of reach, or busy."""
    encoding_file: str = "encoding/encoding_dsv4.py"
    """File of the snapshot that replaces the image's own prompt encoder."""

    @field_validator("endpoint")
    @classmethod
    def holds_no_secret(cls, value: str) -> str:
        if "@" in value:
            raise ValueError(
                "has a user or a password in it, which everyone on a node could read: name the hub alone, and give its "
                "token with pulumi config set --secret hf_token"
            )
        return value

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
    unset: usable rows must exist, and NCCL chooses. A number forces that index on every node."""
    nccl: NcclVariables = Field(default={})
    """Further NCCL_ variables for all ranks, such as NCCL_GIN_ENABLE: 0."""

    @field_validator("gid_index", mode="before")
    @classmethod
    def is_a_plain_decimal(cls, value: object) -> object:
        # NCCL reads 08 as octal and 3abc as 3: only the canonical form can mean one thing
        if isinstance(value, int) and (isinstance(value, bool) or not 0 <= value < 1024):
            raise ValueError(f"{value!r} is not a GID index: a table has rows 0 to 1023")
        if not isinstance(value, int) and value not in ("resolve", "pin", "unset"):
            raise ValueError(f"{value!r} is not a GID index: use resolve, pin, unset or a plain number such as 3")
        return value


class HardwareSettings(Settings):
    """What a node must be. The defaults are those of a DGX Spark; the lab's stack file has other values."""

    architecture: Literal["arm64", "amd64"] = "arm64"
    """Machine architecture of both the node and the image."""
    reserve_gib: float = Field(default=9, ge=0)
    """What the engine's processes take beside gpu_memory_utilization, in GiB. The howtospark pair's head went from 117
    available to 5 with a share of 103."""
    memory_gib: float = Field(default=119, gt=0)
    """Least memory that a healthy node shows, in GiB (a Spark has 121)."""
