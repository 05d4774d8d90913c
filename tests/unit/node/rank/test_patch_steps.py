"""rank.patch_steps: patches run in order on the image's tree, and the first that fails ends the start."""

from hashlib import sha256
from pathlib import Path
from unittest import mock

import pytest

from rank.patch_steps import PatchFailed, PatchStep, apply


class Container:
    """A tree of vLLM and a folder of patches, as a rank's container has them."""

    def __init__(self, folder: Path) -> None:
        self.root, self.mount, self.broken = folder / "vllm", folder / "patches", folder / "patching"
        self.root.mkdir()
        self.mount.mkdir()
        self.said: list[str] = []
        self.file("engine.py", "LIMIT = 1\n")

    def file(self, name: str, text: str) -> Path:
        path = self.root / name
        path.write_text(text)
        return path

    def patch(self, name: str, text: str, run: str = "python3", *arguments: str) -> PatchStep:
        file = f"{name}.py" if run == "python3" else f"{name}.sh"
        (self.mount / file).write_text(text)
        digest = sha256(text.encode()).hexdigest()
        return {"name": name, "file": file, "run": run, "arguments": list(arguments), "sha256": {file: digest}}

    def edit(self, name: str, before: str, after: str) -> PatchStep:
        """One that replaces a text in engine.py, once, and fails where neither text is there."""
        file = self.root / "engine.py"
        text = (
            f"if grep -qF '{before}' {file}; then sed -i 's/{before}/{after}/' {file}\n"
            f"elif ! grep -qF '{after}' {file}; then echo 'the place has moved'; exit 1; fi\n"
        )
        return self.patch(name, text, "bash")

    def start(self, *patches: PatchStep, limit_s: float = 20) -> None:
        env = {"PATH": "/usr/bin:/bin"}
        apply(list(patches), self.root, limit_s, env, self.said.append, self.mount, self.broken)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_they_run_in_order_and_say_what_they_did(container):
    first = container.edit("first", "LIMIT = 1", "LIMIT = 2")
    second = container.edit("second", "LIMIT = 2", "LIMIT = 3")
    idle = container.patch("idle", "pass\n", "python3")
    container.start(first, second, idle)
    assert (container.root / "engine.py").read_text() == "LIMIT = 3\n"
    assert container.said == [
        "patch 1 of 3 first: applied",
        "patch 2 of 3 second: applied",
        "patch 3 of 3 idle: skipped, nothing to change",
    ]


def test_a_second_start_of_the_container_changes_nothing(container):
    patch = container.edit("first", "LIMIT = 1", "LIMIT = 2")
    container.start(patch)
    container.said.clear()
    container.start(patch)
    assert container.said == ["patch 1 of 1 first: skipped, nothing to change"]


def test_the_first_that_fails_ends_the_start_with_its_own_code_and_last_lines(container):
    failing = container.patch("failing", "echo one; echo 'the anchor moved' >&2; exit 7\n", "bash")
    never = container.edit("never", "LIMIT = 1", "LIMIT = 2")
    with pytest.raises(PatchFailed) as failed:
        container.start(failing, never)
    assert failed.value.code == 7
    lines = str(failed.value).splitlines()
    assert lines[0] == "patch 1 of 2 failing ended with exit code 7:"
    assert lines[1:3] == ["  one", "  the anchor moved"]
    assert "patches.skip: [failing]" in lines[3]
    assert (container.root / "engine.py").read_text() == "LIMIT = 1\n"


def test_a_container_whose_patches_broke_off_never_starts_again(container):
    with pytest.raises(PatchFailed):
        container.start(container.edit("first", "LIMIT = 1", "LIMIT = 2"), container.patch("failing", "exit 1", "bash"))
    with pytest.raises(PatchFailed, match=r"broke off at patch failing.*needs a new container"):
        container.start(container.edit("first", "LIMIT = 1", "LIMIT = 2"))


def test_one_that_does_not_end_is_ended(container):
    with pytest.raises(PatchFailed, match=r"patch 1 of 1 slow did not end within 0 s"):
        container.start(container.patch("slow", "sleep 60\n", "bash"), limit_s=0.3)


def test_another_content_than_the_locks_never_runs(container):
    patch = container.edit("first", "LIMIT = 1", "LIMIT = 2")
    (container.mount / "first.sh").write_text("echo somebody else wrote this\n")
    with pytest.raises(PatchFailed, match=r"first.sh has sha256 .{64}, the lock says"):
        container.start(patch)
    assert (container.root / "engine.py").read_text() == "LIMIT = 1\n"
    assert not container.broken.exists()


def test_a_file_that_it_imports_is_verified_too(container):
    patch = container.edit("first", "LIMIT = 1", "LIMIT = 2")
    patch["sha256"]["beside.py"] = "0" * 64
    with pytest.raises(PatchFailed, match=r"beside.py cannot be read"):
        container.start(patch)


def test_what_no_longer_compiles_does_not_become_the_engine(container):
    with pytest.raises(PatchFailed, match=r"engine.py does not compile after the patches"):
        container.start(container.edit("first", "LIMIT = 1", "LIMIT ="))


def test_a_file_that_a_patch_adds_must_compile_too(container):
    with pytest.raises(PatchFailed, match=r"added.py does not compile after the patches"):
        container.start(container.patch("adds", f"echo 'LIMIT =' >'{container.root}/added.py'\n", "bash"))


def test_the_tree_is_listed_before_and_after_and_not_for_each_patch(container):
    edits = [container.edit(name, "LIMIT = 1", "LIMIT = 2") for name in ("one", "two", "three")]
    with mock.patch.object(Path, "rglob", autospec=True, side_effect=Path.rglob) as listed:
        container.start(*edits)
    assert listed.call_count == 2
