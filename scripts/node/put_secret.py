"""Write one secret of the stack as a file that only its owner can read.

Inputs (JSON argument): stack, name. The secret itself: environment variable SPARK_SECRET, set by the payload on stdin.
Output: nothing. Exit codes: 0 written; 1 failed, the reason on stderr, never the secret.
"""

import json
import os
import sys

from our_folder import folder_of


def main() -> None:
    inputs = json.loads(sys.argv[1])
    path = folder_of(inputs["stack"]) / "secrets" / inputs["name"]
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(os.environ["SPARK_SECRET"])
    temporary.replace(path)


if __name__ == "__main__":
    main()
