"""The profiles: image, model and engine settings that were tested together, and how a stack's values lie over them."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from components.settings.base import one_line
from components.settings.engine_settings import EngineSettings

PROFILES_DIR = Path(__file__).parent / "profiles"


def profiles() -> list[str]:
    return sorted(path.stem for path in PROFILES_DIR.glob("*.yaml"))


def merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """`above` over `below`; mappings merge key by key, anything else replaces what is below."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result


class NeedsPatches(NamedTuple):
    """Patches without which a profile's checkpoint does not load, and why."""

    patches: Sequence[str] = ()
    why: str = ""


class Drafts(NamedTuple):
    """Which numbers of draft tokens (k) suit a checkpoint's drafter, and why."""

    least: int
    multiple_of: int
    why: str

    def fit(self, k: int) -> bool:
        return k >= self.least and k % self.multiple_of == 0

    def near(self, k: int) -> list[int]:
        """The fitting numbers next to k, at most one on each side."""
        first = -(-self.least // self.multiple_of) * self.multiple_of
        below = k // self.multiple_of * self.multiple_of
        return [n for n in (below, below + self.multiple_of) if n >= first] or [first]


class Rules(NamedTuple):
    """What a profile says that no stack changes."""

    needs_patches: NeedsPatches
    drafts: Drafts
    kv_tokens: int
    """Tokens of the KV pool on the pair of the profile's authors."""


@cache
def read_profile(name: str) -> tuple[Mapping[str, Any], Rules]:
    """A profile's values, and its rules. Parsed once a process, so nobody may change it."""
    values: dict[str, Any] = yaml.load((PROFILES_DIR / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    needs, drafts = NeedsPatches(**values.pop("needs_patches", {})), Drafts(**values.pop("drafts"))
    return values, Rules(needs, drafts, values.pop("kv_tokens"))


def tested_engine(name: str) -> EngineSettings:
    """The engine's settings as a profile alone has them."""
    return EngineSettings.model_validate(read_profile(name)[0]["engine"])


def profile_repos() -> set[str]:
    """The model repositories that the profiles name."""
    return {read_profile(name)[0]["checkpoint"]["repo"] for name in profiles()}


def with_profile(raw: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """The stack's values over its profile's, and what is wrong with the name of the profile."""
    name = raw.get("profile")
    if name not in profiles():
        problem = "missing" if name is None else f"there is no profile {name!r}"
        if isinstance(name, int) and not isinstance(name, bool):
            problem += " (YAML reads a bare 0731 as a number: write it in quotes)"
        return dict(raw), [one_line(f"profile: {problem}: use one of {', '.join(profiles())}")]
    return merged(read_profile(name)[0], raw), []
