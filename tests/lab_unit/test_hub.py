"""The lab's hub, asked over HTTP as huggingface_hub does. Whole downloads run in the lab's own tests."""

import hashlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.hub.checkpoint import LATER, REPOSITORIES
from lab.hub.server import Hub

REPO = "deepseek-ai/DeepSeek-V4-Flash-DSpark"
REVISION = REPOSITORIES[REPO].revision
SHARD = "model-00007-of-00048.safetensors"


class Client:
    """A hub and its lab folder."""

    def __init__(self, port: int, lab: Path) -> None:
        self.port, self.lab = port, lab

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            reply = connection.getresponse()
            try:
                body = reply.read()
            except http.client.IncompleteRead as cut:
                body = cut.partial
            return reply.status, {name.lower(): value for name, value in reply.headers.items()}, body
        finally:
            connection.close()

    def file(self, name: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        return self.ask(f"/{REPO}/resolve/{REVISION}/{name}", method, **headers)

    def tree(self) -> dict[str, dict[str, Any]]:
        _, _, body = self.ask(f"/api/models/{REPO}/tree/{REVISION}?recursive=true&expand=false")
        return {row["path"]: row for row in json.loads(body) if row["type"] == "file"}

    def switch(self, **switches: Any) -> None:
        (self.lab / "hub.json").write_text(json.dumps(switches))


@pytest.fixture
def hub(tmp_path, capsys) -> Iterator[Client]:
    with Hub(("127.0.0.1", 0), tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Client(server.server_address[1], tmp_path)
        server.shutdown()
        thread.join()


def test_a_file_is_what_the_listing_says_it_is(hub):
    row = hub.tree()[SHARD]
    status, headers, body = hub.file(SHARD)
    assert status == 200
    assert (len(body), hashlib.sha256(body).hexdigest()) == (row["lfs"]["size"], row["lfs"]["oid"])
    assert headers["x-linked-etag"] == headers["etag"] == f'"{row["lfs"]["oid"]}"'
    assert (headers["x-linked-size"], headers["x-repo-commit"]) == (str(len(body)), REVISION)


def test_small_files_are_named_by_gits_blob_id_and_are_no_lfs(hub):
    row = hub.tree()["encoding/encoding_dsv4.py"]
    _, headers, body = hub.file("encoding/encoding_dsv4.py")
    assert row["oid"] == hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
    assert headers["etag"] == f'"{row["oid"]}"'
    assert "lfs" not in row
    assert "x-linked-etag" not in headers
    assert REVISION[:8] in body.decode()


def test_a_head_has_the_headers_of_a_get_and_no_body(hub):
    status, headers, body = hub.file(SHARD, "HEAD")
    assert (status, body) == (200, b"")
    assert headers["content-length"] == str(hub.tree()[SHARD]["size"])


def test_a_download_goes_on_where_it_broke_off(hub):
    _, _, whole = hub.file(SHARD)
    status, headers, rest = hub.file(SHARD, Range="bytes=700000-")
    assert (status, rest) == (206, whole[700000:])
    assert headers["content-range"] == f"bytes 700000-{len(whole) - 1}/{len(whole)}"
    assert hub.file(SHARD, Range="bytes=5-9")[2] == whole[5:10]
    assert hub.file(SHARD, Range=f"bytes={len(whole)}-")[0] == 416


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"/{REPO}/resolve/{REVISION}/nowhere.txt", "EntryNotFound"),
        (f"/{REPO}/resolve/{'0' * 40}/config.json", "RevisionNotFound"),
        (f"/api/models/{REPO}/tree/{'0' * 40}", "RevisionNotFound"),
        ("/api/models/nobody/nothing/tree/main", "RepoNotFound"),
        ("/api/agent-harnesses", "NotFound"),
    ],
)
def test_what_is_not_there_is_refused_in_the_hubs_words(hub, path, code):
    status, headers, _ = hub.ask(path)
    assert (status, headers["x-error-code"]) == (404, code)


def test_main_is_the_pinned_revision(hub):
    assert hub.ask(f"/api/models/{REPO}/tree/main")[2] == hub.ask(f"/api/models/{REPO}/tree/{REVISION}")[2]
    assert hub.ask(f"/{REPO}/resolve/main/config.json")[1]["x-repo-commit"] == REVISION


def test_a_gated_repository_wants_the_right_token(hub):
    hub.switch(require_token="hf_right")
    refused = [hub.file("config.json", **headers) for headers in ({}, {"Authorization": "Bearer hf_wrong"})]
    assert [(status, headers["x-error-code"]) for status, headers, _ in refused] == [
        (401, "GatedRepo"),
        (403, "GatedRepo"),
    ]
    assert hub.file("config.json", Authorization="Bearer hf_right")[0] == 200
    assert len(hub.tree()) == 56, "the listing of a gated repository is public"


def test_a_hub_that_goes_down_stays_down_until_it_is_told_otherwise(hub):
    hub.switch(down_after_bytes=500_000)
    assert len(hub.file(SHARD)[2]) == 500_000
    assert hub.file("config.json")[0] == 503
    assert hub.ask("/lab/health")[0] == 200
    (hub.lab / "hub.json").unlink()
    assert hub.file("config.json")[0] == 200


def test_a_flipped_file_has_its_size_and_not_its_digest(hub):
    _, _, good = hub.file(SHARD)
    hub.switch(flip=[SHARD])
    _, headers, bad = hub.file(SHARD)
    assert len(bad) == len(good)
    assert sum(left != right for left, right in zip(good, bad, strict=True)) == 1
    assert headers["etag"] == f'"{hashlib.sha256(good).hexdigest()}"'


def test_a_file_of_the_wrong_size_is_short_by_the_listing_and_whole_by_its_headers(hub):
    """As if the file were truncated on the hub's side: the transfer itself is complete."""
    row, (_, _, good) = hub.tree()[SHARD], hub.file(SHARD)
    hub.switch(wrong_size=[SHARD])
    status, headers, short = hub.file(SHARD)
    assert (status, short) == (200, good[:-3])
    assert headers["content-length"] == hub.file(SHARD, "HEAD")[1]["content-length"] == str(len(short))
    assert headers["x-linked-size"] == str(row["lfs"]["size"]) == str(len(good)), "the listing's size stays"
    assert hub.tree()[SHARD] == row
    _, resumed, rest = hub.file(SHARD, Range="bytes=700000-")
    assert (rest, resumed["content-range"]) == (short[700000:], f"bytes 700000-{len(short) - 1}/{len(short)}")
    assert hub.file(SHARD, Range=f"bytes={len(short)}-")[0] == 416
    assert len(hub.file("config.json")[2]) == hub.tree()["config.json"]["size"], "other files are as they were"


def test_a_file_can_be_short_and_flipped(hub):
    _, _, good = hub.file(SHARD)
    hub.switch(wrong_size=[SHARD], flip=[SHARD])
    _, _, bad = hub.file(SHARD)
    assert len(bad) == len(good) - 3
    assert sum(left != right for left, right in zip(bad, good[:-3], strict=True)) == 1


def test_a_later_revision_is_served_beside_main(hub):
    assert LATER.revision != REVISION
    encoder = f"/{REPO}/resolve/{LATER.revision}/encoding/encoding_dsv4.py"
    _, headers, body = hub.ask(encoder)
    assert (headers["x-repo-commit"], LATER.revision[:8] in body.decode()) == (LATER.revision, True)
    rows = json.loads(hub.ask(f"/api/models/{REPO}/tree/{LATER.revision}?recursive=true")[2])
    earlier = hub.tree()
    same = [row["path"] for row in rows if row["path"].endswith(".safetensors") and row == earlier[row["path"]]]
    assert len(same) == 45


def test_the_log_has_no_token_wherever_a_client_puts_it(hub, capsys):
    hub.switch(require_token="hf_right")
    hub.file(SHARD, Authorization="Bearer hf_right", Range="bytes=5-9")
    hub.file("config.json", Authorization="Bearer hf_wrong")
    hub.ask(f"/{REPO}/resolve/main/config.json?token=hf_wrong", Cookie="token=hf_right")
    with socket.create_connection(("127.0.0.1", hub.port)) as raw:
        raw.sendall(b"Authorization: Bearer hf_right\r\n\r\n")
        assert b"400" in raw.recv(1000)
    log = capsys.readouterr()
    assert f"GET /{REPO}/resolve/{REVISION}/{SHARD} 206 bytes=5-9" in log.out
    assert "config.json 401" in log.out and "config.json 403" in log.out
    assert "hf_" not in log.out + log.err


def test_a_misspelt_switch_is_an_error_and_not_an_untested_test(hub):
    hub.switch(rate=5)
    status, headers, _ = hub.file("config.json")
    assert (status, "unknown rate" in headers["x-error-message"]) == (500, True)


def test_faults_are_what_the_lab_wrote(hub):
    assert json.loads(hub.ask("/lab/faults")[2]) == {}
    (hub.lab / "faults.json").write_text('{"1": "slow"}')
    assert json.loads(hub.ask("/lab/faults")[2]) == {"1": "slow"}
