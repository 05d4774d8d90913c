"""scripts/spark itself: which stack it takes, how it reads it, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from components.settings.base import PROJECT_DIR
from scripts import commands
from tests.unit.operators import SPARK, Engine, Spark, Terminal, write
from tests.unit.recipe import TEXT_WORKER
from tests.unit.stacks import NODES, raw

FOUND = raw(change={"engine": {"port": 8889}})
"""What the engine says where the stack file says 8888."""


def port(out: str) -> str:
    argv = json.loads(out)["argv"]
    return str(argv[argv.index("--port") + 1])


def test_the_selected_stack_is_the_default(spark: Spark, project: Path, engine: Engine):
    write(project, "home", raw(change={"engine": {"port": 8881}}))
    write(project, "lab", raw(change={"engine": {"port": 8882}}))
    engine.select("lab")
    assert port(spark("render", "--json").out) == "8882"
    assert port(spark("render", "--json", "--stack", "home").out) == "8881"


@pytest.mark.parametrize("with_engine", [True, False])
def test_else_the_only_one_is_and_the_example_is_not_one(
    spark: Spark, project: Path, with_engine: bool, request: pytest.FixtureRequest
):
    if with_engine:
        request.getfixturevalue("engine")
    write(project, "home", raw())
    write(project, "example", raw(change={"engine": {"port": 8882}}))
    assert port(spark("render", "--json").out) == "8888"


def test_of_several_a_person_at_a_terminal_types_one(spark: Spark, project: Path):
    write(project, "home", raw(change={"engine": {"port": 8881}}))
    write(project, "lab", raw())
    shown = spark("render", "--json", typed="home\n", stdin=Terminal)
    assert (port(shown.out), shown.err) == ("8881", "which stack (home, lab)? ")
    shown = spark("render", "--json", typed="hme\n", stdin=Terminal)
    assert (shown.code, shown.out, shown.err.partition("? ")[2]) == (
        1,
        "",
        "there is no stack 'hme': use one of home, lab\n",
    )


def test_of_several_without_a_terminal_their_names_are_shown(spark: Spark, project: Path):
    write(project, "home", raw())
    write(project, "lab", raw())
    shown = spark("render")
    assert shown == (1, "", "no stack is selected: name one with --stack: home, lab\n")


def test_a_project_without_a_stack_says_how_to_make_one(spark: Spark, project: Path):
    write(project, "example", raw())
    assert spark("smoke") == (1, "", "there is no stack: copy Pulumi.example.yaml to Pulumi.<name>.yaml\n")


def test_stack_and_config_file_may_stand_before_the_verb_or_after_it(spark: Spark, project: Path):
    write(project, "home", raw())
    write(project, "lab", raw(change={"engine": {"port": 8882}}))
    assert spark("--stack", "lab", "--json", "render") == spark("render", "--json", "--stack", "lab")
    (project / "else.yaml").write_text((project / "Pulumi.lab.yaml").read_text())
    assert port(spark("--stack", "home", "--config-file", str(project / "else.yaml"), "render", "--json").out) == "8882"


def test_the_configuration_is_what_the_engine_says(spark: Spark, project: Path, engine: Engine):
    write(project, "home", raw())
    engine.config(FOUND)
    shown = spark("render", "--stack", "acme/home", "--json")
    assert (port(shown.out), shown.err) == ("8889", "")
    asked = ["--stack", "acme/home", "--config-file", str(project / "Pulumi.home.yaml")]
    assert engine.calls() == [["config", "--json", "--open", *asked, "--non-interactive"]]


def test_of_all_secrets_only_a_cluster_that_holds_one_is_decrypted(spark: Spark, project: Path, engine: Engine):
    write(project, "home", raw())
    engine.config(raw(change={"engine": {"host": "0.0.0.0", "port": 8889}}), "cluster", "api_key")
    assert port(spark("render", "--json").out) == "8889"
    assert not any("--show-secrets" in call for call in engine.calls())
    assert [call[2] for call in engine.calls() if call[:2] == ["config", "get"]] == ["spark-stack:cluster"]


def test_it_runs_in_the_projects_python_from_any_folder_through_a_link_and_without_pulumi(tmp_path: Path):
    (tmp_path / "spark").symlink_to(os.path.relpath(SPARK, tmp_path))
    # another Python, which has none of the project's packages
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -S "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "else.yaml").write_text(f"config: {{'spark-stack:cluster': {json.dumps(raw())}}}")
    done = subprocess.run(
        ["./spark", "render", "--stack", "dev", "--config-file", "else.yaml", "--rank", "1", "--json"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["argv"] == TEXT_WORKER
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pydantic" in imported and "pulumi" not in imported, "no verb needs the engine's SDK"
    assert [line for line in done.stderr.splitlines() if not line.startswith("import time:")] == []


def test_without_the_projects_packages_it_says_how_to_get_them(tmp_path: Path):
    for name in ("spark", "__init__.py", "own_python.py"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        (tmp_path / "scripts" / name).write_text((SPARK.parent / name).read_text())
    argv = [sys.executable, "-S", str(tmp_path / "scripts" / "spark"), "render"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "scripts/setup python" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [[], ["rendr"], ["render", "--rnk", "1"], ["render", "--rank", "x"], ["--stack"], ["render", "more"]],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(spark: Spark, arguments: list[str]):
    shown = spark(*arguments)
    assert (shown.code, shown.out) == (2, "") and shown.err.startswith("usage: spark")


def test_the_help_lists_every_verb_and_the_exit_codes(spark: Spark):
    shown = spark("--help")
    assert shown.code == 0 and "exit codes: 0 done; 1 refused or failed, the reason on stderr; 2 wrong" in shown.out
    for name in commands.names():
        assert f"\n    {name} " in shown.out
        assert f"scripts/spark {name} " in spark(name, "--help").out, "an example"
        assert "scripts/spark " + name in (PROJECT_DIR / "README.md").read_text()


def test_a_mistake_is_one_line(spark: Spark, project: Path, engine: Engine, recorder):
    write(project, "home", raw(change={"nodes": [{**NODES[0], "ssh": "nobody@nowhere"}, NODES[1]]}))
    assert spark("smoke") == (1, "", "pulumi stack: no stack named 'home' found\n")
    engine.outputs({})
    assert spark("smoke") == (1, "", "stack home serves nothing: run pulumi up\n")
    engine.config(raw())
    recorder.answer("ssh", "echo 'no such option' >&2; exit 255")
    shown = spark("prune")
    assert shown.code == 1 and shown.err.count("\n") == 1 and "no such option" in shown.err
    (recorder.folder / "pulumi").unlink()
    assert spark("smoke").err == "there is no pulumi on PATH: scripts/setup engine puts one into .lab/engine\n"


def test_a_wait_is_said_while_it_lasts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(commands, "PROGRESS_S", 0.01)
    with commands.waiting("head: list"):
        while not (said := capsys.readouterr().err):
            pass
    assert said.startswith("head: list, 0 s\n")
