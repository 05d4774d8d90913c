"""The OpenAI-compatible HTTP server of the head, with vLLM's paths, errors, key check and access log."""

import json
import socket
import threading
import time
import uuid
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import __version__
from .engine import Engine
from .errors import EngineDeadError
from .log import Log
from .requests import BadRequest, Request, read

GUARDED = ("/v1", "/v2", "/inference")
"""Path prefixes that need the key. /invocations makes completions too, but does not need it."""
ROUTES = {
    "/openapi.json": "HEAD, GET", "/docs": "HEAD, GET", "/docs/oauth2-redirect": "HEAD, GET", "/redoc": "HEAD, GET",
    "/load": "GET", "/version": "GET", "/health": "GET", "/metrics": "GET", "/tokenize": "POST", "/detokenize": "POST",
    "/v1/models": "GET", "/ping": "GET, POST", "/invocations": "POST", "/v1/chat/completions": "POST",
    "/v1/chat/completions/batch": "POST", "/v1/responses": "POST", "/v1/completions": "POST", "/v1/messages": "POST",
    "/v1/messages/count_tokens": "POST", "/generative_scoring": "POST", "/scale_elastic_ep": "POST",
    "/is_scaling_elastic_ep": "POST", "/v1/chat/completions/render": "POST", "/v1/completions/render": "POST",
    "/v1/chat/completions/derender": "POST", "/v1/completions/derender": "POST", "/inference/v1/generate": "POST",
}  # fmt: skip
"""All paths of the real server with their methods. Those that PAGES lacks refuse every body."""
BODY_LIMIT = 64 << 20
POLL_S = 0.05
"""How often the server checks whether it must end."""


class Server(ThreadingHTTPServer):
    """Binds when it is made, so that a taken port shows before the load; listens only once `open` is called."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, api_keys: list[str], details: bool, log: Log) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler, bind_and_activate=False)
        self.api_keys, self.details, self.log = api_keys, details, log
        self.engine: Engine
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def open(self, engine: Engine) -> None:
        self.engine = engine
        self.server_activate()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": POLL_S}, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "uvicorn"
    sys_version = ""
    server: Server

    def do_GET(self) -> None:
        self.route("GET")

    def do_POST(self) -> None:
        self.route("POST")

    def route(self, method: str) -> None:
        path = self.path.partition("?")[0]
        try:
            length = int(self.headers.get("Content-Length") or 0)
            self.body = self.rfile.read(min(length, BODY_LIMIT))
            if path.startswith(GUARDED) and not self.has_key():
                self.reply(401, {"error": "Unauthorized"})
            elif path not in ROUTES:
                self.reply(404, {"detail": "Not Found"})
            elif method not in ROUTES[path]:
                self.reply(405, {"detail": "Method Not Allowed"})
            else:
                PAGES.get(path, Handler.refuse)(self)
        except BadRequest as refusal:
            self.reply(refusal.status, refusal.document)
        except EngineDeadError as end:
            self.reply(500, dead(end))

    def refuse(self) -> None:
        if self.command == "POST":
            raise BadRequest("the lab's stand-in does not support this")
        self.reply_bytes(200, b"{}", "application/json")

    def has_key(self) -> bool:
        keys = self.server.api_keys
        scheme, _, value = self.headers.get("Authorization", "").partition(" ")
        return not keys or (scheme.lower() == "bearer" and value in keys)

    def health(self) -> None:
        # stays 200 when the engine hangs
        self.reply_bytes(503 if self.server.engine.dead.is_set() else 200, b"", "text/plain")

    def metrics(self) -> None:
        self.reply_bytes(200, self.server.engine.metrics.text().encode(), "text/plain; version=1.0.0; charset=utf-8")

    def models(self) -> None:
        config = self.server.engine.config
        common = {
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": config.model,
            "parent": None,
        }
        permission = {
            "id": f"modelperm-{uuid.uuid4().hex[:16]}", "object": "model_permission", "created": common["created"],
            "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
            "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*",
            "group": None, "is_blocking": False,
        }  # fmt: skip
        length = {"max_model_len": config.max_model_len, "permission": [permission]}
        rows = [{"id": name, **common, **length} for name in config.served_model_name]
        self.reply(200, {"object": "list", "data": rows})

    def complete(self, chat: bool) -> None:
        engine = self.server.engine
        request = read(self.body, chat, engine.config, self.server.details)
        pieces = engine.generate(request.prompt, request.question, request.answer, request.usage)
        if request.stream:
            self.stream(request, pieces)
        else:
            self.reply(200, request.document(list(pieces)))

    def stream(self, request: Request, pieces: Any) -> None:
        """Send one event for each step, which has several tokens if drafts were accepted."""
        first = next(pieces, None)
        self.start(200, {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"})
        if request.chat:
            self.event(request.first_event())
        try:
            piece = first
            while piece is not None:
                self.event(request.events(piece))
                piece = next(pieces, None)
            self.event(request.events(None))
            if request.include_usage:
                self.event(request.usage_event())
        except EngineDeadError as end:
            self.event(dead(end))
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, document: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def start(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def reply(self, status: int, document: Any) -> None:
        self.reply_bytes(status, json.dumps(document).encode(), "application/json")

    def reply_bytes(self, status: int, body: bytes, kind: str) -> None:
        self.start(status, {"Content-Type": kind, "Content-Length": str(len(body))})
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        client = f"{self.client_address[0]}:{self.client_address[1]}"
        status = f"{int(code)} {HTTPStatus(int(code)).phrase}"
        self.server.log.raw(f'INFO:     {client} - "{self.requestline}" {status}')

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing here: log_request logs in uvicorn's form."""


def dead(end: EngineDeadError) -> dict[str, Any]:
    return {"error": {"message": str(end), "type": "InternalServerError", "param": None, "code": 500}}


PAGES: dict[str, Callable[[Handler], None]] = {
    "/health": Handler.health,
    "/ping": Handler.health,
    "/metrics": Handler.metrics,
    "/version": lambda handler: handler.reply(200, {"version": __version__}),
    "/load": lambda handler: handler.reply(200, {"server_load": 0}),
    "/is_scaling_elastic_ep": lambda handler: handler.reply(200, {"is_scaling_elastic_ep": False}),
    "/v1/models": Handler.models,
    "/v1/chat/completions": lambda handler: handler.complete(chat=True),
    "/v1/completions": lambda handler: handler.complete(chat=False),
    "/invocations": lambda handler: handler.complete(chat=True),
}
