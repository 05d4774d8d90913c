"""A dockerd for the unit tests: the few answers that the facts ask for, over a real unix socket."""

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

SECRET = "sk-not-to-be-seen"
IMAGE = "registry.example/anemll/dspark-vllm-gx10@sha256:" + "a" * 64

Json = dict[str, Any]


def container(
    name: str, state: str = "running", labels: dict[str, str] | None = None, host: Json | None = None
) -> Json:
    """A container as dockerd describes it, with keys in each place that can hold them."""
    return {
        "Id": name.encode().hex().ljust(64, "0")[:64],
        "Name": f"/{name}",
        "State": {
            "Status": state,
            "Running": state == "running",
            "ExitCode": 0 if state == "running" else 137,
            "OOMKilled": state != "running",
            "Error": "",
            "StartedAt": "2026-11-30T08:00:00.5Z",
            "FinishedAt": "0001-01-01T00:00:00Z" if state == "running" else "2026-11-30T09:00:00Z",
        },
        "HostConfig": {"DeviceRequests": None, "Devices": [], "Runtime": "runc", **(host or {})},
        "Config": {
            "Image": "busybox",
            "Cmd": ["serve", "--api-key", SECRET],
            "Entrypoint": None,
            "Env": [f"API_KEY={SECRET}"],
            "Labels": {**(labels or {}), "owner": SECRET},
        },
    }


GPUS: Json = {"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}
RANK_LABELS = {"spark.stack": "dev", "spark.rank": "0", "spark.generation": "7c1f"}
VLLM = container("someones-vllm")
VLLM["Config"]["Cmd"] = ["vllm", "serve", SECRET]
CONTAINERS = [
    container("spark-dev-rank0", labels=RANK_LABELS, host=GPUS),
    container("spark-dev-rank1", state="exited"),
    container("trainer", host=GPUS),
    VLLM,
    container("old-trainer", state="exited", host=GPUS),
    container("web"),
]


class Dockerd(socketserver.ThreadingUnixStreamServer):
    """Answers the few paths the facts ask for."""

    daemon_threads = True

    def __init__(self, path: Path, containers: list[Json]) -> None:
        self.answers: Json = {
            "/version": {"Version": "27.5.1", "ApiVersion": "1.47"},
            "/info": {
                "DockerRootDir": str(path.parent),
                "Driver": "overlay2",
                "Runtimes": {"runc": {}, "nvidia": {}},
            },
            "/containers/json?all=1": [
                {
                    "Id": each["Id"],
                    "Names": [each["Name"]],
                    "State": each["State"]["Status"],
                    "Labels": each["Config"]["Labels"],
                    "Ports": [{"PublicPort": 8080, "PrivatePort": 80}] if each["Name"] == "/web" else [],
                }
                for each in containers
            ],
            **{f"/containers/{each['Id']}/json": each for each in containers},
            f"/images/{IMAGE}/json": {
                "Architecture": "arm64",
                "Config": {"Env": ["PATH=/bin", "GLOO_SOCKET_IFNAME=enP7s7", "NCCL_DEBUG=WARN", "VLLM_HOST_IP=x"]},
            },
        }
        super().__init__(str(path), Answer)

    def __enter__(self) -> "Dockerd":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Dockerd)
        answer = self.server.answers.get(self.path)
        body = json.dumps({"message": "no such thing"} if answer is None else answer).encode()
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass
