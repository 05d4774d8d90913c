"""Startup patches: fetched once by the head, verified on both nodes, run by both ranks, and fail closed."""

import json
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from scripts.commands.smoke import red_png
from tests.lab.pair import NODES, Stack, api, ask, hub, identities, inspect, on, place, words_of

COMMIT = "c0ffee" + "0" * 34
ROOT = "/usr/local/lib/python3.12/dist-packages/vllm"
ONE = f"""import pathlib
file = pathlib.Path("{ROOT}/tokenizers/deepseek_v4.py")
text = file.read_text()
if "patched by one" not in text:
    file.write_text(text + "\\n# patched by one\\n")
"""
TWO = f"grep -q 'patched by one' {ROOT}/tokenizers/deepseek_v4.py && echo 'two sees what one did'\n"
ROLES = ("user", "system")
FAILS = "echo 'the anchor moved' >&2\nexit 7\n"


class Origin:
    """What a public repository is in the lab: a commit's files over HTTP, and who asked for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, str]] = []
        """Address of who asked, and path."""
        asked = self.asked

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                asked.append((self.client_address[0], self.path))

        self.server = ThreadingHTTPServer((place().control, 0), lambda *given: Handler(*given, directory=str(folder)))
        Thread(target=self.server.serve_forever, daemon=True).start()

    def lock(self, name: str, commit: str = COMMIT, **claims: str) -> "Patches":
        """A stack's patches: what the commit holds, but for files that the lock claims another sha256 of."""
        files = {"one.py": ONE, "two.sh": FAILS if commit != COMMIT else TWO}
        folder = self.folder / "owner/recipe" / commit / "patches"
        folder.mkdir(parents=True, exist_ok=True)
        patches = []
        for file, text in files.items():
            (folder / file).write_text(text)
            digest = claims.get(file[:3], sha256(text.encode()).hexdigest())
            run = "python3" if file.endswith(".py") else "bash"
            patches.append({"name": file[:3], "file": file, "sha256": digest, "run": run, "why": "a test"})
        path = self.folder / f"{name}.yaml"
        document = {"repository": "owner/recipe", "commit": commit, "folder": "patches", "patches": patches}
        path.write_text(yaml.safe_dump(document))
        return Patches(str(path), f"http://{place().control}:{self.server.server_port}")


class Patches:
    """A change of a stack file."""

    def __init__(self, lock: str, endpoint: str) -> None:
        self.values = {"lock": lock, "endpoint": endpoint}

    def __call__(self, cluster: dict[str, Any]) -> None:
        cluster["patches"] = self.values
        # as the profile with images has it
        cluster["engine"] = {"limit_mm_per_prompt": {"image": 8}}


@pytest.fixture(scope="module")
def origin(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    hub()
    found = Origin(tmp_path_factory.mktemp("origin"))
    yield found
    found.server.shutdown()
    found.server.server_close()


def words(node: str, rank: int) -> list[str]:
    lines = on(node, f"docker logs spark-dev-rank{rank} 2>&1").splitlines()
    return [line for line in lines if line.startswith("spark: patch")]


def test_both_ranks_start_patched_and_the_head_alone_fetches(stack: Stack, origin: Origin) -> None:
    stack.up(origin.lock("good"))
    for rank, node in enumerate(NODES):
        assert words(node, rank) == [
            "spark: patch 1 of 2 one: applied",
            "spark: patch 2 of 2 two: skipped, nothing to change",
        ]
    assert ask()
    thinking, image = json.loads(stack.spark("smoke", "--json", "--config-file", str(stack.changed)).text)["checks"]
    assert thinking["reasoning"] and thinking["content"] == "4183."
    assert (image["content"], image["problem"]) == ("An image of 32 by 32 pixels.", None)
    shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(red_png()).decode()}"}}
    answers = [api("/v1/chat/completions", {"messages": [{"role": role, "content": [shown]}]}) for role in ROLES]
    assert [status for status, _ in answers] == [200, 400], answers
    askers = {address for address, _ in origin.asked}
    assert len(askers) == 1, "the worker gets its files from the head"
    mounts = {mount["Destination"]: mount["RW"] for mount in inspect("worker", "spark-dev-rank1")["Mounts"]}
    assert mounts["/opt/dspark-patches"] is False
    before = identities()
    assert stack.steps(origin.lock("good")) == {}
    stack.up(origin.lock("good"))
    assert identities() == before


def test_another_content_is_refused_before_anything_changes(stack: Stack, origin: Origin) -> None:
    before = identities()
    claimed = "0" * 64
    shown = stack.preview(origin.lock("other", one=claimed), check=False)
    assert shown.code != 0
    assert f"one.py has sha256 {sha256(ONE.encode()).hexdigest()}, the lock says {claimed}" in words_of(shown.text)
    assert "scripts/spark patches lock" in words_of(shown.text)
    assert identities() == before


def test_a_preview_names_the_patch_that_changed(stack: Stack, origin: Origin) -> None:
    shown = words_of(stack.preview(origin.lock("failing", "d" * 40)).text)
    assert "patches: two changed" in shown


def test_a_patch_that_fails_ends_the_start_and_says_why(stack: Stack, origin: Origin) -> None:
    failed = stack.up(origin.lock("failing", "d" * 40), check=False)
    assert failed.code != 0
    text = words_of(failed.text)
    assert "patch 2 of 2 two ended with exit code 7" in text
    assert "the anchor moved" in text
    assert {inspect(node, f"spark-dev-rank{rank}")["State"]["ExitCode"] for rank, node in enumerate(NODES)} == {7}
    stack.up(origin.lock("good"))
    assert ask()
