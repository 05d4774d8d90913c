"""The hub's HTTP side: what huggingface_hub asks for when it lists and downloads a revision, and the lab's own pages.

    GET       /api/models/OWNER/NAME/tree/REV     one row for each file; LFS files with their sha256
    HEAD GET  /OWNER/NAME/resolve/REV/PATH        a file, or a range of it
    GET       /lab/faults                         the content of .lab/faults.json, `{}` without it
    GET       /lab/health                         the digest of the sources that this process runs

Errors carry the real hub's X-Error-Code, by which the client decides what to do. The log has one line for each request:
method, path, range and status. It has no other headers, queries or bodies, since those carry tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lab.hub.checkpoint import REPOSITORIES, REVISIONS, File, Repository
from lab.hub.switches import Switches, Valve
from lab.hub.tiny import TINY

CHUNK = 1 << 16
SHORT_BY = 3
"""How many bytes the switch wrong_size takes off a file."""
FOLDER = Path(__file__).parent

TREE = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)")
RESOLVE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
RANGE = re.compile(r"bytes=(\d+)-(\d*)")

MAIN: dict[str, Repository] = {**REPOSITORIES, TINY.name: TINY}
SERVED: dict[tuple[str, str], Repository] = {**REVISIONS, (TINY.name, TINY.revision): TINY}


def sources() -> str:
    """A hash over this folder's files, sixteen hex digits."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class Refusal(Exception):
    """An answer other than success: status, the hub's error code, a message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Hub(ThreadingHTTPServer):
    """The server, with the files of the lab's folder (faults, switches) and the digest of its own sources."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], lab: Path) -> None:
        super().__init__(address, Handler)
        self.valve = Valve(lab / "hub.json")
        self.faults = lab / "faults.json"
        self.sources = sources()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        try:
            if path.startswith("/lab/"):
                self.lab_page(path)
            elif self.server.valve.is_down:
                raise Refusal(503, "ServiceUnavailable", "The lab's hub is switched off by down_after_bytes")
            elif match := TREE.fullmatch(path):
                self.reply_json(list(tree(find(**match.groupdict()))))
            elif match := RESOLVE.fullmatch(path):
                self.resolve(**match.groupdict())
            else:
                raise Refusal(404, "NotFound", f"The lab's hub has no {path}")
        except Refusal as refusal:
            body = json.dumps({"error": refusal.message}).encode()
            self.reply(refusal.status, body, {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message})
        except ValueError as mistake:
            self.reply(500, json.dumps({"error": str(mistake)}).encode(), {"X-Error-Message": str(mistake)})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def lab_page(self, path: str) -> None:
        if path == "/lab/health":
            self.reply_json({"sources": self.server.sources})
        elif path == "/lab/faults":
            try:
                self.reply_json(json.loads(self.server.faults.read_text()))
            except FileNotFoundError:
                self.reply_json({})
        else:
            raise Refusal(404, "NotFound", f"The lab's hub has no {path}")

    def resolve(self, repository: str, revision: str, path: str) -> None:
        repo = find(repository, revision)
        switches = self.server.valve.switches()
        if switches.require_token is not None:
            self.require_token(repo, switches.require_token)
        file = repo.files.get(path)
        if file is None:
            raise Refusal(404, "EntryNotFound", "Entry not found")
        headers = {
            "X-Repo-Commit": repo.revision,
            "ETag": f'"{file.oid}"',
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f'inline; filename="{Path(path).name}"',
        }
        if file.lfs:
            headers |= {"X-Linked-Etag": f'"{file.oid}"', "X-Linked-Size": str(len(file.content))}
        self.send_file(faulty(file, switches), headers)

    def require_token(self, repo: Repository, expected: str) -> None:
        access = f"Access to model {repo.name} is restricted"
        if self.token() is None:
            raise Refusal(
                401, "GatedRepo", f"{access}. You must have access to it and be authenticated. Please log in."
            )
        if self.token() != expected:
            raise Refusal(
                403, "GatedRepo", f"{access} and you are not in the authorized list. Ask for access on its page."
            )

    def token(self) -> str | None:
        scheme, _, value = self.headers.get("Authorization", "").partition(" ")
        return value if scheme.lower() == "bearer" and value else None

    def send_file(self, content: bytes, headers: dict[str, str]) -> None:
        start, end = 0, len(content)
        status = 200
        if match := RANGE.fullmatch(self.headers.get("Range", "")):
            start, end = int(match[1]), min(int(match[2] or end - 1) + 1, end)
            if start >= len(content):
                self.reply(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self.head(status, end - start, headers)
        if self.command == "HEAD":
            return
        while start < end:
            allowed = self.server.valve.pass_through(min(CHUNK, end - start))
            if not allowed:
                break
            self.wfile.write(content[start : start + allowed])
            start += allowed
        if start < end:
            self.wfile.flush()
            self.close_connection = True

    def head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.head(status, len(body), {"Content-Type": "application/json", **headers})
        if self.command != "HEAD":
            self.wfile.write(body)

    def reply_json(self, value: object) -> None:
        self.reply(200, json.dumps(value).encode(), {})

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Called by send_response. A malformed request has no path yet, and may contain anything."""
        path = urlsplit(getattr(self, "path", "-")).path
        byte_range = self.headers.get("Range", "") if getattr(self, "headers", None) else ""
        line = f"{self.log_date_time_string()} {self.client_address[0]} {self.command} {path} {code} {byte_range}"
        print(line.rstrip(), flush=True)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the base class's messages quote what was sent."""


def find(repository: str, revision: str) -> Repository:
    if repository not in MAIN:
        raise Refusal(404, "RepoNotFound", "Repository not found")
    repo = MAIN[repository] if revision == "main" else SERVED.get((repository, revision))
    if repo is None:
        raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return repo


def tree(repo: Repository) -> Iterator[dict[str, object]]:
    """The rows of the recursive listing."""
    for name in sorted({str(parent) for path in repo.files for parent in Path(path).parents} - {"."}):
        yield {"type": "directory", "path": name, "size": 0, "oid": hashlib.sha1(name.encode()).hexdigest()}
    for file in repo.files.values():
        yield file.entry()


def faulty(file: File, switches: Switches) -> bytes:
    """What is sent for a file: its content, changed by the switches flip and wrong_size."""
    content = file.content[:-SHORT_BY] if file.path in switches.wrong_size else file.content
    return flip(content) if file.path in switches.flip else content


def flip(content: bytes) -> bytes:
    """The same content with the byte in the middle changed."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lab.hub.server", description="The lab's model hub.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lab", type=Path, required=True, help="folder with faults.json and hub.json")
    options = parser.parse_args(arguments)
    with Hub((options.host, options.port), options.lab) as hub:
        for repo in SERVED.values():
            size = sum(len(file.content) for file in repo.files.values())
            print(f"serving {repo.name} at {repo.revision}: {len(repo.files)} files, {size:,} bytes", flush=True)
        hub.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
