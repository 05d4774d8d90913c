"""What a stack may say about startup patches, and what a lock may be."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from components.settings.patches import LOCKS_DIR, PatchSettings, locks, read_lock


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
