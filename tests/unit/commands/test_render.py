"""scripts/spark render: what a rank would get, from the stack file alone, by the program's own functions."""

import json
import shlex
from pathlib import Path

import pytest

from components.rank.build import rank_specs
from components.rank.spec import spec_hash
from tests.unit.operators import Engine, Spark, write
from tests.unit.recipe import BOTH_RANKS, FOUND_AT_START, TEXT_HEAD, TEXT_WORKER, VISION_HEAD
from tests.unit.stacks import cluster, raw


@pytest.mark.parametrize(
    ("rank", "argv", "address"), [("0", TEXT_HEAD, "198.51.100.1"), ("1", TEXT_WORKER, "198.51.100.2")]
)
def test_json_is_the_whole_command_and_environment_of_the_rank(
    rank: str, argv: list[str], address: str, spark: Spark, project: Path
):
    write(project, "pair", raw())
    shown = spark("render", "--stack", "pair", "--rank", rank, "--json")
    assert json.loads(shown.out) == {
        "argv": argv,
        "env": {**BOTH_RANKS, "VLLM_HOST_IP": address},
        "at_start": FOUND_AT_START,
        "spec": spec_hash(rank_specs(cluster(), "pair", has_api_key=False)),
    }
    assert (shown.code, shown.err) == (0, "")


@pytest.mark.parametrize("stack", ["dev", "example"])
def test_the_shipped_stacks_render_without_a_node_an_image_or_a_key(stack: str, spark: Spark):
    for rank in ("0", "1"):
        shown = spark("render", "--stack", stack, "--rank", rank, "--json")
        assert json.loads(shown.out)["argv"][:2] == ["vllm", "serve"]


def test_the_only_stacks_head_is_the_default(spark: Spark, project: Path):
    write(project, "pair", raw())
    assert spark("render", "--json") == spark("render", "--json", "--stack", "pair", "--rank", "0")


def test_for_a_person_it_is_one_flag_a_line_that_a_shell_takes(spark: Spark, project: Path):
    write(project, "pair", raw())
    lines = spark("render", "--stack", "pair").out.splitlines()
    first = lines.index("vllm serve deepseek-ai/DeepSeek-V4-Flash-0731 \\")
    assert shlex.split("\n".join(lines[first:]).replace("\\\n", "")) == TEXT_HEAD
    assert "  --port 8888 \\" in lines
    env = dict(line.split("=", 1) for line in lines[:first] if not line.startswith("#"))
    assert env == {**BOTH_RANKS, "VLLM_HOST_IP": "198.51.100.1"}
    assert [line for line in lines if line.startswith("#")] == [
        f"# {name}: found on the node at each start" for name in FOUND_AT_START
    ]


def test_a_refused_stack_shows_every_problem_and_ends_with_1(spark: Spark, project: Path):
    write(project, "pair", raw(change={"checkpoint": {"revision": "main"}, "engine": {"port": "x"}}))
    shown = spark("render", "--stack", "pair")
    assert (shown.code, shown.out) == (1, "")
    assert [line.split(":")[0] for line in shown.err.splitlines()] == [
        "the settings of this stack were refused",
        "  checkpoint/revision",
        "  engine/port",
    ]


def test_a_stack_that_cannot_start_yet_is_shown_beside_the_reason(spark: Spark, project: Path):
    write(project, "pair", raw("vision-exp", {"patches": "off"}))
    shown = spark("render", "--stack", "pair", "--json")
    assert (shown.code, json.loads(shown.out)["argv"]) == (0, VISION_HEAD)
    [note] = shown.err.splitlines()
    assert note.startswith("note: pulumi preview refuses this stack: patches: without the patch vision-exp")


def test_a_key_among_the_stacks_secrets_counts(spark: Spark, project: Path):
    open_api = raw(change={"engine": {"host": "0.0.0.0"}})
    write(project, "pair", open_api)
    assert spark("render", "--stack", "pair").code == 1
    write(project, "pair", open_api, api_key={"secure": "v1:x"})
    assert spark("render", "--stack", "pair").code == 0


def test_a_stack_that_is_not_there_names_those_that_are(spark: Spark, project: Path):
    write(project, "lab", raw())
    write(project, "pair", raw())
    assert spark("render", "--stack", "pear").err == "there is no Pulumi.pear.yaml: use one of lab, pair\n"


@pytest.mark.parametrize("rank", ["2", "-1"])
def test_a_rank_that_is_not_there_names_those_that_are(rank: str, spark: Spark, project: Path):
    write(project, "pair", raw())
    assert (
        spark("render", "--stack", "pair", f"--rank={rank}").err
        == f"there is no rank {rank}: this stack has ranks 0 to 1\n"
    )


@pytest.mark.parametrize("text", ["", "config:\n", "config: {}\n", "[]\n", "config: [\n"])
def test_a_stack_file_of_any_other_shape_is_refused_with_a_reason(text: str, spark: Spark, project: Path):
    (project / "Pulumi.pair.yaml").write_text(text)
    shown = spark("render", "--stack", "pair")
    assert (shown.code, shown.out) == (1, "") and shown.err.strip()


def test_an_engine_that_does_not_know_the_stack_yet_is_noted_and_not_needed(
    spark: Spark, project: Path, engine: Engine
):
    write(project, "home", raw())
    shown = spark("render", "--stack", "home", "--json")
    assert (shown.code, json.loads(shown.out)["argv"]) == (0, TEXT_HEAD)
    assert shown.err == (
        "note: Pulumi.home.yaml cannot be read: pulumi config: no stack named 'home' found: reading the file alone\n"
    )


def test_what_only_an_engine_can_read_is_not_guessed(spark: Spark, project: Path):
    (project / "Pulumi.home.yaml").write_text("environment: [org/prod]\n")
    shown = spark("render")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith("Pulumi.home.yaml uses an environment, which only pulumi can read")
