"""The command line: the recipe's flags with the types and choices of the real parser, and argparse's refusals.

Some values are accepted here and refused later by config.py (a wrong speculative method, an unknown tool parser), as in
vLLM.
"""

import argparse
import json
import re
import sys
from typing import Any, NoReturn

from . import __version__

KV_CACHE_DTYPES = (
    "auto", "bfloat16", "float16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_per_token_head",
    "int4_per_token_head", "int8_per_token_head", "nvfp4", "nvfp4_ds_mla", "turboquant_3bit_nc", "turboquant_4bit_nc",
    "turboquant_k3v4_nc", "turboquant_k8v4",
)  # fmt: skip
"""vLLM's choices, plus nvfp4_ds_mla, which the image's overlay adds."""
MOE_BACKENDS = (
    "auto", "aiter", "cutlass", "deep_gemm", "flashinfer_b12x", "flashinfer_cutedsl", "flashinfer_cutlass",
    "flashinfer_trtllm", "marlin", "triton",
)  # fmt: skip
TOKENIZER_MODES = ("auto", "custom", "deepseek_v32", "deepseek_v4", "hf", "mistral", "slow")
EXECUTORS = ("external_launcher", "mp", "ray", "uni")
REASONING_KEYS = ("reasoning_end_str", "reasoning_parser", "reasoning_start_str")
UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Parser(argparse.ArgumentParser):
    """argparse that takes underscores in flag names as dashes, like vLLM's own parser."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args([dashed(argument) for argument in given], namespace)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n")


def dashed(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def human_integer(text: str) -> int:
    """`1048576`, `1k` (1000), `1K` (1024), `1.5m`."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if not match or ("." in match[1] and not match[2]):
        raise argparse.ArgumentTypeError(f"invalid integer value: {text!r}")
    return int(float(match[1]) * UNITS[match[2]]) if match[2] else int(match[1])


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to {json.loads}.")
    return value


def reasoning_config(text: str) -> dict[str, Any]:
    value = json_object(text)
    for key in value:
        if key not in REASONING_KEYS:
            raise argparse.ArgumentTypeError(
                f"Value {text} cannot be converted to ReasoningConfig: {key}: Unexpected keyword argument"
            )
    return value


def serve_parser(parser: argparse.ArgumentParser) -> None:
    """Add the model and every flag of the recipe."""
    switch = argparse.BooleanOptionalAction
    add = parser.add_argument
    add("model_tag", nargs="?")
    add("--revision")
    add("--served-model-name", nargs="+")
    add("--host")
    add("--port", type=int, default=8000)
    add("--trust-remote-code", action=switch, default=False)
    add("--api-key", nargs="*")
    add("--tensor-parallel-size", "-tp", type=int, default=1)
    add("--pipeline-parallel-size", "-pp", type=int, default=1)
    add("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto")
    add("--block-size", type=int)
    add("--max-model-len", type=human_integer)
    add("--max-num-seqs", type=int)
    add("--max-num-batched-tokens", type=human_integer)
    add("--max-num-partial-prefills", type=int, default=1)
    add("--long-prefill-token-threshold", type=int, default=0)
    add("--max-cudagraph-capture-size", type=int)
    add("--gpu-memory-utilization", type=float, default=0.92)
    add("--kv-cache-memory-bytes", type=human_integer)
    add("--enable-prefix-caching", action=switch)
    add("--enable-prompt-tokens-details", action=switch, default=False)
    add("--async-scheduling", action=switch)
    add("--enable-chunked-prefill", action=switch)
    add("--speculative-config", "-sc", type=json_object)
    add("--tokenizer-mode", choices=TOKENIZER_MODES, default="auto")
    add("--limit-mm-per-prompt", type=json_object)
    add("--distributed-executor-backend", choices=EXECUTORS)
    add("--moe-backend", choices=MOE_BACKENDS, default="auto")
    add("--tool-call-parser")
    add("--enable-auto-tool-choice", action=switch, default=False)
    add("--reasoning-parser", default="")
    add("--reasoning-config", type=reasoning_config)
    add("--default-chat-template-kwargs", type=json_object)
    add("--generation-config", default="auto")
    add("--enable-flashinfer-autotune", action=switch)
    add("--nnodes", type=int, default=1)
    add("--node-rank", type=int, default=0)
    add("--master-addr", default="127.0.0.1")
    add("--master-port", type=int, default=29501)
    add("--distributed-timeout-seconds", type=int, default=600)
    add("--headless", action="store_true")


def parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parsers of the whole command and of `serve`."""
    top = Parser(prog="vllm", description="vLLM CLI")
    top.add_argument("-v", "--version", action="version", version=__version__)
    commands = "{chat,complete,serve,launch,bench,collect-env,run-batch}"
    serve = top.add_subparsers(dest="subparser", parser_class=Parser, metavar=commands).add_parser(
        "serve", usage="vllm serve [model_tag] [options]", prog="vllm serve"
    )
    serve_parser(serve)
    return top, serve


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse `vllm ARGUMENTS`. A refusal prints usage and `error:` on stderr and exits with 2."""
    top, serve = parsers()
    options = top.parse_args(arguments)
    if options.subparser is None:
        top.print_help()
        raise SystemExit(1)
    options.non_default = {
        action.dest: getattr(options, action.dest)
        for action in serve._actions
        if action.dest != "help" and getattr(options, action.dest) != action.default
    }
    options.non_default["model"] = options.model_tag
    return options
