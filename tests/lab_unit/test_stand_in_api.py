"""The stand-in's API as a client sees it: names, key, streams, usage, metrics, and the engine's death."""

import http.client
import io
import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from lab.runtime.vllm import api, config, flags
from lab.runtime.vllm.api import Server
from lab.runtime.vllm.engine import Engine
from lab.runtime.vllm.log import Log, Logs
from lab.runtime.vllm.tokenizers import deepseek_v4
from scripts.commands.smoke import red_png
from tests.lab_unit.stand_in_machine import RECIPE

NAME = "deepseek-v4-flash-dspark"


class Client:
    """Sends requests to one server."""

    def __init__(self, server: Server, engine: Engine, log: io.StringIO) -> None:
        self.port, self.server, self.engine, self.log = server.server_address[1], server, engine, log

    def ask(self, path: str, body: Any = None, key: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def chat(self, text: Any, **more: Any) -> dict[str, Any]:
        status, reply = self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})
        assert status == 200, reply
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def events(self, text: Any, **more: Any) -> list[dict[str, Any]]:
        body = {"messages": [{"role": "user", "content": text}], "stream": True, **more}
        _, reply = self.ask("/v1/chat/completions", body)
        lines = [line.removeprefix("data: ") for line in reply.split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    def metric(self, name: str) -> float:
        _, text = self.ask("/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))


def serve(keys: list[str], *more: str) -> Iterator[Client]:
    options = flags.parse(["serve", "org/model", *RECIPE, "--served-model-name", NAME, "alias", *more])
    log = io.StringIO()
    logs = Logs(Log("APIServer", 1, log), Log("EngineCore", 13, log), Log("Worker_TP0", 22, log))
    engine = Engine(config.engine_config(options), 2_555_830, logs, step=lambda: None)
    server = Server("127.0.0.1", 0, keys, details=True, log=logs.api)
    server.open(engine)
    try:
        yield Client(server, engine, log)
    finally:
        engine.dead.set()
        server.shutdown()
        server.server_close()


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_SPEED", "0")
    monkeypatch.setattr(api, "POLL_S", 0.01)


@pytest.fixture
def client(monkeypatch) -> Iterator[Client]:
    hurry(monkeypatch)
    yield from serve([])


@pytest.fixture
def guarded(monkeypatch) -> Iterator[Client]:
    hurry(monkeypatch)
    yield from serve(["k1", "k2"])


@pytest.fixture
def sighted(monkeypatch) -> Iterator[Client]:
    """An engine that takes two images."""
    hurry(monkeypatch)
    yield from serve([], "--limit-mm-per-prompt", '{"image":2}')


def picture(content: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(content).decode()}"}}


def test_all_names_are_listed_and_answer(client):
    _, listing = client.ask("/v1/models")
    assert [(row["id"], row["max_model_len"]) for row in json.loads(listing)["data"]] == [
        (NAME, 1048576),
        ("alias", 1048576),
    ]
    assert client.chat("What is 47 x 89?", model="alias")["choices"][0]["message"]["content"] == "4183."
    status, refusal = client.ask(
        "/v1/chat/completions", {"model": "gpt", "messages": [{"role": "user", "content": "x"}]}
    )
    assert (status, json.loads(refusal)["error"]["type"]) == (404, "NotFoundError")


def test_a_stream_packs_up_to_four_tokens_an_event_and_ends_with_the_usage(client):
    events = client.events("Write prose", max_tokens=64, stream_options={"include_usage": True})
    texts = [event["choices"][0]["delta"]["content"] for event in events if event["choices"]]
    packed = [len(text.split()) for text in texts if text.strip()]
    assert max(packed) == 4
    assert len(packed) < 40, "frames are fewer than tokens, so counting frames is wrong"
    assert events[-1]["usage"]["completion_tokens"] == 64
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert "".join(texts) == client.chat("Write prose", max_tokens=64)["choices"][0]["message"]["content"]


def test_thinking_is_asked_for_by_the_chat_template(client):
    thinking = {"chat_template_kwargs": {"thinking": True}}
    message = client.chat("What is 47 x 89?", max_tokens=64, **thinking)["choices"][0]["message"]
    assert "4183" in message["reasoning"]
    assert (message["content"], "reasoning_content" in message) == ("4183.", False)
    deltas = [event["choices"][0]["delta"] for event in client.events("What is 47 x 89?", max_tokens=64, **thinking)]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == message["reasoning"]
    assert client.chat("What is 47 x 89?", max_tokens=3, **thinking)["choices"][0]["message"]["content"] is None


def test_a_request_s_effort_goes_through_the_image_s_mapping(client, monkeypatch):
    seen: list[tuple[bool, str | None]] = []

    def encode(messages: list[dict[str, str]], thinking: bool, effort: str | None) -> str:
        seen.append((thinking, effort))
        return "prompt"

    monkeypatch.setattr(deepseek_v4, "encode_messages", encode)
    for effort in ("low", "max"):
        client.chat("x", chat_template_kwargs={"thinking": True, "reasoning_effort": effort})
    assert seen == [(True, "high"), (True, "max")], "the image turns low into high, until a rank's start corrects it"


def test_an_effort_beside_the_messages_turns_thinking_on_or_off_as_in_vllm(client):
    """Its protocol.py passes it on to the template, with enable_thinking."""
    on, off = ({"reasoning_effort": effort} for effort in ("low", "none"))
    assert client.chat("What is 47 x 89?", **on)["choices"][0]["message"]["reasoning"]
    thinking = {"chat_template_kwargs": {"thinking": True}}
    assert client.chat("What is 47 x 89?", **off, **thinking)["choices"][0]["message"]["reasoning"] is None


def test_a_users_image_is_seen_in_an_answer_and_in_a_stream(sighted):
    content = [{"type": "text", "text": "What is this?"}, picture(red_png(3))]
    message = sighted.chat(content, reasoning_effort="high")["choices"][0]["message"]
    assert message["content"] == "An image of 3 by 3 pixels." and "image" in message["reasoning"]
    deltas = [event["choices"][0]["delta"] for event in sighted.events(content, reasoning_effort="high")]
    for part in ("reasoning", "content"):
        assert "".join(delta.get(part, "") for delta in deltas) == message[part]
    assert sighted.chat("What is <image>?")["choices"], "a word is no image"


@pytest.mark.parametrize(
    ("role", "parts", "message", "param"),
    [
        ("user", [picture(red_png())] * 3, "At most 2 image(s) may be provided in one prompt. Set `--limit", "image"),
        ("user", [{"type": "audio_url"}], "At most 0 audio(s) may be provided in one prompt.", "audio"),
        ("system", [picture(red_png())], "image_url is not supported in a message of role system", None),
        ("assistant", [picture(red_png())], "image_url is not supported in a message of role assistant", None),
        ("user", [picture(b"GIF89a")], "Failed to load image: cannot identify image file", None),
    ],
)
def test_an_image_that_is_not_taken_is_a_bad_request(sighted, role, parts, message, param):
    status, reply = sighted.ask("/v1/chat/completions", {"messages": [{"role": role, "content": parts}]})
    error = json.loads(reply)["error"]
    assert error.pop("message").startswith(message)
    assert (status, error) == (400, {"type": "BadRequestError", "param": param, "code": 400})


def test_the_counters_move_as_drafts_are_accepted(client):
    client.chat("Write prose", max_tokens=200)
    drafts, drafted, accepted = (
        client.metric(f"spec_decode_num_{name}_total") for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert drafted == 3 * drafts > 0
    assert accepted == client.metric("spec_decode_num_accepted_tokens_per_pos_total")
    assert 0.4 < accepted / drafted < 0.65
    assert client.metric("generation_tokens_total") == 200
    assert client.metric("num_requests_running") == 0


def test_a_long_prompt_sent_again_is_found_in_the_prefix_cache(client):
    prompt = "word " * 600
    first = client.chat(prompt, max_tokens=1)["usage"]
    again = client.chat(prompt, max_tokens=1)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["prompt_tokens_details"]["cached_tokens"] == 512, "whole blocks of 256 tokens"
    assert client.metric("prefix_cache_hits_total") == 512


@pytest.mark.parametrize(
    ("path", "body", "key", "status"),
    [
        ("/v1/models", None, None, 401),
        ("/v1/models", None, "k3", 401),
        ("/v1/nowhere", None, None, 401),
        ("/v1/models", None, "k2", 200),
        ("/v1/nowhere", None, "k1", 404),
        ("/inference/v1/generate", {}, None, 401),
        ("/invocations", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, None, 200),
        ("/invocations", None, None, 405),
        ("/is_scaling_elastic_ep", {"x": 1}, None, 200),
        ("/scale_elastic_ep", {"x": 1}, None, 400),
        ("/health", None, None, 200),
        ("/openapi.json", None, None, 200),
        ("/metrics", None, None, 200),
        ("/nowhere", None, None, 404),
    ],
)
def test_the_key_guards_exactly_what_it_guards_in_vllm(guarded, path, body, key, status):
    answered, reply = guarded.ask(path, body, key=key)
    assert answered == status
    assert status != 401 or json.loads(reply) == {"error": "Unauthorized"}


def test_a_model_s_document_has_the_fields_of_the_real_one(client):
    [row, _] = json.loads(client.ask("/v1/models")[1])["data"]
    assert list(row) == [
        *("id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"),
    ]
    assert row["permission"][0]["id"].startswith("modelperm-")


def test_metrics_have_the_labels_of_the_real_ones(client):
    text = client.ask("/metrics")[1]
    for line in (
        f'vllm:num_requests_running{{engine="0",model_name="{NAME}"}} 0.0',
        f'vllm:prefix_cache_queries_total{{engine="0",model_name="{NAME}"}} 0.0',
    ):
        assert line in text
    assert 'kv_cache_size_tokens="2555830"' in text


def test_a_worker_that_is_lost_is_noticed_by_the_next_request_alone(client):
    def lost():
        raise RuntimeError("Connection closed by peer [192.168.100.2]:49283")

    client.engine.step = lost
    assert client.ask("/health") == (200, "")
    assert client.log.getvalue().count("ERROR") == 0
    status, body = client.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
    assert (status, json.loads(body)["error"]["type"]) == (500, "InternalServerError")
    assert client.ask("/health") == (503, "")
    first = next(line for line in client.log.getvalue().splitlines() if "Error: " in line)
    assert first.startswith("(Worker_TP0 pid=22) ERROR ")
    assert first.endswith("RuntimeError: Connection closed by peer [192.168.100.2]:49283")


def test_a_rank_that_stands_still_freezes_the_tokens_and_nothing_else(client):
    goes_on = threading.Event()
    client.engine.step = lambda: goes_on.wait(20)
    answer: list[Any] = []
    asking = threading.Thread(target=lambda: answer.append(client.chat("Write prose", max_tokens=8)))
    asking.start()
    while not client.metric("num_requests_running"):
        pass
    assert (client.metric("generation_tokens_total"), client.ask("/health")[0]) == (0, 200)
    goes_on.set()
    asking.join(10)
    assert answer[0]["usage"]["completion_tokens"] == 8


def test_requests_are_logged_as_uvicorn_does(client):
    client.ask("/health")
    assert client.log.getvalue().startswith("(APIServer pid=1) INFO:     127.0.0.1:")
    assert '"GET /health HTTP/1.1" 200 OK' in client.log.getvalue()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "max_tokens must be at least 1"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2**21}, "maximum context length is 1048576"),
        ({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "off"}, "or 'max'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, f"{NAME} is not a multimodal model"),
    ],
)
def test_a_request_that_vllm_refuses_is_a_bad_request(client, body, words):
    status, reply = client.ask("/v1/chat/completions", body)
    assert (status, words in reply) == (400, True), reply
