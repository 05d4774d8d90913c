"""Chat encoding of DeepSeek V4 as the image ships it. A rank's start copies the checkpoint's own over it."""

ORIGIN = "image"


def encode_messages(messages: list[dict[str, str]], thinking: bool = False, reasoning_effort: str | None = None) -> str:
    """The prompt of a chat: the contents in order, roles in front."""
    return "\n".join(f"{message['role']}: {message.get('content') or ''}" for message in messages)
