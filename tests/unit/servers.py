"""Small HTTP servers on a unix socket or on loopback, for scripts that ask one."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Request = tuple[str, str, dict[str, str], Any]
"""Method, path, headers and the parsed JSON body (None without one)."""
Answer = tuple[int, bytes]


def body(value: object, status: int = 200) -> Answer:
    return status, json.dumps(value).encode()


def handler(answer: Callable[[Request], Answer], requests: list[Request]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = json.loads(self.rfile.read(length)) if length else None
            request: Request = (self.command, self.path, dict(self.headers), sent)
            requests.append(request)
            status, content = answer(request)
            if not status:  # the server dies without an answer
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

        def address_string(self) -> str:
            return "client"

    return Handler


class UnixServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        Path(str(self.server_address)).unlink(missing_ok=True)
        self.socket.bind(self.server_address)


@contextmanager
def serving(answer: Callable[[Request], Answer], path: Path | None = None) -> Iterator[tuple[str, list[Request]]]:
    """Yields the server's URL (or its socket's) and the requests as they come."""
    requests: list[Request] = []
    answers = handler(answer, requests)
    if path:
        server: ThreadingHTTPServer = UnixServer(str(path), answers)  # type: ignore[arg-type]
        url = f"unix://{path}"
    else:
        server = ThreadingHTTPServer(("127.0.0.1", 0), answers)
        url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield url, requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
