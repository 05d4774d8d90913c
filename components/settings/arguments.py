"""Which further arguments of `vllm serve` a stack file may give: those that reach nothing that the program sets.

vLLM's parser (0.25.1, tried) accepts underscores, any unambiguous beginning of a flag, --no-FLAG, FLAG.KEY and short
forms; of a flag given twice, the last wins silently. So the question is which of our flags an argument would reach.
"""

import re
from collections.abc import Iterable, Sequence

SECRET_NAME = re.compile(r"TOKEN(?!S|IZ|_ID)|SECRET|PASSWORD|API_K|CREDENTIAL")
"""Matches the abbreviations that argparse accepts too, but not TOKENIZERS_PARALLELISM, ..._TOKENS or ..._TOKEN_IDS."""
RENDERED_FLAGS = frozenset(
    [
        "--revision",
        "--trust-remote-code",
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--async-scheduling",
        "--enable-chunked-prefill",
        "--speculative-config",
        "--tokenizer-mode",
        "--distributed-executor-backend",
        "--moe-backend",
        "--tool-call-parser",
        "--enable-auto-tool-choice",
        "--reasoning-parser",
        "--reasoning-config",
        "--default-chat-template-kwargs",
        "--generation-config",
        "--enable-flashinfer-autotune",
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--headless",
    ]
)
"""Flags of every rank that are not settings."""
BEHIND = {
    "--speculative-config": "engine.num_speculative_tokens and engine.draft_sample_method",
    "--default-chat-template-kwargs": "engine.default_thinking",
    "--revision": "checkpoint.revision",
    "--tensor-parallel-size": "the list of nodes",
    "--nnodes": "the list of nodes",
}
"""What a stack sets instead of some of them."""
REFUSED = {
    "--max-num-partial-prefills": "the engine of the pinned image refuses --max-num-partial-prefills: remove it",
    "--model": "the program names the model: use checkpoint.repo",
    "--config": "--config would bring in flags that no preview shows: write them as settings or in extra_args",
}
WHOLE_FLAGS = frozenset(["--tokenizer"])
"""A flag of its own, although one of ours begins with it; vLLM 0.25.1 has no other."""


def complaint(argument: str, settings: Iterable[str]) -> str | None:
    """Why one argument cannot be given; None where it can. `settings` are the names of the engine's settings."""
    if not argument.startswith("-") or re.fullmatch(r"-[\d.]+", argument):
        return None  # a value
    if not argument.startswith("--"):
        return f"{argument} is a short form: write the flag's whole name"
    flag = re.split(r"[=.]", argument.replace("_", "-"), maxsplit=1)[0]
    if SECRET_NAME.search(flag.removeprefix("--").replace("-", "_").upper()):
        return f"{flag} would show a secret to everyone on the node: use pulumi config set --secret api_key"
    if flag in WHOLE_FLAGS:
        return None
    positive = f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else flag
    ours = {f"--{name.replace('_', '-')}": name for name in settings} | dict.fromkeys([*RENDERED_FLAGS, *REFUSED], "")
    reached = flag_reached(positive, ours)
    if reached is None:
        return None
    what = flag if flag == reached else f"{flag}, which vLLM takes for {reached},"
    if reached in REFUSED:
        return REFUSED[reached]
    if ours[reached]:
        return f"{what} is a setting of its own: use engine.{ours[reached]}"
    instead = f", and use {BEHIND[reached]}" if reached in BEHIND else ""
    return f"the program sets {reached} for every rank: remove {'it' if flag == reached else flag}{instead}"


def flag_reached(flag: str, ours: Iterable[str]) -> str | None:
    """Which of our flags vLLM's parser takes this one for, or could."""
    known = sorted(ours)
    return flag if flag in known else next((each for each in known if each.startswith(flag)), None)


def complaints(arguments: Sequence[str], settings: Sequence[str]) -> list[str]:
    return [text for argument in arguments if (text := complaint(argument, settings))]
