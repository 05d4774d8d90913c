"""What stops the program before its first resource: everything that is wrong, at once."""

from typing import Any

import pytest

from components.facts.gathering import FactsError
from tests.program.pair import healthy, rank_container
from tests.program.runner import API_KEY, Engine, Runner


def test_a_stack_file_with_five_mistakes_is_refused_with_five_lines(run_program: Runner):
    def change(cluster: dict[str, Any]) -> None:
        cluster["profil"] = "dspark"
        cluster["nodes"][1]["fabric_ip"] = "spark@192.168.100.2"
        cluster["checkpoint"]["revision"] = "main"
        cluster["engine"]["max_num_seqs"] = "six"
        cluster["fabric"] = {"gid_index": "08"}

    lines, _ = run_program.refused("dev", change)
    assert lines[0] == "the settings of this stack were refused:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "nodes/1/fabric_ip",
        "checkpoint/revision",
        "engine/max_num_seqs",
        "fabric/gid_index",
        "profil",
    ]


def test_a_key_of_the_stack_that_nothing_reads_is_refused_beside_other_mistakes(run_program: Runner):
    lines, _ = run_program.refused(
        "dev", lambda cluster: cluster["engine"].update(port="x"), others={"clusterr": "{}", "api-key": API_KEY}
    )
    assert lines[1:] == [
        "  api-key: unknown key: the stack's values belong under cluster, its secrets are api_key and hf_token",
        "  clusterr: unknown key: the stack's values belong under cluster, its secrets are api_key and hf_token",
        "  engine/port: must be a valid integer, found 'x'",
    ]
    assert API_KEY not in "".join(lines)


def test_a_secret_that_a_header_cannot_carry_is_refused_at_preview_unseen(run_program: Runner):
    """The HTTP client of the hub, or of the API, would print it in its complaint in the middle of an up."""
    lines, _ = run_program.refused("dev", others={"hf_token": "hf_abc\n", "api_key": "back\\slash"})
    assert [line.split(": must be one word")[0] for line in lines[1:]] == ["  api_key", "  hf_token"]
    assert "hf_abc" not in "".join(lines) and "slash" not in "".join(lines).replace("backslash", "")


def test_vision_exp_is_refused_before_anything_is_declared(run_program: Runner):
    def change(cluster: dict[str, Any]) -> None:
        cluster["profile"] = "vision-exp"
        cluster["patches"] = "off"

    lines, _ = run_program.refused("dev", change)
    assert lines[0] == "the settings of this stack were refused:"
    assert lines[1].startswith("  patches: without the patch vision-exp the pinned image cannot load this checkpoint")
    assert len(lines) == 2


def test_patches_that_cannot_be_had_are_refused_file_by_file(run_program: Runner):
    def change(cluster: dict[str, Any]) -> None:
        cluster["profile"] = "0731"
        cluster["allow"] = ["other_image"]

    nodes = healthy("x86_64")
    nodes[0]["patches"] = {"missing": ["a.py is missing", "b.sh is missing"], "problems": ["a.py has sha256 1", "b.sh"]}
    lines, _ = run_program.refused("dev", change, nodes)
    assert [line for line in lines if "patches: " in line][:2] == [
        "  head: patches: a.py has sha256 1",
        "  head: patches: b.sh",
    ]
    assert "scripts/spark patches lock" in lines[-1]


def test_patches_made_for_another_image_are_refused_unless_the_stack_allows_it(run_program: Runner):
    def change(cluster: dict[str, Any]) -> None:
        cluster["profile"] = "0731"

    lines, _ = run_program.refused("dev", change)
    assert lines[1].startswith("  patches/lock: mia-c444d703 was made for the image sha256:a8394849")


def test_an_open_api_without_a_key_is_refused_and_with_one_declared(run_program: Runner):
    def change(cluster: dict[str, Any]) -> None:
        cluster["engine"].update(host="0.0.0.0", allow_unauthenticated_lan=False)

    lines, _ = run_program.refused("dev", change)
    assert "opens the API to the network without a key" in lines[1]
    assert run_program.decided("dev", change, secrets={"api_key": API_KEY}).specs


def test_the_digest_of_an_image_that_was_not_built_is_asked_for(run_program: Runner):
    lines, _ = run_program.refused("dev", lambda cluster: cluster["image"].update(digest_file=".lab/none"))
    assert lines[1:] == [
        "  image/digest_file: .lab/none is not a file with a sha256: digest: "
        "build the image first (for the lab: lab/lab up)"
    ]


def test_preflight_stops_everything_with_every_error_of_both_nodes(run_program: Runner):
    documents = healthy("x86_64")
    documents[0]["listeners"] = [{"port": 8888, "address": "::", "pid": 71, "process": "nginx"}]
    documents[0]["earlyoom"] = True
    documents[1]["docker"] = {"status": "denied", "detail": "ops is not in group docker"}
    squatter = {**rank_container("dev", 1), "labels": {}}
    documents[1]["containers"] = [{**squatter, "running": False}]
    lines, engine = run_program.refused("dev", documents=documents)
    assert lines[0] == "preflight stopped this stack; nothing was changed:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["head", "worker", "worker"]
    assert any(said.startswith("head: earlyoom runs") for level, said in engine.said if level == "warning")


def test_a_node_without_a_usable_row_is_refused_with_the_table_of_each_member(run_program: Runner):
    documents = healthy("x86_64")
    for port in documents[1]["hcas"]:
        port["rows"] = [{"index": 1, "gid": "fe80::1", "type": "RoCE v2", "ndev": port["netdev"]}]
    lines, _ = run_program.refused("dev", documents=documents)
    text = "\n".join(lines)
    assert "worker: no GID row that NCCL can use" in text
    for name in ("rocep1s0f1", "roceP2p1s0f1"):
        assert f"{name} port 1, 4: ACTIVE" in text
    assert text.count("link-local IPv6") == 2


def test_nodes_that_could_not_be_read_are_named_with_the_step(run_program: Runner):
    def gather(*_: object) -> None:
        raise FactsError(["head: reading facts: SSH to lab-head failed", "worker: reading facts: SSH failed"])

    lines, _ = run_program.refused("dev", gather=gather)
    assert lines == [
        "the nodes could not be read:",
        "  head: reading facts: SSH to lab-head failed",
        "  worker: reading facts: SSH failed",
    ]


@pytest.mark.parametrize("stack", ["dev", "example"])
def test_the_shipped_stacks_are_refused_nothing(engine: Engine):
    assert engine.ranks
