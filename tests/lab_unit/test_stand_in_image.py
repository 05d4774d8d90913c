"""How the runtime image is made: layers that are the same every time, and files where the real image has them."""

import json
import shutil
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lab.runtime import image, oci

FILES = {"usr/local/bin/vllm": (b"#!/usr/bin/python3\n", 0o755), "usr/local/x": (b"x", 0o644)}


@pytest.fixture
def layer(tmp_path) -> oci.Layer:
    if shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    return oci.compress(oci.tar_of(FILES), tmp_path / "layer.tar.zst")


def test_a_tar_has_every_folder_and_nothing_of_this_machine():
    first, again = oci.tar_of(FILES), oci.tar_of(dict(reversed(FILES.items())))
    assert first.getvalue() == again.getvalue()
    with tarfile.open(fileobj=first) as tar:
        entries = {entry.name: entry for entry in tar}
    assert list(entries) == ["usr", "usr/local", "usr/local/bin", "usr/local/bin/vllm", "usr/local/x"]
    assert {(entry.uid, entry.gid, entry.mtime) for entry in entries.values()} == {(0, 0, oci.EPOCH)}
    assert entries["usr/local/bin/vllm"].mode == 0o755


def test_an_image_made_twice_has_one_digest(layer, tmp_path):
    (tmp_path / "again").mkdir()
    twin = oci.compress(oci.tar_of(FILES), tmp_path / "again" / "layer.tar.zst")
    made, again = oci.image_of([layer], image.CONFIG), oci.image_of([twin], image.CONFIG)
    assert made.digest == again.digest
    assert json.loads(made.config)["rootfs"]["diff_ids"] == [oci.sha256(oci.tar_of(FILES).getvalue())]


def test_a_layer_is_found_again_and_a_half_written_one_is_not(layer):
    assert oci.reopen(layer.file) == layer
    layer.file.rename(layer.file.with_name("layer.tar.zst.part"))
    assert oci.reopen(layer.file) is None


def test_the_stand_in_lies_where_the_recipe_looks_for_vllm():
    files = image.stand_in_files()
    assert "usr/local/lib/python3.12/dist-packages/vllm/tokenizers/deepseek_v4_encoding.py" in files
    assert files["usr/local/bin/vllm"][1] == 0o755
    assert not [path for path in files if "__pycache__" in path]
    assert "GLOO_SOCKET_IFNAME=enP7s7" in image.CONFIG["Env"]


class Shelf(BaseHTTPRequestHandler):
    """A registry that keeps what it gets, by path."""

    kept: dict[str, bytes]
    refused: str

    def do_HEAD(self) -> None:
        self.answer(200 if self.path in self.kept else 404)

    def do_POST(self) -> None:
        self.answer(202, Location=f"{self.path}1?_state=x")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path.replace("uploads/1?_state=x&digest=", "")
        if self.refused and self.refused in path:
            self.answer(400)
            return
        self.kept[path] = body
        self.answer(201)

    def answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def shelf() -> Iterator[tuple[oci.Registry, type[Shelf]]]:
    class Fresh(Shelf):
        kept: dict[str, bytes] = {}  # noqa: RUF012 - the handler's class is the store
        refused = ""

    with ThreadingHTTPServer(("127.0.0.1", 0), Fresh) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield oci.Registry(f"127.0.0.1:{server.server_address[1]}"), Fresh
        server.shutdown()
        thread.join()


def test_a_push_uploads_what_is_lacking_and_the_manifest_last(layer, shelf):
    registry, store = shelf
    made = oci.image_of([layer], image.CONFIG)
    registry.push(made, "org/name", "1")
    assert list(store.kept) == [
        f"/v2/org/name/blobs/{oci.sha256(made.config)}",
        f"/v2/org/name/blobs/{layer.digest}",
        "/v2/org/name/manifests/1",
    ]
    assert store.kept[f"/v2/org/name/blobs/{layer.digest}"] == layer.file.read_bytes()
    assert oci.sha256(store.kept["/v2/org/name/manifests/1"]) == made.digest


def test_a_refused_manifest_is_an_error(layer, shelf):
    registry, store = shelf
    store.refused = "manifests"
    with pytest.raises(OSError, match="refused the manifest of org/name:1 with status 400"):
        registry.push(oci.image_of([layer], image.CONFIG), "org/name", "1")
