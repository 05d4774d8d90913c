"""How a request's reasoning effort reaches the chat encoding, in the lines of the image's vLLM that a rank edits.

The conditions are indented as in vLLM 0.25.1, because scripts/node/rank/effort_edit.py looks for their exact text.
"""

from typing import Any, Protocol

from .deepseek_v4_encoding import encode_messages


class Tokenizer(Protocol):
    def apply_chat_template(self, messages: list[dict[str, str]], **kwargs: Any) -> str: ...


def get_deepseek_v4_tokenizer() -> Tokenizer:
    class DeepseekV4Tokenizer:
        def apply_chat_template(self, messages: list[dict[str, str]], **kwargs: Any) -> str:
            """The prompt of a chat. The template's arguments are thinking and reasoning_effort."""
            thinking = bool(kwargs.get("thinking") or kwargs.get("enable_thinking"))
            reasoning_effort = kwargs.get("reasoning_effort")
            if not isinstance(reasoning_effort, str):
                reasoning_effort = None
            elif reasoning_effort == "none":
                thinking = False
                reasoning_effort = None
            elif reasoning_effort in ("max", "xhigh"):
                reasoning_effort = "max"
            else:
                reasoning_effort = "high"
            return encode_messages(messages, thinking, reasoning_effort)

    return DeepseekV4Tokenizer()
