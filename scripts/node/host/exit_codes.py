"""The exit codes that a caller tells apart; a script of ours ends with 0, or with 1 and its reason on stderr."""

TIMED_OUT, KILLED = 124, 137
"""Of coreutils' timeout: the limit was reached; the command was killed, by timeout or by the kernel for its memory."""
SSH_FAILED = 255
"""ssh did not reach the node."""
