"""What a stack may say about startup patches, and what a lock may be."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from components.rank.build import rank_specs
from components.settings.base import SettingsError
from components.settings.cluster import load
from components.settings.patches import ABLATION, LOCKS_DIR, PatchSettings, locks, read_lock
from tests.unit.stacks import cluster, raw


def refusal(**values: object) -> str:
    with pytest.raises((ValidationError, ValueError)) as caught:
        PatchSettings.model_validate(values)
    return str(caught.value)


@pytest.mark.parametrize("name", locks())
def test_every_lock_that_ships_can_be_used_whole(name):
    lock = read_lock(LOCKS_DIR / f"{name}.yaml")
    assert lock.images, "a lock that ships says which image it was made for"
    settings = PatchSettings(lock=name)
    assert [patch.name for patch in settings.patches] == [patch.name for patch in lock.patches]


def test_what_is_left_out_is_neither_run_nor_fetched():
    whole, text = PatchSettings(lock="mia-c444d703"), PatchSettings(lock="mia-c444d703", skip=["vision-exp"])
    assert "vision_exp/apply.py" in whole.files
    assert not any("vision" in path for path in text.files)
    assert whole.digest != text.digest


def test_the_digest_is_over_what_runs_alone(tmp_path: Path):
    text = (LOCKS_DIR / "mia-c444d703.yaml").read_text()
    digests = set()
    for name, changed in {
        "same": text,
        "why": text.replace("why: ", "why: because "),
        "content": text.replace("52de6d0c", "62de6d0c"),
        "order": text.replace("arguments: [--status]", "arguments: [--state]"),
    }.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(changed)
        digests.add((name in ("same", "why"), PatchSettings(lock=str(file)).digest))
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"lock": "mia-c444"}, "there is no lock 'mia-c444': use one of mia-c444d703, or a .yaml file"),
        ({"lock": "absent.yaml"}, "cannot be read as a lock"),
        ({"lock": "mia-c444d703", "skip": ["issue9"]}, "has no patch 'issue9': it has issue21, issue55"),
        ({"lock": "mia-c444d703", "skip": ["issue117"]}, "issue117-status needs issue117: leave out both"),
    ],
)
def test_a_lock_or_a_name_that_is_not_there_is_refused(values, expected):
    assert expected in refusal(**values)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("file: hotfix-gb10-spin-wait.sh", "file: ../spin.sh", "not a path inside the lock's folder"),
        ("name: spin-wait", "name: issue22", "issue22 stands there twice"),
        ("commit: c444d7", "commit: HEAD", "commit"),
        ("run: bash", "run: sh", "must be 'python3' or 'bash'"),
        ("sha256: b7de", "sha256: xyz", "sha256"),
        ("patches:\n", "patches: [\n", "cannot be read as a lock"),
    ],
)
def test_a_lock_that_is_wrong_is_refused_with_the_place(tmp_path, before, after, expected):
    file = tmp_path / "my.yaml"
    text = (LOCKS_DIR / "mia-c444d703.yaml").read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
    assert expected in refusal(lock=str(file))


def with_ablation(folder: Path) -> str:
    """A lock that also runs the recipe's patch for an abliterated model."""
    file = folder / "my-patches.yaml"
    row = {"name": "ablation", "file": ABLATION, "sha256": "0" * 64, "run": "python3", "why": "a direction"}
    lock = yaml.safe_load((LOCKS_DIR / "mia-c444d703.yaml").read_text())
    file.write_text(yaml.safe_dump({**lock, "patches": [*lock["patches"], row]}))
    return str(file)


def test_an_abliterated_model_needs_the_patch_and_a_token(tmp_path: Path):
    assert "does not run hotfix-dsv4-runtime-ablation.py: make one of a commit that has it" in refusal(
        lock="mia-c444d703", abliterated=True
    )
    stack = raw("vision-exp", {"patches": {"lock": with_ablation(tmp_path), "abliterated": True}})
    with pytest.raises(SettingsError, match=r"patches/abliterated: .* accept the terms at .*/drowzeys/keys-"):
        load(stack)
    assert load(stack, has_hf_token=True).patches


def test_an_abliterated_model_differs_in_its_environment_and_a_mount_alone(tmp_path: Path):
    """The weights stay the official ones, so false is the way back."""
    lock = with_ablation(tmp_path)
    before, after = (
        rank_specs(cluster("vision-exp", {"patches": {"lock": lock, "abliterated": on}}), "dev", has_api_key=False)[1]
        for on in (False, True)
    )
    assert {name: after.env[name] for name in after.env.keys() - before.env.keys()} == {
        "ABLATE": "1",
        "DSV4_ABLATE_FILE": "/cache/huggingface/dspark-ablation/direction_r1.pt",
        "DSV4_ABLATE_LAMBDA": "3.5",
        "DSV4_ABLATE_LAYERS": "10-42",
    }
    [mount] = set(after.mounts) - set(before.mounts)
    assert (mount.target, mount.source, mount.read_only) == ("/cache/huggingface/dspark-ablation", "ablation", True)
    assert replace(after, env=before.env, mounts=before.mounts) == before
