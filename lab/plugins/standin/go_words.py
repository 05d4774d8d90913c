"""What the official plugins, written in Go, would have said: quoting, exit statuses, dial errors."""

from __future__ import annotations

import re
import signal

_ESCAPES = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}


def quote(text: str) -> str:
    """As Go's %q: printable characters stay, the others are escaped."""

    def one(character: str) -> str:
        if character in '"\\':
            return "\\" + character
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character.isprintable():
            return character
        code = ord(character)
        if code < 0x80:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return '"' + "".join(map(one, text)) + '"'


def local_status(status: int) -> str:
    """How a local process ended; `status` is negative for a signal."""
    if status >= 0:
        return f"exit status {status}"
    name = signal.strsignal(-status) or f"signal {-status}"
    return f"signal: {name.lower()}"


def start_error(error: OSError, program: str, directory: str | None) -> str:
    """Why a local process did not start."""
    reason = (error.strerror or str(error)).lower()
    if directory is not None and error.filename == directory:
        return f"chdir {directory}: {reason}"
    if "/" not in program and isinstance(error, FileNotFoundError):
        return f'exec: "{program}": executable file not found in $PATH'
    return f"fork/exec {program}: {reason}"


_DIAL_ERRORS = (
    (r"connection refused", "dial tcp {endpoint}: connect: connection refused"),
    (r"timed out", "dial tcp {endpoint}: i/o timeout"),
    (r"no route to host", "dial tcp {endpoint}: connect: no route to host"),
    (r"network is unreachable", "dial tcp {endpoint}: connect: network is unreachable"),
    (r"could not resolve hostname", "dial tcp: lookup {host}: no such host"),
    (
        r"permission denied|too many authentication failures",
        "ssh: handshake failed: ssh: unable to authenticate, attempted methods [none publickey], "
        "no supported methods remain",
    ),
    (
        r"host key verification failed|host identification has changed|no .*host key is known|no matching host key",
        "ssh: handshake failed: ssh: host key mismatch",
    ),
)


def dial_error(ssh_says: str, host: str, port: int) -> str:
    """The words for what the ssh program said; its own where none are known."""
    for pattern, words in _DIAL_ERRORS:
        if re.search(pattern, ssh_says, re.IGNORECASE):
            return words.format(host=host, endpoint=f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return " ".join(ssh_says.split()) or "ssh ended without a word"
