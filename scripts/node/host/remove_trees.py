"""Remove files, links and folders with all that is in them, as root in a container; nothing behind a link.

Arguments: their paths. It travels alone, so it imports nothing of ours.
"""

import os
import shutil
import sys


def main() -> None:
    for path in sys.argv[1:]:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)


if __name__ == "__main__":
    main()
