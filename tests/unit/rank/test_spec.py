"""What a rank is started from as plain data, and the hash that changes with any of it."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from components.rank import mounts
from components.rank.build import rank_specs, start_inputs
from components.rank.spec import RankSpec, spec_hash
from tests.unit.stacks import REVISION, cluster, node

NFS = {"checkpoint": {"mode": "nfs"}}


def changes(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every way to change one thing in a value: its place, and the value with that one thing changed."""
    if is_dataclass(value):
        for field in fields(value):
            for place, other in changes(getattr(value, field.name), f"{where}.{field.name}"):
                yield place, replace(value, **{field.name: other})  # type: ignore[type-var]
    elif isinstance(value, Mapping):
        yield f"{where}+", {**value, "another": "entry"}
        for key, item in value.items():
            yield f"{where}-{key}", {name: kept for name, kept in value.items() if name != key}
            yield from ((place, {**value, key: other}) for place, other in changes(item, f"{where}[{key}]"))
    elif isinstance(value, tuple):
        yield f"{where}+", (*value, "another")
        for index, item in enumerate(value):
            yield f"{where}-{index}", value[:index] + value[index + 1 :]
            for place, other in changes(item, f"{where}[{index}]"):
                yield place, (*value[:index], other, *value[index + 1 :])
    else:
        assert value is None or isinstance(value, (str, bool, int)), f"{where} is no plain data: {value!r}"
        if isinstance(value, int):
            yield where, not value if isinstance(value, bool) else value + 1
        else:
            yield where, f"{value} changed"


def shortened(spec: RankSpec) -> RankSpec:
    """With the first words of its files: hundreds of hashes over all of their text would take a second."""
    return replace(spec, uploads=tuple(replace(file, content=file.content[:20]) for file in spec.uploads))


@pytest.mark.parametrize("rank", [0, 1])
def test_whatever_changes_in_a_rank_changes_the_hash_each_in_its_own_way(rank: int):
    """The head's health check, the worker's NFS volume and the key's mount are included."""
    specs = [shortened(spec) for spec in rank_specs(cluster("0731", NFS), "pair", has_api_key=True)]
    hashes = {spec_hash(specs): "unchanged"}
    for place, other in changes(specs[rank]):
        changed = spec_hash([*specs[:rank], other, *specs[rank + 1 :]])
        assert changed not in hashes, f"{place} hashes like {hashes.get(changed)}"
        hashes[changed] = place
    assert len(hashes) > 100


@pytest.mark.parametrize(
    "change",
    [
        {"image": {"python": "/opt/venv/bin/python3"}},
        {"image": {"encoding_target": "/elsewhere.py"}},
        {"engine": {"max_num_seqs": 4}},
        {"engine": {"extra_env": {"OMP_NUM_THREADS": 4}}},
        {"fabric": {"gid_index": "pin"}},
        NFS,
        node(0, hf_cache="/raid/hf"),
        node(1, hca="rocep1s0f1"),
    ],
    ids=str,
)
def test_a_setting_that_reaches_a_rank_is_another_hash(change: dict[str, Any]):
    before, after = (rank_specs(cluster(change=value), "pair", has_api_key=False) for value in ({}, change))
    assert spec_hash(before) != spec_hash(after)


def test_the_recipes_nfs_options_a_key_and_another_stack_are_other_hashes(monkeypatch: pytest.MonkeyPatch):
    stack = cluster(change=NFS)
    variants = [("a", False), ("a", True), ("b", True)]
    hashes = [spec_hash(rank_specs(stack, name, has_api_key=key)) for name, key in variants]
    monkeypatch.setattr(mounts, "NFS_OPTIONS", mounts.NFS_OPTIONS.replace("hard", "soft"))
    hashes.append(spec_hash(rank_specs(stack, "a", has_api_key=False)))
    assert len(set(hashes)) == 4


def test_the_same_settings_have_the_same_hash_whatever_the_order_of_their_variables():
    one, other = (
        rank_specs(cluster(change={"engine": {"extra_env": env}}), "pair", has_api_key=False)
        for env in ({"A": "1", "B": "2"}, {"B": "2", "A": "1"})
    )
    assert list(one[0].env) != list(other[0].env)
    assert spec_hash(one) == spec_hash(other)


def test_the_order_of_the_ranks_is_part_of_the_hash():
    specs = rank_specs(cluster(), "pair", has_api_key=False)
    assert spec_hash(specs) != spec_hash(specs[::-1])


def test_a_ranks_start_file_says_whom_it_meets_and_what_it_must_find():
    assert start_inputs(cluster("dspark", node(1, hca="rocep1s0f1")), 1) == {
        "rank": 1,
        "fabric_ip": "198.51.100.2",
        "hca": "rocep1s0f1",
        "links": [],
        "ifnames": {},
        "gid_index": "resolve",
        "repo": "deepseek-ai/DeepSeek-V4-Flash-DSpark",
        "revision": REVISION,
        "shards": 48,
        "encoding_file": "encoding/encoding_dsv4.py",
        "encoding_target": "/usr/local/lib/python3.12/dist-packages/vllm/tokenizers/deepseek_v4_encoding.py",
        "patches": [],
        "patch_limit_s": 0,
    }
