"""OpenAI requests as the API reads them, and the documents of its answers."""

import base64
import json
import struct
import time
import uuid
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from . import answers
from .config import Config
from .engine import Piece, Usage

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""What a request's reasoning_effort may be."""
UNBOUNDED_TOKENS = 256
"""The length of a text without a limit in the request."""


class BadRequest(Exception):
    """An error document: status, type, message, and the parameter that is wrong."""

    def __init__(
        self, message: str, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.document = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass
class Request:
    """One completion to make."""

    model: str
    prompt: str
    question: str
    answer: answers.Reply
    usage: Usage
    chat: bool
    stream: bool
    include_usage: bool
    details: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def finish_reason(self) -> str:
        return "stop" if self.answer.finished else "length"

    def usage_document(self) -> dict[str, Any]:
        prompt, completion = self.usage.prompt_tokens, self.usage.completion_tokens
        details = {"cached_tokens": self.usage.cached_tokens} if self.details else None
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": details,
        }

    def head(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl-" if self.chat else "cmpl-"
        return {"id": prefix + self.id, "object": kind, "created": self.created, "model": self.model}

    def document(self, pieces: list[Piece]) -> dict[str, Any]:
        """The whole answer."""
        content = "".join(token for piece in pieces for token in piece.content)
        reasoning = "".join(token for piece in pieces for token in piece.reasoning)
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": self.finish_reason,
            "stop_reason": None,
        }
        if self.chat:
            # if reasoning uses up all tokens, the content is null
            choice["message"] = {
                "role": "assistant",
                "content": content or None if reasoning else content,
                "refusal": None,
                "reasoning": reasoning or None,
            }
            return {**self.head("chat.completion"), "choices": [choice], "usage": self.usage_document()}
        choice["text"] = reasoning + content
        return {**self.head("text_completion"), "choices": [choice], "usage": self.usage_document()}

    def events(self, piece: Piece | None) -> dict[str, Any]:
        """One stream event: the tokens of a step, or the end for None."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": None if piece else self.finish_reason}
        reasoning = "".join(piece.reasoning) if piece else ""
        content = "".join(piece.content) if piece else ""
        if not self.chat:
            return {**self.head("text_completion"), "choices": [{**choice, "text": reasoning + content}]}
        delta: dict[str, Any] = {}
        if reasoning:
            delta["reasoning"] = reasoning
        if content or not reasoning:
            delta["content"] = content
        return {**self.head("chat.completion.chunk"), "choices": [{**choice, "delta": delta}]}

    def first_event(self) -> dict[str, Any]:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return {**self.head("chat.completion.chunk"), "choices": [choice]}

    def usage_event(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self.head(kind), "choices": [], "usage": self.usage_document()}


def text_of(message: dict[str, Any], config: Config) -> tuple[str, int]:
    """A message's content as text, which is a string or a list of parts, and how many images it has."""
    content, images = message.get("content") or "", 0
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = []
    for part in parts:
        if part.get("type") == "text":
            texts.append(part["text"])
        else:
            images += 1
            texts.append(image(part, message.get("role", "user"), config))
    return "\n".join(texts), images


def image(part: dict[str, Any], role: str, config: Config) -> str:
    """What stands for an image in a prompt. Raises BadRequest, in vLLM's words but for a role and for other URLs."""
    kind = part.get("type", "unknown").removesuffix("_url")
    if not config.images:
        raise BadRequest(f"{config.served_model_name[0]} is not a multimodal model")
    if kind != "image":
        raise BadRequest(f"At most 0 {kind}(s) may be provided in one prompt.", param=kind)
    if role != "user":
        # the recipe's patch of the encoder refuses it, in words that we have not seen
        raise BadRequest(f"image_url is not supported in a message of role {role}")
    header, _, data = part["image_url"]["url"].partition(";base64,")
    if not header.startswith("data:"):
        raise BadRequest("the lab's stand-in fetches nothing: give the image as a data: URL in base64")
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError:
        content = b""
    if len(content) < 24 or not content.startswith(b"\x89PNG"):
        raise BadRequest("Failed to load image: cannot identify image file (the stand-in knows PNG)")
    return "<image {} by {}>".format(*struct.unpack(">II", content[16:24]))


def template_of(asked: dict[str, Any], config: Config) -> dict[str, Any]:
    """The chat template's arguments: the server's, the request's own, and its reasoning_effort, which wins."""
    mine = asked.get("chat_template_kwargs") or {}
    effort = asked.get("reasoning_effort")
    if effort not in (None, *EFFORTS):
        choices = f"{', '.join(map(repr, EFFORTS[:-1]))} or {EFFORTS[-1]!r}"
        raise BadRequest(
            "1 validation error:\n  {'type': 'literal_error', 'loc': ('body', 'reasoning_effort'), "
            f"'msg': \"Input should be {choices}\"}}"
        )
    named = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    if "enable_thinking" in mine:
        named.pop("enable_thinking", None)
    return {**config.chat_template_kwargs, **mine, **named}


def read(body: bytes, chat: bool, config: Config, details: bool) -> Request:
    """Read and check the body of a request. Raises BadRequest with vLLM's status."""
    try:
        asked = json.loads(body)
        assert isinstance(asked, dict)
    except (ValueError, AssertionError):
        raise BadRequest("JSON decode error") from None
    model = asked.get("model") or config.served_model_name[0]
    if model not in config.served_model_name:
        raise BadRequest(f"The model `{model}` does not exist.", 404, "NotFoundError", "model")
    thinking = False
    if chat:
        messages = asked.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest(
                "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}"
            )
        read_in = [text_of(message, config) for message in messages]
        if sum(images for _, images in read_in) > config.images:
            raise BadRequest(
                f"At most {config.images} image(s) may be provided in one prompt. "
                "Set `--limit-mm-per-prompt` to increase this limit.",
                param="image",
            )
        flat = [
            {"role": message.get("role", "user"), "content": text}
            for message, (text, _) in zip(messages, read_in, strict=True)
        ]
        template = template_of(asked, config)
        thinking = bool(template.get("thinking") or template.get("enable_thinking"))
        thinking = thinking and template.get("reasoning_effort") != "none"
        # imported late, because a rank's start edits the mapping and replaces the encoder
        mapping = import_module(".tokenizers.deepseek_v4", __package__)
        try:
            prompt = mapping.get_deepseek_v4_tokenizer().apply_chat_template(flat, **template)
        except ValueError as refusal:
            raise BadRequest(str(refusal)) from None
        question = flat[-1]["content"]
    else:
        prompt = question = str(asked.get("prompt") or "")
    prompt_tokens = max(1, len(answers.pieces(prompt)))
    limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BadRequest(f"max_tokens must be at least 1, got {limit}.", param="max_tokens")
    if prompt_tokens + (limit or 1) > config.max_model_len:
        raise BadRequest(
            f"This model's maximum context length is {config.max_model_len} tokens. "
            f"However, you requested {limit or 1} output tokens and your prompt contains {prompt_tokens}."
        )
    answer = answers.reply(prompt, question, limit or UNBOUNDED_TOKENS, thinking, bool(asked.get("ignore_eos")))
    if limit is None and not answer.finished:
        answer = answers.Reply(answer.reasoning, answer.content, True)
    options = asked.get("stream_options") or {}
    return Request(
        model,
        prompt,
        question,
        answer,
        Usage(prompt_tokens, 0, 0),
        chat,
        bool(asked.get("stream")),
        bool(options.get("include_usage")),
        details,
    )
