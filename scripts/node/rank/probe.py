"""Ask the engine from its own node until it is warm: one real completion, then warm-up passes that agree.

Inputs (JSON argument): ProbeInputs. The API key, if the stack has one, is read from the stack's folder and goes nowhere
else. Output: an Answer. Exit codes: 0 a completion came back; 1 none did, the reason on stderr.
"""

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from typing import TypedDict

from host.console import say
from host.our_folder import folder_of

QUESTION = "What is 47 x 89?"
WARM_UP = "Write 200 words about memory bandwidth."
# a node's http_proxy is for the internet, not for the engine beside us
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class AnyQuestion(TypedDict, total=False):
    question: str
    """Instead of ours."""


class ProbeInputs(AnyQuestion):
    base_url: str
    model: str
    """A name that the API serves."""
    stack: str
    completion_timeout_s: float
    warmup_passes: int
    warmup_max_tokens: int
    warmup_agree: float
    """How much the last two passes may differ, as a fraction."""


class Answer(TypedDict):
    answer: str
    first_s: float
    """Seconds of the first completion."""
    warmup_s: list[float]
    """Seconds of each warm-up pass."""
    settled: bool
    """Whether the last two passes agree, or there were none to make."""


def complete(inputs: ProbeInputs, prompt: str, max_tokens: int) -> tuple[str, float]:
    """One chat completion: text and seconds. Reasoning counts as text: a thinking model may spend its tokens there."""
    body = {
        "model": inputs["model"],
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    headers = {"Content-Type": "application/json"}
    key = folder_of(inputs["stack"]) / "secrets" / "api_key"
    if key.is_file():
        headers["Authorization"] = f"Bearer {key.read_text()}"
    request = urllib.request.Request(f"{inputs['base_url']}/v1/chat/completions", json.dumps(body).encode(), headers)
    began = time.monotonic()
    with DIRECT.open(request, timeout=inputs["completion_timeout_s"]) as response:
        answer = json.load(response)
    try:
        message = answer["choices"][0]["message"]
        text = message.get("content") or message.get("reasoning") or ""
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ValueError(f"the answer to {prompt!r} is not a completion: {json.dumps(answer)[:300]}") from None
    if not text.strip():
        raise ValueError(f"the completion of {prompt!r} is empty: {json.dumps(answer)[:300]}")
    return text, time.monotonic() - began


def warm_up(inputs: ProbeInputs) -> tuple[list[float], bool]:
    """Seconds of each pass, and whether the last two agree. Never fatal: the engine has already answered."""
    seconds: list[float] = []
    for number in range(1, inputs["warmup_passes"] + 1):
        try:
            seconds.append(complete(inputs, WARM_UP, inputs["warmup_max_tokens"])[1])
        except (OSError, ValueError, http.client.HTTPException) as error:
            say(f"warm-up {number} failed: {error}: continuing without it")
            return seconds, False
        say(f"warm-up {number} of at most {inputs['warmup_passes']}: {seconds[-1]:.2f} s")
        if number > 1 and abs(seconds[-1] - seconds[-2]) <= inputs["warmup_agree"] * seconds[-2]:
            return seconds, True
    return seconds, not seconds


def main() -> None:
    inputs: ProbeInputs = json.loads(sys.argv[1])
    question = inputs.get("question", QUESTION)
    try:
        answer, first_s = complete(inputs, question, 64)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise SystemExit(
                "the engine is up but refuses our API key: was it started with another one? Change the key and run up"
            ) from None
        raise SystemExit(
            f"the first completion failed with {error.code}: {error.read().decode(errors='replace')[:500]}"
        ) from None
    except TimeoutError:
        limit = inputs["completion_timeout_s"]
        raise SystemExit(
            f"no completion within {limit} s, although the API is up: the engine hangs; look at both ranks"
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SystemExit(f"the first completion failed: {error}") from None
    say(f"{question}   {answer.strip()}   ({first_s:.2f} s)")
    seconds, settled = warm_up(inputs)
    result: Answer = {"answer": answer.strip(), "first_s": first_s, "warmup_s": seconds, "settled": settled}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
