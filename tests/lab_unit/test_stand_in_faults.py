"""The lab's faults on whole ranks that read them from a hub, as an operator sees them."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.lab_unit.stand_in_machine import Pair, two_ranks


@pytest.fixture
def pair(tmp_path, free_port) -> Iterator[Pair]:
    yield from two_ranks(tmp_path, free_port)


@pytest.fixture
def faults(monkeypatch) -> Iterator[dict[str, str]]:
    """The faults that the hub serves to the ranks. A test changes them while the ranks run."""
    told: dict[str, str] = {}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}).start()
        monkeypatch.setattr(Pair, "faults_url", f"http://127.0.0.1:{hub.server_address[1]}/lab/faults")
        yield told
        hub.shutdown()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("die-at-load", "RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("out-of-memory", "torch.OutOfMemoryError: CUDA out of memory."),
    ],
)
def test_a_worker_that_fails_at_load_ends_both_ranks_and_each_says_its_own_cause(pair, faults, fault, words):
    faults["1"] = fault
    pair.shards(24)
    pair.start(1)
    pair.start(0)
    assert (pair.code(0), pair.code(1)) == (1, 1)
    assert f"Worker_TP1 pid={pair.ranks[1].pid + 21}) ERROR" in pair.log(1)
    assert words in pair.log(1)
    assert "Connection closed by peer [127.0.0.1]" in pair.log(0)
    assert words not in pair.log(0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs_after_it_was_ready_makes_requests_wait(pair, faults, rank):
    pair.serves()
    faults[str(rank)] = "hang-after-ready"
    deadline = time.monotonic() + 10
    with pytest.raises(TimeoutError):
        while time.monotonic() < deadline:
            pair.ask("/v1/completions", timeout_s=1.5, prompt="x", max_tokens=2)
    assert pair.ask("/health")[0] == 200
    faults.clear()
    assert pair.ask("/v1/completions", prompt="x", max_tokens=2)[0] == 200


@pytest.mark.parametrize("rank", [0, 1])
def test_a_gpu_process_that_dies_ends_its_rank_with_0(pair, faults, rank):
    pair.serves()
    faults[str(rank)] = "die-after-ready"
    assert pair.code(rank) == 0
    assert f"Worker proc VllmWorker-{rank} died unexpectedly, shutting down executor." in pair.log(rank)
    assert pair.ranks[1 - rank].poll() is None


def test_a_slow_rank_slows_every_token(pair, faults):
    faults["1"] = "slow"
    pair.start(1, LAB_SPEED="0.2")
    pair.start(0)
    pair.wait_for(0, "Application startup complete.")
    began = time.monotonic()
    pair.ask("/v1/completions", prompt="x", max_tokens=16)
    assert time.monotonic() - began > 0.06, (
        "at least four steps of 16 ms, which are a millisecond each without the fault"
    )
