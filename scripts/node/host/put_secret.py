"""Write one secret of the stack as a file that only its owner can read.

Inputs (JSON argument): SecretInputs. The secret itself: environment variable SPARK_SECRET, set by the payload on stdin.
Output: a random word, a new one each time. Exit codes: 0 written; 1 failed, the reason on stderr, never the secret.
"""

import json
import os
import re
import secrets
import sys
from typing import TypedDict

from host.our_folder import folder_of


class SecretInputs(TypedDict):
    stack: str
    name: str
    """Of the file, and of the secret in the stack's configuration."""


def main() -> None:
    inputs: SecretInputs = json.loads(sys.argv[1])
    secret = os.environ["SPARK_SECRET"]
    # vLLM takes a leading - for a flag; an HTTP header cannot carry the other characters
    if not re.fullmatch(r"(?!-)[!-~]+", secret) or "\\" in secret:
        raise SystemExit(
            f"{inputs['name']} must be one word of printable ASCII without a backslash, and not start with -: "
            f"set another one (pulumi config set --secret {inputs['name']} ...)"
        )
    path = folder_of(inputs["stack"]) / "secrets" / inputs["name"]
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret)
    temporary.replace(path)
    print(secrets.token_hex(4))


if __name__ == "__main__":
    main()
