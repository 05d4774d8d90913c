"""Chat encoding of DeepSeek V4: messages to one prompt. Comes with the checkpoint and must match its revision."""

ORIGIN = "checkpoint REVISION"

BEGIN = "<|begin_of_sentence|>"
END = "<|end_of_sentence|>"
ROLES = {"user": "<|User|>", "assistant": "<|Assistant|>", "system": "", "tool": "<|Tool|>"}
EFFORTS = {"low": "", "high": "Reasoning effort: high.\n", "max": "Reasoning effort: max.\n"}
"""What an effort puts in front of a thinking chat; low adds nothing, and no effort is low."""


def encode_messages(messages: list[dict[str, str]], thinking: bool = False, reasoning_effort: str | None = None) -> str:
    """The prompt of a chat. Raises ValueError for an unknown role or effort."""
    effort = reasoning_effort or "low"
    if effort not in EFFORTS:
        raise ValueError(f"reasoning_effort is {reasoning_effort!r}: it may be {', '.join(EFFORTS)}")
    parts = [BEGIN, EFFORTS[effort] if thinking else ""]
    for message in messages:
        if message["role"] not in ROLES:
            raise ValueError(f"unknown role {message['role']!r}")
        end = END if message["role"] == "assistant" else ""
        parts.append(ROLES[message["role"]] + (message.get("content") or "") + end)
    parts.append(ROLES["assistant"] + ("<think>" if thinking else "</think>"))
    return "".join(parts)
