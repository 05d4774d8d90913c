"""patches.direction: a small file from a gated repository, used only with its sha256, its token told to nobody."""

import urllib.request
from hashlib import sha256
from pathlib import Path

import pytest

from patches import direction
from patches.direction import DirectionInputs
from tests.unit.servers import Answer, serving

CONTENT, TOKEN = b"a direction", "hf_0123456789"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def inputs(endpoint: str, content: bytes = CONTENT) -> DirectionInputs:
    digest = sha256(content).hexdigest()
    return {"stack": "dev", "endpoint": endpoint, "repository": "keys/model", "path": "ablit/r1.pt", "sha256": digest}


def test_it_is_fetched_once_with_the_token(tmp_path: Path):
    with serving(lambda _: (200, CONTENT)) as (url, requests):
        file = direction.place(inputs(url), TOKEN)
        assert direction.place(inputs(url), TOKEN) == file
    assert file == tmp_path / ".local/share/spark-stack/dev/ablation/direction_r1.pt"
    assert file.read_bytes() == CONTENT
    [(method, path, headers, _)] = requests
    assert (method, path) == ("GET", "/keys/model/resolve/main/ablit/r1.pt")
    assert headers["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((403, b""), "is gated (status 403): accept its terms with the account of hf_token"),
        ((404, b""), "has no file ablit/r1.pt (status 404)"),
        ((200, b"another"), "it is not used"),
        ((0, b""), "cannot be reached from this node: "),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_way_out_and_leaves_nothing(
    answer: Answer, reason: str, tmp_path: Path
):
    with serving(lambda _: answer) as (url, _), pytest.raises(SystemExit) as ended:
        direction.place(inputs(url), TOKEN)
    assert reason in str(ended.value) and TOKEN not in str(ended.value)
    assert not list(tmp_path.rglob("*.pt"))


def test_a_redirect_to_another_host_is_followed_without_the_token(monkeypatch: pytest.MonkeyPatch):
    """As the hub sends its clients to the store of its large files."""
    with serving(lambda _: (200, CONTENT)) as (store, asked):
        request = urllib.request.Request("http://hub/x", headers={"Authorization": f"Bearer {TOKEN}"})
        follow = direction.OnlyThere().redirect_request(request, None, 302, "Found", {}, f"{store}/y")
        assert follow is not None
        urllib.request.build_opener().open(follow).close()
    [(_, _, headers, _)] = asked
    assert "Authorization" not in headers
