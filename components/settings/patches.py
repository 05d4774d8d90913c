"""Startup patches: which lock a stack starts its ranks with, and what a lock may say.

A lock is data: one commit of somebody's repository, each file with its sha256, in the order in which they run. Pure,
but for the lock's own file and a folder of patches, which lie beside the stack file.
"""

import json
import re
from functools import cache
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from components.settings.base import PROJECT_DIR, Settings, at_field, complaints
from components.settings.sections import DIGEST
from patches.direction import DirectionSource
from patches.files import PatchSource, checked, read
from rank.patch_steps import PatchStep

ABLATION = "hotfix-dsv4-runtime-ablation.py"
"""The recipe's patch that edits the model only with ABLATE=1."""
ABLATION_COMMIT = "01eed1eed05e0772e9123e817945cebdff192286"
DIRECTION: DirectionSource = {
    "repository": "drowzeys/keys-DeepSeekV4-Flash-GA-0731-Dspark-Abliterated-Anchored-Tensors",
    "path": "ablit/refusal_direction_r1.pt",
    "sha256": "6e4d8a8f3aa9e21795faab2c5b14d29b019acdf2ddbfbd8238430458a5837fe0",
}
"""What the recipe fetches for it; its repository asks for an account that accepted its terms."""
LOCKS_DIR = Path(__file__).parent / "patch_locks"


def is_a_plain_path(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or str(path) != value or not re.fullmatch(r"[\w./-]+", value):
        raise ValueError(f"{value!r} is not a path inside the lock's folder")
    return value


FilePath = Annotated[str, AfterValidator(is_a_plain_path)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Patch(Settings):
    """One program of the lock; it edits the image's vLLM at each start and fails when its place has moved."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    """What a stack leaves it out by, and what the start calls it."""
    file: FilePath
    sha256: Sha256
    run: Literal["python3", "bash"]
    arguments: tuple[str, ...] = ()
    beside: dict[FilePath, Sha256] = Field(default={})
    """Further files that it imports."""
    needs: tuple[str, ...] = ()
    """Patches without which this one makes no sense: left out with them."""
    switch: str | None = None
    """The recipe's own variable that turns it off."""
    why: str
    """What it is for, in one line."""

    @property
    def files(self) -> dict[str, str]:
        return {self.file: self.sha256, **self.beside}

    def step(self) -> PatchStep:
        """What a rank's start needs of it."""
        return {
            "name": self.name,
            "file": self.file,
            "run": self.run,
            "arguments": list(self.arguments),
            "sha256": self.files,
        }


class PatchLock(Settings):
    """Patches of one commit, in the order in which they run."""

    repository: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    folder: FilePath
    """Of the repository, with every file; a rank has it as /opt/dspark-patches."""
    images: tuple[str, ...] = ()
    """Digests of the runtime images that it was made for; empty: any."""
    patches: list[Patch] = Field(min_length=1)

    @model_validator(mode="after")
    def names_are_unique(self) -> Self:
        names = [patch.name for patch in self.patches]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise at_field("patches", f"{twice[0]} stands there twice: give each a name of its own")
        for digest in self.images:
            if not DIGEST.fullmatch(digest):
                raise at_field("images", f"{digest!r} is not a sha256: digest")
        return self


class LockError(ValueError):
    """A lock that cannot be used; the text says where and why."""


@cache
def read_lock(file: Path) -> PatchLock:
    """Raises LockError."""
    try:
        return PatchLock.model_validate(yaml.load(file.read_text(), yaml.CSafeLoader))
    except ValidationError as error:
        raise LockError(f"{file.name}: {'; '.join(complaints(error.errors()))}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise LockError(f"{file} cannot be read as a lock: {error}") from None


def locks() -> list[str]:
    """Names of the locks that come with the program."""
    return sorted(path.stem for path in LOCKS_DIR.glob("*.yaml"))


class PatchSettings(Settings):
    """Programs of a recipe that edit the image's vLLM at each start, before the engine."""

    lock: str
    """Name of a lock of components/settings/patch_locks/, or a file of the project, such as my-patches.yaml."""
    skip: tuple[str, ...] = ()
    """Patches of the lock that are left out, by name."""
    folder: Path | None = None
    """Read the files from a copy of the repository in this folder of the control host instead of fetching them."""
    endpoint: str = Field(default="https://raw.githubusercontent.com", pattern=r"^https?://[^\s@]+$")
    """Where the head fetches them: <endpoint>/<repository>/<commit>/<folder>/<file>."""
    abliterated: bool = False
    """Take a refusal direction out of the model while it runs, which the recipe calls experimental. Needs the lock's
    ABLATION, and hf_token for the gated repository of the direction's file."""
    limit_s: int = Field(default=120, ge=5)
    """Limit of one patch at a start, in seconds."""

    @model_validator(mode="after")
    def lock_and_names_exist(self) -> Self:
        try:
            names = [patch.name for patch in self.read().patches]
        except LockError as error:
            raise at_field("lock", str(error)) from None
        if unknown := [name for name in self.skip if name not in names]:
            raise at_field("skip", f"the lock {self.lock} has no patch {unknown[0]!r}: it has {', '.join(names)}")
        if self.abliterated and not any(PurePosixPath(patch.file).name == ABLATION for patch in self.patches):
            raise at_field(
                "abliterated",
                f"the lock {self.lock} does not run {ABLATION}: make one of a commit that has it (scripts/spark "
                f"patches lock --commit {ABLATION_COMMIT} --output my-patches.yaml), and set patches.lock",
            )
        for patch in self.patches:
            if lacking := [name for name in patch.needs if name in self.skip]:
                raise at_field("skip", f"{patch.name} needs {lacking[0]}: leave out both")
        return self

    def read(self) -> PatchLock:
        """The lock. Raises LockError."""
        if self.lock in locks():
            return read_lock(LOCKS_DIR / f"{self.lock}.yaml")
        if not self.lock.endswith(".yaml"):
            raise LockError(f"there is no lock {self.lock!r}: use one of {', '.join(locks())}, or a .yaml file")
        return read_lock(PROJECT_DIR / self.lock)

    @property
    def patches(self) -> list[Patch]:
        """Those that run, in order."""
        return [patch for patch in self.read().patches if patch.name not in self.skip]

    @property
    def files(self) -> dict[str, str]:
        """Path in the lock's folder -> sha256, of every file that a start needs."""
        return {path: digest for patch in self.patches for path, digest in patch.files.items()}

    @property
    def source(self) -> PatchSource:
        lock = self.read()
        return {
            "endpoint": self.endpoint,
            "repository": lock.repository,
            "commit": lock.commit,
            "folder": lock.folder,
            "files": self.files,
        }

    def contents_here(self) -> dict[str, bytes] | None:
        """The files in the stack's own folder of them; None where the head fetches them. Raises PatchError."""
        if self.folder is None:
            return None
        source = self.source
        return checked(source, read(PROJECT_DIR / self.folder / source["folder"], source["files"]))

    @property
    def digest(self) -> str:
        """Twelve hex digits over what runs and its content: the name of its folder on a node."""
        content = json.dumps([patch.model_dump(exclude={"why", "switch"}) for patch in self.patches], sort_keys=True)
        return sha256(content.encode()).hexdigest()[:12]
