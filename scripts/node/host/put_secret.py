"""Write one secret of the stack as a file that only its owner can read.

Inputs (JSON argument): SecretInputs. The secret itself: environment variable SPARK_SECRET, set by the payload on stdin.
Output: a word that stands for this content: random, and a new one only when the content changes, so that a label may
show it. Exit codes: 0 written; 1 failed, the reason on stderr, never the secret.
"""

import json
import os
import secrets
import sys
from pathlib import Path
from typing import TypedDict

from host.our_folder import folder_of


class SecretInputs(TypedDict):
    stack: str
    name: str
    """Of the file, and of the secret in the stack's configuration."""


def main() -> None:
    inputs: SecretInputs = json.loads(sys.argv[1])
    secret = os.environ["SPARK_SECRET"]
    file = folder_of(inputs["stack"]) / "secrets" / inputs["name"]
    word = file.with_suffix(".word")
    if not (word.is_file() and file.is_file() and file.read_text(encoding="utf-8") == secret):
        # first the word: after a power cut between the two, the next run must not take the old one
        write(word, secrets.token_hex(4))
        write(file, secret)
    print(word.read_text())


def write(file: Path, text: str) -> None:
    """Put a file that only its owner can read in the place of whatever is there."""
    temporary = file.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)
    temporary.replace(file)


if __name__ == "__main__":
    main()
