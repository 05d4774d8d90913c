"""Remove files, links and folders with everything in them, as root in a container; never a link's target.

Arguments: their paths. It travels alone, so it imports no module of ours.
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
