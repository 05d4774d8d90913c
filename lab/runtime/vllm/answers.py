"""What the model answers: the result of a sum, an image's size, else filler. Equal prompts get equal texts."""

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
IMAGE = re.compile(r"<image (\d+ by \d+)>")
"""What requests.py puts in the place of an image."""
WORDS = (
    "memory", "bandwidth", "decides", "how", "fast", "weights", "reach", "the", "cores", "so", "a", "large", "batch",
    "hides", "latency", "while", "a", "single", "stream", "waits", "for", "every", "layer", "and", "the", "fabric",
    "carries", "partial", "sums", "between", "both", "nodes", "after", "each", "block",
)  # fmt: skip
FIRST_ACCEPTED, DECAY = 0.69, 0.74
"""The chance that a step's first draft is accepted, and the factor on it from draft to draft.

Over three drafts the mean is the 0.53 that the howtospark page measured for prose.
"""


def compute(prompt: str) -> str | None:
    """The exact result of the last sum `A x B` in a prompt; None without one, or for a division by zero."""
    sums = SUM.findall(prompt)
    if not sums:
        return None
    left, sign, right = sums[-1]
    a, b, operator = Fraction(left), Fraction(right), SIGNS[sign.lower()]
    if operator == "/" and b == 0:
        return None
    result = {"*": lambda: a * b, "+": lambda: a + b, "-": lambda: a - b, "/": lambda: a / b}[operator]()
    return str(result.numerator) if result.denominator == 1 else f"{float(result):.6g}"


@dataclass(frozen=True)
class Reply:
    """The tokens of one answer, reasoning first. `finished` is false if max_tokens cut it."""

    reasoning: list[str]
    content: list[str]
    finished: bool

    @property
    def tokens(self) -> int:
        return len(self.reasoning) + len(self.content)


def reply(prompt: str, question: str, max_tokens: int, thinking: bool, ignore_eos: bool = False) -> Reply:
    """The answer to a prompt, at most max_tokens tokens. The sum is taken from `question`, the last message."""
    text, thought = None, "The user wants a text, plainly."
    if result := compute(question):
        text, thought = f"{result}.", f"The question is a sum, so I compute it: {result}."
    elif image := IMAGE.search(question):
        text, thought = f"An image of {image[1]} pixels.", "The user shows an image, so I look at it."
    reasoning = pieces(thought) if thinking else []
    finished = text is not None and not ignore_eos
    content = pieces(text) if text and finished else filler(prompt, max(max_tokens - len(reasoning), 0))
    if len(reasoning) + len(content) > max_tokens:
        reasoning = reasoning[:max_tokens]
        content, finished = content[: max_tokens - len(reasoning)], False
    return Reply(reasoning, content, finished)


def pieces(text: str) -> list[str]:
    """A text as tokens: each word, with the blank before it."""
    return re.findall(r"\s*\S+", text)


def filler(prompt: str, count: int) -> list[str]:
    start = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big")
    return [("" if number == 0 else " ") + WORDS[(start + number) % len(WORDS)] for number in range(count)]


def accepted(question: str, step: int, drafts: int) -> int:
    """How many drafts of a step are accepted. The digest of question and step serves as a fixed random number."""
    dice = hashlib.sha256(f"{question}#{step}".encode()).digest()
    threshold = int.from_bytes(dice[:4], "big") / 2**32
    return sum(1 for position in range(drafts) if threshold < FIRST_ACCEPTED * DECAY**position)
