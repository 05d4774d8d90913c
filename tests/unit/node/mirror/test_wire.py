"""The mirror's protocol: what any bytes do to it, and that nobody gets past it without the token."""

import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirror.wire import FRAME_BYTES, HANDSHAKE_BYTES, Refused, Wire, WireError, admit, introduce, pack
from tests.unit.characters import ANY

texts = st.text(ANY, max_size=9)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
messages = st.dictionaries(texts, plain | st.lists(plain, max_size=3), max_size=3)
tokens = st.text(ANY, min_size=1, max_size=20)


def pair() -> tuple[socket.socket, Wire]:
    """A plain socket, and the wire at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plain = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
    wire = Wire(connection, gone_after_s=5)
    wire.limit_silence(2)
    return plain, wire


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Wire]]:
    plain, wire = pair()
    yield plain, wire
    plain.close()
    wire.close()


@given(st.lists(messages, min_size=1, max_size=3), st.integers(1, 30))
def test_messages_arrive_as_they_were_however_the_network_cuts_them(said: list[dict[str, Any]], cut: int):
    plain, wire = pair()
    data = b"".join(pack(message) for message in said)
    for at in range(0, len(data), cut):
        plain.send(data[at : at + cut])
    plain.close()
    assert [wire.receive() for _ in said] == said
    with pytest.raises(WireError, match="closed the connection"):
        wire.receive()
    wire.close()


@given(st.binary(max_size=60))
@example(b"")
@example(struct.pack(">I", 2) + b"[]")
@example(struct.pack(">I", 3) + b"nul")
@example(struct.pack(">I", 2) + b"\xff\xfe")
@example(struct.pack(">I", 5000) + b"9" * 5000)
@example(struct.pack(">I", 100_000) + b"[" * 100_000)
@example(struct.pack(">I", FRAME_BYTES + 1) + b"{}")
def test_any_bytes_are_a_message_or_a_refusal_and_nothing_else(data: bytes):
    plain, wire = pair()
    plain.sendall(data)
    plain.close()
    try:
        message = wire.receive()
    except WireError:
        return
    finally:
        wire.close()
    (length,) = struct.unpack(">I", data[:4])
    assert message == json.loads(data[4 : 4 + length])


def test_what_follows_a_message_is_left_for_its_reader(ends: tuple[socket.socket, Wire]):
    plain, wire = ends
    plain.sendall(pack({"size": 3}) + b"abc" + pack({"next": True}))
    piece = memoryview(bytearray(3))
    assert (wire.receive(), wire.receive_into(piece), bytes(piece)) == ({"size": 3}, 3, b"abc")
    assert wire.receive() == {"next": True}


def test_a_stranger_cannot_make_it_hold_a_long_frame(ends: tuple[socket.socket, Wire]):
    plain, wire = ends
    plain.sendall(struct.pack(">I", HANDSHAKE_BYTES + 1))
    with pytest.raises(WireError, match="frame of 1,025 bytes"):
        wire.receive(HANDSHAKE_BYTES)


def test_a_silent_end_is_noticed(ends: tuple[socket.socket, Wire]):
    _, wire = ends
    wire.limit_silence(0.05)
    with pytest.raises(WireError, match="silent for too long"):
        wire.receive()


def test_a_message_that_no_frame_holds_is_refused_where_it_is_made():
    for message in ({"a": float("nan")}, {"a": "x" * FRAME_BYTES}):
        with pytest.raises(ValueError):
            pack(message)


# --- the handshake ---


def both(source_token: str, copy_token: str) -> tuple[bool | None, bool, bytes]:
    """What each end made of a handshake, and all the bytes that went over the wire either way."""
    plain, wire = pair()
    outer, source = pair()
    heard, admitted = bytearray(), []

    def relay(one: socket.socket, other: socket.socket) -> None:
        while data := one.recv(65536):
            heard.extend(data)
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)

    def serve() -> None:
        admitted.append(admit(source, source_token))
        source.close()

    threads = [threading.Thread(target=relay, args=ends) for ends in ((plain, outer), (outer, plain))]
    threads.append(threading.Thread(target=serve))
    for thread in threads:
        thread.start()
    try:
        introduce(wire, copy_token)
        trusted = True
    except Refused:
        trusted = False
    finally:
        wire.close()
        for thread in threads:
            thread.join()
        plain.close()
        outer.close()
    return admitted[0], trusted, bytes(heard)


@given(tokens, tokens)
@example("a", "a")
@example("a", "b")
def test_both_ends_are_let_in_exactly_when_they_have_one_token(source: str, copy: str):
    admitted, trusted, _ = both(source, copy)
    assert admitted is trusted is (source == copy)


def test_the_token_itself_never_travels_and_no_handshake_is_like_another():
    token = "5ecret" * 8
    first, second = both(token, token)[2], both(token, token)[2]
    assert token.encode() not in first + second
    said = [set(re.findall(rb"[0-9a-f]{64}", heard)) for heard in (first, second)]
    assert [len(hashes) for hashes in said] == [4, 4] and not said[0] & said[1]


@pytest.mark.parametrize("proof", [None, True, "", "0" * 64, "\udc80", "its own"])
def test_a_source_that_does_not_know_the_token_is_not_believed(proof: object, ends: tuple[socket.socket, Wire]):
    """Something else that listens at the head's address; also if it sends the copy's own proof back."""
    plain, wire = ends
    other = Wire(plain, gone_after_s=5)
    answers: list[dict[str, Any]] = []

    def pretend() -> None:
        other.send({"nonce": "0" * 64})
        answers.append(other.receive())
        other.send({"proof": answers[0]["proof"] if proof == "its own" else proof})

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(Refused, match="could not prove that it knows the token"):
        introduce(wire, "token")
    thread.join()
    assert "proof" in answers[0]


@pytest.mark.parametrize("answer", [{}, {"nonce": 1}, {"nonce": "0" * 63}, {"nonce": "0" * 64 + " "}])
def test_an_end_that_says_something_else_is_not_talked_to(answer: dict[str, Any], ends: tuple[socket.socket, Wire]):
    plain, wire = ends
    plain.sendall(pack({**answer, "proof": "0" * 64}))
    with pytest.raises(WireError, match="does not speak the mirror's protocol"):
        admit(wire, "token")
