"""Give folders and everything in them to a user, as root in a container; of a link, the link and not its target.

Arguments: user id, group id, the folders. It travels alone, so it imports no module of ours.
"""

import os
import sys


def main() -> None:
    user, group = map(int, sys.argv[1:3])
    for top in sys.argv[3:]:
        os.lchown(top, user, group)
        for parent, folders, files in os.walk(top):
            for name in folders + files:
                os.lchown(os.path.join(parent, name), user, group)


if __name__ == "__main__":
    main()
