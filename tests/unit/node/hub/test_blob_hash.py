"""A blob's name is its hash, of two kinds."""

import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub import blob_hash
from hub.blob_hash import digest_of, hasher

GIT_EMPTY = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
GIT_HELLO = "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object of "hello\n"


def test_a_name_of_64_digits_is_the_sha256_of_the_content(tmp_path: Path):
    (tmp_path / "blob").write_bytes(b"hello\n")
    assert digest_of(tmp_path / "blob", "0" * 64) == hashlib.sha256(b"hello\n").hexdigest()


def test_a_name_of_40_digits_is_what_git_calls_the_content(tmp_path: Path):
    (tmp_path / "blob").write_bytes(b"hello\n")
    (tmp_path / "empty").write_bytes(b"")
    assert digest_of(tmp_path / "blob", "0" * 40) == GIT_HELLO
    assert digest_of(tmp_path / "empty", "0" * 40) == GIT_EMPTY


@pytest.mark.parametrize("name", ["", "main", "0" * 39, "0" * 63, "0" * 65, "G" * 40, "A" * 64, "0" * 40 + "\n"])
def test_any_other_name_says_nothing_of_the_content(name: str, tmp_path: Path):
    (tmp_path / "blob").write_bytes(b"hello\n")
    assert hasher(name, 6) is None
    assert digest_of(tmp_path / "blob", name) is None


@given(st.binary(max_size=100), st.integers(1, 40))
def test_the_pieces_of_a_file_do_not_change_its_hash_and_are_all_reported(content: bytes, piece: int):
    pieces: list[int] = []
    with pytest.MonkeyPatch.context() as patch, tempfile.NamedTemporaryFile() as file:
        patch.setattr(blob_hash, "PIECE_BYTES", piece)
        file.write(content)
        file.flush()
        assert digest_of(Path(file.name), "0" * 64, pieces.append) == hashlib.sha256(content).hexdigest()
    assert sum(pieces) == len(content) and all(0 < count <= piece for count in pieces)


def test_a_file_that_cannot_be_read_is_no_mismatch(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        digest_of(tmp_path / "gone", "0" * 64)
