"""Ask the engine from its own node until it is warm: one real completion, the shapes of service, passes that agree.

Inputs (JSON argument): ProbeInputs. The API key, if the stack has one, is read from the stack's folder and goes nowhere
else. Output: an Answer. Exit codes: 0 a completion came back; 1 none did, the reason on stderr.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import NamedTuple, TypedDict

from host.console import printable, say
from host.our_folder import folder_of

QUESTION = "What is 47 x 89?"
CHECK_TOKENS = 256
WARM_UP = "Write 200 words about memory bandwidth."
THINKING: Mapping[str, object] = {"thinking": True, "reasoning_effort": "high"}
NO_THINKING: Mapping[str, object] = {"thinking": False}
"""Switches of the chat template."""
# a node's http_proxy is for the internet, not for the engine beside us
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class WarmUp(TypedDict):
    """What is asked until the engine is warm, so that nothing is compiled in service."""

    streams: list[int]
    """How many requests at once, one round each."""
    prompt_tokens: int
    """Least length of one long prompt, more than a step takes; 0: none."""
    passes: int
    """Most passes of one request, after the rounds; they end when two in a row agree."""
    max_tokens: int
    agree: float
    """How much two passes may differ, as a fraction."""
    limit_s: float
    """Limit of the whole warm-up: no request begins after it."""


class Check(TypedDict):
    """A further request, for a person who wants to see it answered."""

    name: str
    content: object
    """Of the user's message: a text, or a list of parts."""
    template: Mapping[str, object]
    """Switches of the chat template."""


class Further(TypedDict, total=False):
    question: str
    """Instead of ours."""
    checks: list[Check]
    warm_up: WarmUp


class ProbeInputs(Further):
    base_url: str
    model: str
    """A name that the API serves."""
    stack: str
    completion_timeout_s: float


class Checked(TypedDict):
    name: str
    reasoning: str
    content: str
    problem: str | None
    """Why there is no answer, if so."""


class Answer(TypedDict):
    answer: str
    first_s: float
    """Seconds of the first completion."""
    warmup_s: list[float]
    """Seconds of each warm-up pass."""
    settled: bool
    """Whether the last two passes agree, or there were none to make."""


class Answers(Answer):
    checks: list[Checked]


class Message(NamedTuple):
    """What the model said: a thinking model may spend all its tokens on reasoning."""

    reasoning: str
    content: str

    @property
    def text(self) -> str:
        return self.content or self.reasoning


def complete(
    inputs: ProbeInputs, prompt: object, max_tokens: int, template: Mapping[str, object] | None = None
) -> tuple[Message, float]:
    """One chat completion and its seconds. Raises ValueError for an answer without text, OSError, HTTPException."""
    body: dict[str, object] = {
        "model": inputs["model"],
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    if template is not None:
        body["chat_template_kwargs"] = template
    headers = {"Content-Type": "application/json"}
    key = folder_of(inputs["stack"]) / "secrets" / "api_key"
    if key.is_file():
        headers["Authorization"] = f"Bearer {key.read_text()}"
    request = urllib.request.Request(f"{inputs['base_url']}/v1/chat/completions", json.dumps(body).encode(), headers)
    began = time.monotonic()
    with DIRECT.open(request, timeout=inputs["completion_timeout_s"]) as response:
        answer = json.load(response)
    try:
        said = answer["choices"][0]["message"]
        message = Message(str(said.get("reasoning") or ""), str(said.get("content") or ""))
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ValueError(f"the answer is not a completion: {json.dumps(answer)[:300]}") from None
    if not message.text.strip():
        raise ValueError(f"the completion is empty: {json.dumps(answer)[:300]}")
    return message, time.monotonic() - began


def checked(inputs: ProbeInputs, check: Check) -> Checked:
    """One further request. Never fatal."""
    none: Checked = {"name": check["name"], "reasoning": "", "content": "", "problem": None}
    try:
        message, _ = complete(inputs, check["content"], CHECK_TOKENS, check["template"])
    except urllib.error.HTTPError as error:
        return {**none, "problem": printable(f"{error.code}: {error.read().decode(errors='replace')}", 300)}
    except (OSError, ValueError, http.client.HTTPException) as error:
        return {**none, "problem": printable(str(error), 300)}
    return {**none, "reasoning": printable(message.reasoning.strip()), "content": printable(message.content.strip())}


class Round(NamedTuple):
    """Requests that are asked at once, all alike."""

    name: str
    streams: int = 1
    prompt: str = WARM_UP
    template: Mapping[str, object] | None = None
    """Switches of the chat template."""


def rounds(plan: WarmUp) -> list[Round]:
    """The shapes of service, from the small to the large."""
    asked = [Round(f"{n} stream{'s' * (n > 1)}", n) for n in plan["streams"]]
    if plan["prompt_tokens"]:
        asked.append(Round("a long prompt", prompt=f"{WARM_UP} {'word ' * plan['prompt_tokens']}"))
    return [*asked, Round("thinking off", template=NO_THINKING), Round("thinking on", template=THINKING)]


def at_once(inputs: ProbeInputs, plan: WarmUp, asked: Round) -> float:
    """Seconds until a round is answered. Each prompt begins with a word of its own, against the prefix cache."""

    def one(_: int) -> None:
        complete(inputs, f"[{token_hex(4)}] {asked.prompt}", plan["max_tokens"], asked.template)

    began = time.monotonic()
    with ThreadPoolExecutor(asked.streams) as pool:
        list(pool.map(one, range(asked.streams)))
    return time.monotonic() - began


def warm_up(inputs: ProbeInputs, plan: WarmUp) -> tuple[list[float], bool]:
    """Seconds of each pass, and whether the last two agree. Never fatal: the engine has already answered."""
    end = time.monotonic() + plan["limit_s"]
    passes = [Round(f"pass {number}") for number in range(1, plan["passes"] + 1)]
    steps = [*rounds(plan), *passes] if passes else []
    seconds: list[float] = []
    for number, step in enumerate(steps, 1):
        if time.monotonic() > end:
            say(f"the warm-up ends here: it took its {plan['limit_s']:.0f} s (readiness.warmup_limit_s)")
            break
        try:
            took = at_once(inputs, plan, step)
        except (OSError, ValueError, http.client.HTTPException) as error:
            say(f"warm-up, {step.name} failed: {error}: the pair serves without it")
            if step in passes:
                break
            continue
        say(f"warm-up {number} of at most {len(steps)}: {step.name}, {took:.2f} s")
        if step in passes:
            seconds.append(took)
            if len(seconds) > 1 and abs(seconds[-1] - seconds[-2]) <= plan["agree"] * seconds[-2]:
                return seconds, True
    return seconds, not steps


def main() -> None:
    inputs: ProbeInputs = json.loads(sys.argv[1])
    question = inputs.get("question", QUESTION)
    try:
        message, first_s = complete(inputs, question, 64)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise SystemExit(
                "the engine is up but refuses our API key: was it started with another one? Change the key and run up"
            ) from None
        raise SystemExit(
            f"the first completion failed with {error.code}: {printable(error.read().decode(errors='replace'), 500)}"
        ) from None
    except TimeoutError:
        limit = inputs["completion_timeout_s"]
        raise SystemExit(
            f"no completion within {limit} s, although the API is up: the engine hangs; look at both ranks"
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SystemExit(f"the first completion failed: {error}") from None
    answer = printable(message.text.strip())
    say(f"{question}   {answer}   ({first_s:.2f} s)")
    seconds, settled = warm_up(inputs, inputs["warm_up"]) if "warm_up" in inputs else ([], True)
    checks = [checked(inputs, check) for check in inputs.get("checks", [])]
    result: Answers = {"answer": answer, "first_s": first_s, "warmup_s": seconds, "settled": settled, "checks": checks}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
