"""What the model says: sums are computed, everything else is filler, and the same prompt always gets the same text."""

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction

NUMBER = r"(-?\d+(?:\.\d+)?)"
SIGNS = {
    "x": "*", "\u00d7": "*", "*": "*", "times": "*", "+": "+", "plus": "+", "-": "-", "\u2212": "-", "minus": "-",
    "/": "/", "\u00f7": "/", "divided by": "/", "over": "/",
}  # fmt: skip
SUM = re.compile(
    NUMBER + r"\s*(" + "|".join(re.escape(sign) for sign in sorted(SIGNS, key=len, reverse=True)) + r")\s*" + NUMBER,
    re.IGNORECASE,
)
WORDS = (
    "memory", "bandwidth", "decides", "how", "fast", "weights", "reach", "the", "cores", "so", "a", "large", "batch",
    "hides", "latency", "while", "a", "single", "stream", "waits", "for", "every", "layer", "and", "the", "fabric",
    "carries", "partial", "sums", "between", "both", "nodes", "after", "each", "block",
)  # fmt: skip
FIRST_ACCEPTED, DECAY = 0.69, 0.74
"""Chance that a step's first draft is accepted, and what is left of it from draft to draft: the mean over three is the
0.53 that the howtospark page measured for prose."""


def compute(prompt: str) -> str | None:
    """The result of the last sum `A x B` in a prompt, exact; None without one, or for a division by zero."""
    found = SUM.findall(prompt)
    if not found:
        return None
    left, sign, right = found[-1]
    a, b, operator = Fraction(left), Fraction(right), SIGNS[sign.lower()]
    if operator == "/" and b == 0:
        return None
    result = {"*": lambda: a * b, "+": lambda: a + b, "-": lambda: a - b, "/": lambda: a / b}[operator]()
    return str(result.numerator) if result.denominator == 1 else f"{float(result):.6g}"


@dataclass(frozen=True)
class Reply:
    """Tokens of one answer, the reasoning first. `finished` is false when max_tokens cut it."""

    reasoning: list[str]
    content: list[str]
    finished: bool

    @property
    def tokens(self) -> int:
        return len(self.reasoning) + len(self.content)


def reply(prompt: str, question: str, max_tokens: int, thinking: bool, ignore_eos: bool = False) -> Reply:
    """The answer to a prompt, at most max_tokens tokens. A sum is looked for in `question`, the last message."""
    result = compute(question)
    thought = f"The question is a sum, so I compute it: {result}." if result else "The user wants a text, plainly."
    reasoning = pieces(thought) if thinking else []
    finished = result is not None and not ignore_eos
    content = pieces(f"{result}.") if finished else filler(prompt, max(max_tokens - len(reasoning), 0))
    if len(reasoning) + len(content) > max_tokens:
        reasoning = reasoning[:max_tokens]
        content, finished = content[: max_tokens - len(reasoning)], False
    return Reply(reasoning, content, finished)


def pieces(text: str) -> list[str]:
    """A text as tokens: a word with the blank before it is one."""
    return re.findall(r"\s*\S+", text)


def filler(prompt: str, count: int) -> list[str]:
    start = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big")
    return [("" if number == 0 else " ") + WORDS[(start + number) % len(WORDS)] for number in range(count)]


def accepted(question: str, step: int, drafts: int) -> int:
    """Accepted drafts of one step, deterministic: the digest of question and step stands for the dice."""
    dice = hashlib.sha256(f"{question}#{step}".encode()).digest()
    threshold = int.from_bytes(dice[:4], "big") / 2**32
    return sum(1 for position in range(drafts) if threshold < FIRST_ACCEPTED * DECAY**position)
