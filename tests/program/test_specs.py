"""A rank's container is its spec and nothing else; whatever changes a spec restarts the pair, with the reason."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from itertools import count
from typing import Any

import pytest

from components.rank import build
from components.rank.spec import RankSpec, spec_hash
from tests.program.pair import healthy, rank_container
from tests.program.runner import API_KEY, FOLDER, Engine, Runner
from tests.program.test_nfs import nfs


def marked(value: Any, number: Iterator[int]) -> Any:
    """The same shape with a different text or number in each place, and every boolean inverted."""
    if is_dataclass(value):
        return type(value)(*[marked(getattr(value, field.name), number) for field in fields(value)])  # type: ignore[misc]
    if isinstance(value, Mapping):
        return {marked(key, number): marked(item, number) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(marked(item, number) for item in value)
    if value is None or isinstance(value, bool):
        return value if value is None else not value
    return next(number) if isinstance(value, int) else f"mark{next(number)}"


def parts(value: Any) -> Iterator[object]:
    """All values in a marked spec or a container's inputs, without the names of fields and inputs."""
    if isinstance(value, Mapping):
        for item in (*[key for key in value if key.startswith("mark")], *value.values()):
            yield from parts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from parts(item)
    elif isinstance(value, str):
        yield from value.removeprefix(f"{FOLDER}/").split("=")
    elif value is not None:
        yield value


def reachable() -> list[dict[str, Any]]:
    """A healthy pair whose worker reaches the head's NFS server."""
    return [{**document, "nfs": {"refused": None}} for document in healthy("x86_64")]


def started(dev: Engine) -> list[dict[str, Any]]:
    """The same pair with the ranks of the stack as shipped."""
    documents = reachable()
    for rank, document in enumerate(documents):
        document["containers"] = [rank_container("dev", rank, spec=dev.ranks[0].labels["spark.spec"])]
    return documents


def test_a_container_is_its_spec_and_what_only_pulumi_knows(run_program: Runner, monkeypatch: pytest.MonkeyPatch):
    """Every value of a spec reaches the container once, and nothing comes from anywhere else."""
    made: list[RankSpec] = []
    rank_specs, number = build.rank_specs, count(7_000_000)

    def marked_specs(*arguments: Any, **_: bool) -> list[RankSpec]:
        made.extend(marked(spec, number) for spec in rank_specs(*arguments, has_api_key=True))
        return made

    monkeypatch.setattr(build, "rank_specs", marked_specs)
    engine = run_program("dev", nfs, documents=reachable())
    labels = ["spark.generation", engine.outputs["generation"], "spark.spec", spec_hash(made)]
    for name, spec, own in (("head", made[0], ["spark.after", "worker-engine-id"]), ("worker", made[1], [])):
        said = Counter(parts(engine.one(f"{name}-engine").inputs))
        assert said == Counter([*parts(asdict(spec)), *labels, *own])


def test_the_pair_as_it_was_started_is_left_alone(dev: Engine, run_program: Runner):
    assert run_program.decided("dev", documents=started(dev)).said == []


@pytest.mark.parametrize(
    ("change", "secrets"),
    [
        (lambda cluster: cluster["image"].update(python="/opt/venv/bin/python3"), None),
        (lambda cluster: cluster["engine"].update(max_num_seqs=4), None),
        (lambda cluster: cluster["engine"].update(port=9000), None),
        (lambda cluster: cluster["nodes"][1].update(hf_cache="/raid/hf"), None),
        (nfs, None),
        (None, {"api_key": API_KEY}),
    ],
    ids=["interpreter", "flag", "port", "one node's hub cache", "nfs", "a key where there was none"],
)
def test_a_change_that_reaches_a_container_is_a_new_generation_with_its_reason(
    change: Callable[[dict[str, Any]], object] | None, secrets: dict[str, str] | None, dev: Engine, run_program: Runner
):
    """Of both ranks, also where only one of them changes: otherwise the head would be replaced alone."""
    decided = run_program.decided("dev", change, started(dev), secrets)
    assert spec_hash(decided.specs) != dev.ranks[0].labels["spark.spec"]
    assert decided.generation.name != "aaaa1111"
    assert [(level, text.partition(": ")[2]) for level, text in decided.said if "generation" in text] == [
        ("info", "the ranks were started from other settings")
    ]
