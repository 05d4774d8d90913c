"""From a request's effort to the prompt in the stand-in: as the image has it, and after a rank's start."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest

from lab.hub.checkpoint import ENCODING
from rank.effort_edit import FILE, edit

TOKENIZERS = Path(__file__).parents[2] / "lab/runtime/vllm/tokenizers"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A copy of the package with the checkpoint's encoder, importable under its own name."""
    folder = tmp_path / f"tokenizers_of_{request.node.name}"
    shutil.copytree(TOKENIZERS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ENCODING, folder / "deepseek_v4_encoding.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def prompt(package: Path, effort: str | None) -> str:
    tokenizer = import_module(f"{package.name}.deepseek_v4").get_deepseek_v4_tokenizer()
    asked = [{"role": "user", "content": "hi"}]
    return str(tokenizer.apply_chat_template(asked, thinking=True, reasoning_effort=effort))


def test_as_the_image_has_it_low_is_the_prompt_of_high(package: Path):
    assert prompt(package, "low") == prompt(package, "high") != prompt(package, None)


def test_after_a_ranks_edit_low_is_the_prompt_without_effort_and_high_stays(package: Path):
    assert edit(package / FILE)
    assert prompt(package, "low") == prompt(package, "medium") == prompt(package, None)
    assert len({prompt(package, effort) for effort in ("low", "high", "max")}) == 3
    assert prompt(package, "none").endswith("</think>")
