"""Keep secrets out of what a command prints."""

from __future__ import annotations

from collections.abc import Iterable

MASK = "[secret]"
SHORTEST = 4
"""Shorter strings are not masked: they would be found in every other word."""


class Masking:
    """Replaces each secret, and each line of one, wherever it appears."""

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = {part.strip() for secret in secrets for part in (secret, *secret.splitlines())}
        # the longest first: a part of a secret must not break up the whole
        self._parts = sorted((part for part in parts if len(part) >= SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for part in self._parts:
            text = text.replace(part, MASK)
        return text
