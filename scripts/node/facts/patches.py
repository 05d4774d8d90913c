"""The stack's startup patches on this node: what is missing, and whether it can be had."""

from __future__ import annotations

from facts.document import PatchFacts, PatchInputs
from patches.files import fetch, problems
from patches.place import missing


def read_patches(stack: str, inputs: PatchInputs) -> PatchFacts:
    """Nothing is written: what is missing is fetched to be judged, so that a preview can refuse it."""
    source = inputs["source"]
    lacking = missing(stack, inputs["lock"], source)
    return PatchFacts(lacking, problems(source["files"], fetch(source)) if lacking and inputs["fetches"] else [])
