"""facts: off: a reviewer's machine that reaches no node previews from the stack file alone."""

from typing import Any

import pulumi
import pytest

from components import program, remote
from components.facts import preflight
from components.ssh.target import SshError
from tests.program.runner import Engine, Runner


def nobody(*_: object) -> Any:
    raise SshError("this machine knows no node")


@pytest.fixture(scope="module")
def off(run_program: Runner) -> Engine:
    """The lab's stack on a machine without SSH configuration, key or known hosts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "resolve_nodes", nobody)
        patch.setattr(remote, "key_file", nobody)
        patch.setattr(remote, "host_key", nobody)
        patch.setattr(pulumi.runtime, "is_dry_run", lambda: True)
        return run_program("dev", lambda cluster: cluster.update(facts=False), gather=nobody)


def test_the_whole_program_is_declared_without_a_node_and_says_what_it_knows(off: Engine, dev: Engine):
    assert [item.name for item in off.resources if item.name not in {other.name for other in dev.resources}] == []
    assert len(off.resources) == len(dev.resources)
    assert off.said == [("warning", "facts: off: this preview knows the stack file and the state, not the nodes")]


def test_nothing_that_only_facts_know_is_compared(off: Engine):
    for rank in off.ranks:
        assert list(rank.request.ignoreChanges) == ["labels"]
    for item in off.of_kind("command:remote:Command"):
        assert {"connection", "triggers"} <= set(item.request.ignoreChanges)
        assert ("create" in item.request.ignoreChanges) == item.name.endswith(("-gid", "-page-cache")), item.name
    for provider in off.of_kind("pulumi:providers:docker"):
        assert list(provider.request.ignoreChanges) == ["sshOpts"]


def test_with_facts_everything_is_compared(dev: Engine):
    assert [list(rank.request.ignoreChanges) for rank in dev.ranks] == [[], []]
    for item in dev.of_kind("command:remote:Command"):
        assert set(item.request.ignoreChanges) <= {"triggers"}
    assert [list(item.request.ignoreChanges) for item in dev.of_kind("pulumi:providers:docker")] == [[], []]


def test_what_the_stack_file_says_is_compared_as_ever(off: Engine, dev: Engine):
    for before, after in zip(dev.ranks, off.ranks, strict=True):
        changed = {name for name in before.inputs if before.inputs[name] != after.inputs.get(name)}
        assert changed <= {"labels"}
        assert before.labels["spark.spec"] == after.labels["spark.spec"]


def test_settings_are_judged_all_the_same(run_program: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: True)

    def change(cluster: dict[str, Any]) -> None:
        cluster.update(facts="off")
        cluster["engine"]["gpu_memory_utilization"] = 0.95

    lines, _ = run_program.refused("dev", change)
    assert lines[0] == f"{preflight.PreflightError.title}:"
    assert lines[1].startswith("  engine/gpu_memory_utilization: 0.95 leaves the host too little")


def test_with_facts_a_node_that_ssh_does_not_know_stops_the_preview(
    run_program: Runner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(program, "resolve_nodes", nobody)
    assert run_program.refused("dev")[0] == ["this machine knows no node"]


def test_an_up_without_facts_is_refused(run_program: Runner):
    """No preflight runs then, and no host key is checked."""
    lines, _ = run_program.refused("dev", lambda cluster: cluster.update(facts="off"))
    assert lines[1:] == ["  facts: off is for previews: set it to on before an up"]
