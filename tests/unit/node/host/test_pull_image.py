"""The image on a node: the shipped script against a dockerd that the test answers for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from host import pull_image
from tests.unit.executables import run_shipped
from tests.unit.servers import Answer, Request, body, serving

DIGEST = "sha256:" + "ab" * 32
IMAGE = f"ghcr.io/anemll/dspark-vllm-gx10@{DIGEST}"
INPUTS = {"image": IMAGE, "architecture": "arm64", "stack": "dev"}
ABSENT = body({"message": f"No such image: {IMAGE}"}, 404)


class Daemon:
    """dockerd as far as a pull needs it."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "docker.sock"
        self.architecture = "arm64"
        self.present = False
        self.pull: Callable[[], Answer] = self.arrives
        self.requests: list[Request] = []
        self.home = folder / "home"
        (self.home / ".local/share/spark-stack/dev/cache").mkdir(parents=True)

    @property
    def folder(self) -> Path:
        return self.home / ".local/share/spark-stack/dev"

    def arrives(self) -> Answer:
        self.present = True
        events: list[dict[str, Any]] = [
            {"status": "Pulling from anemll/dspark-vllm-gx10"},
            {"status": "Downloading", "id": "a", "progressDetail": {"current": 1, "total": 100}},
            {"status": "Extracting", "id": "a", "progressDetail": {}},
            {"status": "Pull complete", "id": "a"},
        ]
        return 200, b"".join(json.dumps(event).encode() + b"\r\n" for event in events)

    def answer(self, request: Request) -> Answer:
        if request[0] == "POST":
            return self.pull()
        return body({"Architecture": self.architecture}) if self.present else ABSENT

    def run(self, answer: Callable[[Request], Answer] | None = None):
        with serving(answer or self.answer, self.socket) as (url, self.requests):
            return run_shipped("host.pull_image", INPUTS, HOME=str(self.home), DOCKER_HOST=url)


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path)


def test_an_image_that_is_there_is_not_pulled(daemon: Daemon):
    daemon.present = True
    done = daemon.run()
    assert done.returncode == 0, done.stderr
    assert [(method, path) for method, path, *_ in daemon.requests] == [("GET", f"/images/{IMAGE}/json")]


def test_an_image_that_is_not_there_is_pulled_by_its_digest(daemon: Daemon):
    done = daemon.run()
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == f"image: pulling {IMAGE}"
    assert [(method, path) for method, path, *_ in daemon.requests][1] == (
        "POST",
        f"/images/create?fromImage=ghcr.io%2Fanemll%2Fdspark-vllm-gx10&tag=sha256%3A{'ab' * 32}",
    )


def test_its_digest_is_kept_for_the_removal_and_its_kernels_get_a_folder(daemon: Daemon):
    """Kernels compiled for one image are stale for another."""
    daemon.run()
    assert (daemon.folder / "image").read_text() == f"{IMAGE}\n"
    assert (daemon.folder / "cache/abababababab").is_dir()
    assert daemon.run().returncode == 0, "a second run finds both there"


DENIED = "the registry refuses it: is the name right, and does it need a login?"
NOT_FOUND = "the registry has no such digest: compare it with the profile"
NO_ROUTE = "the node cannot reach the registry: check its route and DNS"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        # C6: auth, not found, no route
        ("error from registry: denied", DENIED),
        ("Head https://ghcr.io/v2/x: unauthorized: authentication required", DENIED),
        ("pull access denied for x, repository does not exist or may require 'docker login'", DENIED),
        ("received unexpected HTTP status: 403 Forbidden", DENIED),
        ("manifest unknown", NOT_FOUND),
        ("manifest for x@sha256:1 not found: manifest unknown: manifest unknown", NOT_FOUND),
        ("Get https://ghcr.io/v2/: dial tcp: lookup ghcr.io on 127.0.0.53:53: no such host", NO_ROUTE),
        ("Get https://ghcr.io/v2/: dial tcp 192.0.2.1:443: connect: no route to host", NO_ROUTE),
        ("dial tcp 10.0.2.2:5000: connect: connection refused", NO_ROUTE),
        ("dial tcp 10.0.2.2:5000: i/o timeout", NO_ROUTE),
        ("net/http: TLS handshake timeout", NO_ROUTE),
        (
            "http: server gave HTTP response to HTTPS client",
            "the registry speaks plain HTTP: list it under insecure-registries of the node's dockerd",
        ),
        (
            "failed to register layer: write /usr/lib/x.so: no space left on device",
            "Docker's disk is full: make room on it",
        ),
        ("something new", "see dockerd's message"),
    ],
)
def test_each_cause_of_a_failed_pull_has_its_own_way_out(message: str, cause: str):
    assert pull_image.cause(message) == cause


@pytest.mark.parametrize("where", ["before", "within"])
def test_a_failed_pull_ends_with_the_daemons_words_and_the_way_out(where: str, daemon: Daemon):
    """The daemon refuses at once with a status, or in the middle of its stream."""
    events = json.dumps({"status": "Pulling"}) + "\r\n" + json.dumps({"error": "manifest unknown"}) + "\r\n"
    answers = {"before": body({"message": "manifest unknown"}, 404), "within": (200, events.encode())}
    daemon.pull = lambda: answers[where]
    done = daemon.run()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == f"{IMAGE} cannot be pulled: manifest unknown: {NOT_FOUND}"
    assert not (daemon.folder / "image").exists()


def test_progress_counts_the_bytes_of_all_layers_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def event(status: str, layer: str, **detail: int) -> bytes:
        return json.dumps({"status": status, "id": layer, "progressDetail": detail}).encode()

    mib = 1 << 20
    stream = [
        event("Waiting", "c"),
        event("Downloading", "a", current=10 * mib, total=100 * mib),
        event("Downloading", "b", current=30 * mib, total=60 * mib),
        event("Download complete", "a"),
        event("Extracting", "a", current=1 * mib, total=999 * mib),
        event("Already exists", "c"),
        event("Pull complete", "b"),
    ]
    clock = iter([0.0, 2.0, 6.0, 6.0, 10.0, 12.0, 12.0, 13.0, 20.0, 20.0])
    monkeypatch.setattr(pull_image, "request", lambda *_, **__: stream)
    monkeypatch.setattr(pull_image.time, "monotonic", lambda: next(clock))  # type: ignore[attr-defined]
    pull_image.pull(IMAGE)
    assert capsys.readouterr().err.splitlines() == [
        "image: 40 of 160 MiB, 6.7 MiB/s, 6 s",
        "image: 130 of 160 MiB, 10.8 MiB/s, 12 s",
        "image: 160 of 160 MiB, unpacking, 20 s",
    ]


def test_a_daemon_with_trouble_of_its_own_is_no_missing_image(daemon: Daemon):
    done = daemon.run(lambda _: body({"message": "containerd is down"}, 500))
    assert done.returncode == 1 and [method for method, *_ in daemon.requests] == ["GET"]
    assert done.stderr.startswith("dockerd does not answer: containerd is down: ")


def test_a_pull_that_leaves_no_image_is_a_failure(daemon: Daemon):
    daemon.pull = lambda: (200, b"")
    done = daemon.run()
    assert done.returncode == 1
    assert f"dockerd does not have {IMAGE} after pulling it: does a registry mirror answer in its place?" in done.stderr


def test_an_image_for_another_machine_is_refused(daemon: Daemon):
    daemon.present, daemon.architecture = True, "amd64"
    done = daemon.run()
    assert done.returncode == 1
    assert done.stderr.strip() == f"{IMAGE} is for amd64, but this node is arm64: use its digest"


def test_a_daemon_that_is_not_there_is_said_in_words(tmp_path: Path):
    """Between the preflight and the pull it can go away."""
    done = run_shipped("host.pull_image", INPUTS, HOME=str(tmp_path), DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("dockerd does not answer: ")


def test_a_daemon_that_breaks_off_a_pull_is_said_in_words(daemon: Daemon):
    daemon.pull = lambda: (0, b"")
    done = daemon.run()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "dockerd does not answer: " in done.stderr
