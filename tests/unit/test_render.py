"""scripts/render: what a rank would get, from the stack file alone, by the program's own functions."""

import json
import os
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from components import base
from components.base import PROJECT_DIR
from components.rank.build import rank_specs
from components.rank.spec import spec_hash
from tests.unit.recipe import BOTH_RANKS, FOUND_AT_START, TEXT_HEAD, TEXT_WORKER, VISION_HEAD
from tests.unit.stacks import cluster, raw

RENDER = PROJECT_DIR / "scripts/render"


class Shown:
    def __init__(self, code: object, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """render(*arguments) runs the shipped script here; SystemExit's text goes to stderr as in a process."""

    def run(*arguments: str) -> Shown:
        monkeypatch.setattr(sys, "argv", ["scripts/render", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        code: object = 0
        try:
            runpy.run_path(str(RENDER), run_name="__main__")
        except SystemExit as ended:
            code = ended.code
        shown = capsys.readouterr()
        return (
            Shown(1, shown.out, f"{shown.err}{code}\n") if isinstance(code, str) else Shown(code, shown.out, shown.err)
        )

    return run


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder of its own, in place of this one."""
    monkeypatch.setattr(base, "PROJECT_DIR", tmp_path)
    return tmp_path


def write(project: Path, stack: str, cluster: object, **others: object) -> None:
    config = {"spark-stack:cluster": cluster, **{f"spark-stack:{name}": value for name, value in others.items()}}
    (project / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump({"config": config}))


@pytest.mark.parametrize(
    ("rank", "argv", "address"), [("0", TEXT_HEAD, "198.51.100.1"), ("1", TEXT_WORKER, "198.51.100.2")]
)
def test_json_is_the_whole_command_and_environment_of_the_rank(
    rank: str, argv: list[str], address: str, render: Any, project: Path
):
    write(project, "pair", raw())
    shown = render("--stack", "pair", "--rank", rank, "--json")
    assert json.loads(shown.out) == {
        "argv": argv,
        "env": {**BOTH_RANKS, "VLLM_HOST_IP": address},
        "at_start": FOUND_AT_START,
        "spec": spec_hash(rank_specs(cluster(), "pair", has_api_key=False)),
    }
    assert (shown.code, shown.err) == (0, "")


@pytest.mark.parametrize("stack", ["dev", "example"])
def test_the_shipped_stacks_render_without_a_node_an_image_or_a_key(stack: str, render: Any):
    for rank in ("0", "1"):
        shown = render("--stack", stack, "--rank", rank, "--json")
        assert json.loads(shown.out)["argv"][:2] == ["vllm", "serve"]


def test_the_dev_stacks_head_is_the_default(render: Any):
    assert render("--json").out == render("--stack", "dev", "--rank", "0", "--json").out


def test_for_a_person_it_is_one_flag_a_line_that_a_shell_takes(render: Any, project: Path):
    write(project, "pair", raw())
    lines = render("--stack", "pair").out.splitlines()
    first = lines.index("vllm serve deepseek-ai/DeepSeek-V4-Flash-0731 \\")
    assert shlex.split("\n".join(lines[first:]).replace("\\\n", "")) == TEXT_HEAD
    assert "  --port 8888 \\" in lines
    env = dict(line.split("=", 1) for line in lines[:first] if not line.startswith("#"))
    assert env == {**BOTH_RANKS, "VLLM_HOST_IP": "198.51.100.1"}
    assert [line for line in lines if line.startswith("#")] == [
        f"# {name}: found on the node at each start" for name in FOUND_AT_START
    ]


def test_a_refused_stack_shows_every_problem_and_ends_with_1(render: Any, project: Path):
    write(project, "pair", raw(change={"checkpoint": {"revision": "main"}, "engine": {"port": "x"}}))
    shown = render("--stack", "pair")
    assert (shown.code, shown.out) == (1, "")
    assert [line.split(":")[0] for line in shown.err.splitlines()] == [
        "the settings of this stack were refused",
        "  checkpoint/revision",
        "  engine/port",
    ]


def test_a_stack_that_cannot_start_yet_is_shown_beside_the_reason(render: Any, project: Path):
    write(project, "pair", raw("vision-exp"))
    shown = render("--stack", "pair", "--json")
    assert (shown.code, json.loads(shown.out)["argv"]) == (0, VISION_HEAD)
    [note] = shown.err.splitlines()
    assert note.startswith("note: pulumi preview refuses this stack: profile: vision-exp: the pinned image cannot load")


def test_a_key_among_the_stacks_secrets_counts(render: Any, project: Path):
    open_api = raw(change={"engine": {"host": "0.0.0.0"}})
    write(project, "pair", open_api)
    assert render("--stack", "pair").code == 1
    write(project, "pair", open_api, api_key={"secure": "v1:x"})
    assert render("--stack", "pair").code == 0


def test_a_stack_that_is_not_there_names_those_that_are(render: Any, project: Path):
    write(project, "lab", raw())
    write(project, "pair", raw())
    assert render("--stack", "pear").err == "there is no Pulumi.pear.yaml: use one of lab, pair\n"


@pytest.mark.parametrize("rank", ["2", "-1"])
def test_a_rank_that_is_not_there_names_those_that_are(rank: str, render: Any, project: Path):
    write(project, "pair", raw())
    assert render("--stack", "pair", f"--rank={rank}").err == f"there is no rank {rank}: this stack has ranks 0 to 1\n"


@pytest.mark.parametrize("text", ["", "config:\n", "config: {}\n", "[]\n", "config: [\n"])
def test_a_stack_file_of_any_other_shape_is_refused_in_words(text: str, render: Any, project: Path):
    (project / "Pulumi.pair.yaml").write_text(text)
    shown = render("--stack", "pair")
    assert (shown.code, shown.out) == (1, "") and shown.err.strip()


def test_it_can_be_run_by_its_name():
    assert os.access(RENDER, os.X_OK)
    assert RENDER.read_text().startswith("#!/usr/bin/env python3\n")
