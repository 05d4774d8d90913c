"""scripts/spark smoke: a question that is asked on the head, and what a running pair is."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.executables import Recorder
from tests.unit.operators import Engine, Spark, write
from tests.unit.servers import Answer, body, serving
from tests.unit.stacks import NODES, raw

OUTPUTS: dict[str, Any] = {
    "api_url": "http://127.0.0.1:8888/v1",
    "models": ["the-model"],
    "kv_pool": {"kv_memory_gib": 17.21, "kv_tokens": 2_555_830, "context_tokens": 1_048_576, "max_concurrency": 2.44},
    "gid_index": {"head": 3, "worker": 5},
    "hca": {"head": "=rocep1s0f1", "worker": "=rocep1s0f1"},
    "image": f"registry.example.net/runtime@sha256:{'a' * 64}",
    "model": {"repo": "owner/model", "revision": "3c5ed1f0a94b27d86ef1a0b9c2d4e87f5a6b0c13"},
    "checkpoint": {
        "head": {"how": "local", "bytes": 166_857_000_000, "verified_at": "2026-12-01T07:10:31Z"},
        "worker": {"how": "nfs", "bytes": 166_857_000_000, "verified_at": "2026-12-01T07:12:02Z"},
    },
    "generation": "01abca63",
}
CHECKS = [
    {"name": "thinking", "reasoning": "6 times 7, so", "content": "42.", "problem": None},
    {"name": "image", "reasoning": "", "content": "", "problem": "400: At most 0 image(s)"},
]
ANSWERS = {"answer": "42.", "first_s": 0.5, "checks": CHECKS[:1]}
TUNNEL = ["ssh", "-N", "-S", "none", "-L", "8888:127.0.0.1:8888", "-l", "ops", "spark-a.example.net"]
SSH = """
case " $* " in
  *" -G "*) printf 'hostname spark\\nuser ops\\nport 22\\n' ;;
  *) cat >/dev/null; {does} ;;
esac
"""


@pytest.fixture
def home(
    project: Path, engine: Engine, recorder: Recorder, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> Engine:
    """A stack `home` that serves, and whose head answers, but not to this machine."""
    write(project, "home", raw())
    engine.config(raw())
    monkeypatch.setitem(OUTPUTS, "api_url", f"http://127.0.0.1:{free_port()}/v1")
    engine.outputs(OUTPUTS)
    recorder.answer("ssh", SSH.format(does=f"echo '{json.dumps(ANSWERS)}'"))
    return engine


def test_it_shows_what_serves_the_way_to_it_and_the_answer(home: Engine, spark: Spark):
    shown = spark("smoke", "--question", "What is 6 x 7?", "--took", "94", "--note", "a lab")
    assert shown.out.splitlines() == [
        f"serving  the-model  at {OUTPUTS['api_url']}    up in 1 min 34 s (a lab)",
        "kv pool  17.21 GiB a rank, 2,555,830 tokens, 2.44 requests of 1,048,576",
        "fabric   head rocep1s0f1 gid 3    worker rocep1s0f1 gid 5",
        "model    3c5ed1f0    head 155.4 GiB verified 2026-12-01 07:10 UTC"
        "    worker 155.4 GiB over NFS verified 2026-12-01 07:12 UTC",
        "image    runtime@sha256:aaaaaaaaaaaa    generation 01abca63",
        f"reach    on the head; from here: {shlex.join(TUNNEL)}",
        "> What is 6 x 7?   42.",
        "thinking (6 times 7, so)   42.",
    ]
    assert (shown.code, shown.err) == (0, "")


@pytest.mark.parametrize(
    ("pool", "line"),
    [
        (
            {"kv_tokens": 2_300_000, "expected_kv_tokens": 2_555_830},
            ["kv pool  2,300,000 tokens, 90% of what others have"],
        ),
        ({"kv_memory_gib": 16.0, "kv_tokens": None}, ["kv pool  16 GiB a rank"]),
        ({"kv_memory_gib": None, "kv_tokens": None, "context_tokens": None, "max_concurrency": None}, []),
    ],
)
def test_what_the_ranks_did_not_print_is_left_out(home: Engine, spark: Spark, pool: dict[str, Any], line: list[str]):
    home.outputs({**OUTPUTS, "kv_pool": pool})
    assert [each for each in spark("smoke").out.splitlines() if each.startswith("kv pool")] == line


def test_json_is_one_document_of_all_that(home: Engine, spark: Spark):
    shown = spark("smoke", "--json")
    assert (shown.code, json.loads(shown.out)) == (
        0,
        {
            "stack": "home",
            "outputs": OUTPUTS,
            "question": "What is 47 x 89?",
            "answer": "42.",
            "checks": CHECKS[:1],
            "tunnel": TUNNEL,
            "reach": f"on the head; from here: {shlex.join(TUNNEL)}",
        },
    )


def test_the_head_is_asked_by_the_stacks_own_name_and_no_key_leaves_it(
    home: Engine, spark: Spark, recorder: Recorder, project: Path
):
    home.config(raw(change={"engine": {"host": "0.0.0.0"}}), "api_key")
    with serving(lambda _: body({"error": "Unauthorized"}, 401)) as (url, asked_here):
        home.outputs({**OUTPUTS, "api_url": f"{url}/v1"})
        shown = spark("--stack", "acme/home", "smoke", "--json")
    document = json.loads(shown.out)
    assert (shown.code, document["tunnel"], document["reach"]) == (0, None, f"{url}/v1 answers this machine")
    assert [(path, headers.get("Authorization")) for _, path, headers, _ in asked_here] == [("/v1/models", None)]
    [asked] = [call for call in recorder.calls("ssh") if "-G" not in call]
    assert asked[-2] == "spark-a.example.net"
    inputs = json.loads(next(word for word in shlex.split(asked[-1]) if word.startswith("{")))
    assert (inputs["base_url"], inputs["stack"]) == ("http://127.0.0.1:8888", "home")
    assert not any("api_key" in word for call in home.calls() for word in call), "the key was never asked for"


def test_a_check_that_fails_is_shown_and_so_is_an_api_that_this_machine_does_not_reach(
    home: Engine, spark: Spark, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
):
    """Asked without the proxy of the environment, which may see more than this machine."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:2")
    recorder.answer("ssh", SSH.format(does=f"echo '{json.dumps({**ANSWERS, 'checks': CHECKS})}'"))
    home.config(
        raw(change={"profile": "vision-exp", "api_host": "127.0.0.1", "engine": {"host": "0.0.0.0", "port": 1}}),
        "api_key",
    )
    home.outputs({**OUTPUTS, "api_url": "http://127.0.0.1:1/v1"})
    shown = spark("smoke")
    assert shown.code == 1
    assert "image    failed: 400: At most 0 image(s)" in shown.out
    assert "http://127.0.0.1:1/v1 does not answer this machine (<urlopen error [Errno 111]" in shown.out
    [asked] = [call for call in recorder.calls("ssh") if "-G" not in call]
    inputs = json.loads(next(word for word in shlex.split(asked[-1]) if word.startswith("{")))
    assert [check["name"] for check in inputs["checks"]] == ["thinking", "image"]
    assert inputs["checks"][1]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")


def test_an_open_tunnel_is_seen_without_proxy_or_netrc(
    home: Engine, spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login ops password word\n")
    for name, value in {"HOME": str(tmp_path), "http_proxy": "http://127.0.0.1:1", "no_proxy": ""}.items():
        monkeypatch.setenv(name, value)
    with serving(lambda _: body({"data": [{"id": "the-model"}]})) as (url, requests):
        home.outputs({**OUTPUTS, "api_url": f"{url}/v1"})
        assert f"reach    {url}/v1 answers this machine" in spark("smoke").out.splitlines()
    assert ["Authorization" in headers for _, _, headers, _ in requests] == [False]


@pytest.mark.parametrize("answer", [body({"data": [{"id": "another"}]}), body([]), body({}, 404), (200, b"<html>")])
def test_another_server_at_the_url_is_not_taken_for_the_api(answer: Answer, home: Engine, spark: Spark):
    """8888 is also the port of notebooks."""
    with serving(lambda _: answer) as (url, _):
        home.outputs({**OUTPUTS, "api_url": f"{url}/v1"})
        assert f"reach    on the head; from here: {shlex.join(TUNNEL)}" in spark("smoke").out.splitlines()


def test_the_tunnel_takes_the_stacks_own_ssh_configuration_from_any_folder(home: Engine, spark: Spark, project: Path):
    nodes = [{**NODES[0], "ssh": "ops@[2001:db8::1]:2222"}, NODES[1]]
    home.config(raw(change={"ssh_config": "of ssh", "nodes": nodes, "engine": {"host": "::1"}}))
    [line] = [line for line in spark("smoke").out.splitlines() if line.startswith("reach")]
    assert shlex.split(line.partition("from here: ")[2]) == [
        *("ssh", "-N", "-S", "none", "-L", "8888:[::1]:8888", "-F", str(project / "of ssh")),
        *("-l", "ops", "-p", "2222", "2001:db8::1"),
    ]


def test_a_pair_that_does_not_answer_is_one_line_and_exit_code_1(home: Engine, spark: Spark, recorder: Recorder):
    recorder.answer("ssh", SSH.format(does="echo 'the engine ended' >&2; exit 1"))
    shown = spark("smoke", "--json")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err == (
        "no answer from the pair: rank.probe on spark-a.example.net ended with exit code 1: the engine ended: "
        "`pulumi up` finds out what is wrong\n"
    )
