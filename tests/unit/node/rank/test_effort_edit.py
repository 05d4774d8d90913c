"""The edit of the image's reasoning efforts, on the image's own lines."""

from pathlib import Path

import pytest

from rank.effort_edit import Moved, edit
from tests.unit.node.rank.tokenizers import SHIPPED, handed_on

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""All that the API takes."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "deepseek_v4.py"
    path.write_text(SHIPPED)
    return path


def test_as_shipped_low_thinks_like_high(file: Path):
    """The reason for the edit; when the image's lines no longer do this, the edit can go."""
    assert handed_on(file, "low") == handed_on(file, "high") == ("thinking", "high")


def test_what_is_below_high_is_handed_on_as_no_effort_of_its_own(file: Path):
    assert edit(file)
    assert {effort: handed_on(file, effort) for effort in EFFORTS} == {
        "none": ("chat", None),
        "minimal": ("thinking", None),
        "low": ("thinking", None),
        "medium": ("thinking", None),
        "high": ("thinking", "high"),
        "xhigh": ("thinking", "max"),
        "max": ("thinking", "max"),
    }
    assert handed_on(file, None) == ("thinking", None)


def test_a_container_that_starts_again_keeps_what_was_edited(file: Path):
    assert edit(file)
    once = file.read_text()
    assert not edit(file)
    assert file.read_text() == once


@pytest.mark.parametrize(
    ("text", "times"),
    [
        (SHIPPED.replace('("max", "xhigh")', '("max",)'), 0),
        (SHIPPED.replace('"high"\n', '"medium"\n'), 0),
        (SHIPPED.replace("            ", "        "), 0),
        (SHIPPED + SHIPPED, 2),
        ("", 0),
    ],
    ids=["other-max", "other-default", "other-depth", "twice", "empty"],
)
def test_lines_that_moved_are_said_and_nothing_is_written(text: str, times: int, file: Path):
    file.write_text(text)
    with pytest.raises(Moved) as moved:
        edit(file)
    assert 'elif reasoning_effort in ("max", "xhigh"): / reasoning_effort = "max" / else:' in str(moved.value)
    assert f"found it {times} times" in str(moved.value)
    assert file.read_text() == text
