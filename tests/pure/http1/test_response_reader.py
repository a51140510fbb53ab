"""Tests of upstream responses that follow each other on one connection (RFC 9112 §4, §6.3, §9.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest

from proxy.server.http1.response_reader import (
    MAX_INFORMATIONAL,
    BrokenResponse,
    ResponseReader,
    ResponseState,
)
from tests.pure.http1.feeding import every_split

MAX_HEAD_BYTES: Final = 300
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS: Final = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SIZED: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
UNSIZED: Final = b"HTTP/1.1 200 OK\r\n\r\n"
EMPTY: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Read:
    """Everything that a response reader returned for one response."""

    statuses: list[int]
    content: bytes
    ended: bool


def expecting(*, to_head_request: bool = False) -> ResponseReader:
    reader = ResponseReader(MAX_HEAD_BYTES)
    reader.expect(to_head_request=to_head_request)
    return reader


def read(reader: ResponseReader, pieces: list[bytes]) -> Read:
    """Give a response to a response reader in the given pieces, like a connection that receives these pieces.

    No bytes may follow the response that the reader receives.
    """
    statuses: list[int] = []
    content = b""
    ended = False
    for piece in pieces:
        assert not ended
        body_piece = piece
        if reader.state is not ResponseState.BODY:
            body_piece = b""
            reader.feed(piece)
            while head := reader.next_head():
                statuses.append(head.status)
                if head.status >= 200:
                    break
            else:
                continue
        chunk, ended = reader.read_body(body_piece)
        content += chunk
    return Read(statuses, content, ended)


RESPONSES = pytest.mark.parametrize(
    ("sent", "statuses", "content"),
    [
        pytest.param(SIZED + b"hello", [200], b"hello", id="sized"),
        pytest.param(EMPTY, [200], b"", id="empty"),
        pytest.param(CHUNKED + b"5\r\nhello\r\n0\r\nA: b\r\n\r\n", [200], b"hello", id="chunked"),
        pytest.param(CHUNKED + b"0\r\n\r\n", [200], b"", id="chunked and empty"),
        pytest.param(CONTINUE + SIZED + b"hello", [100, 200], b"hello", id="behind a 100"),
        pytest.param(HINTS + HINTS + EMPTY, [103, 103, 200], b"", id="behind two hints"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", [204], b"", id="204"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", [304], b"", id="304"),
    ],
)


@RESPONSES
def test_a_response_in_any_two_pieces_and_byte_by_byte(
    sent: bytes, statuses: list[int], content: bytes
) -> None:
    for pieces in every_split(sent):
        reader = expecting()
        assert read(reader, pieces) == Read(statuses, content, ended=True)
        assert reader.state is ResponseState.ENDED
        assert reader.keep_alive


@RESPONSES
def test_one_response_follows_the_other(sent: bytes, statuses: list[int], content: bytes) -> None:
    reader = ResponseReader(MAX_HEAD_BYTES)
    assert reader.state is ResponseState.IDLE
    for _ in range(3):
        reader.expect(to_head_request=False)
        assert reader.is_untouched
        assert read(reader, [sent]) == Read(statuses, content, ended=True)


@RESPONSES
def test_bytes_behind_a_response_end_the_use_of_its_connection(
    sent: bytes, statuses: list[int], content: bytes
) -> None:
    for surplus in (b"x", SIZED + b"hello"):
        for at in range(len(sent)):
            pieces = [sent[:at], sent[at:] + surplus] if at else [sent + surplus]
            reader = expecting()
            assert read(reader, pieces) == Read(statuses, content, ended=True)
            assert not reader.keep_alive


@pytest.mark.parametrize("head", [SIZED, CHUNKED, UNSIZED, EMPTY])
def test_a_response_to_a_head_request_has_no_body(head: bytes) -> None:
    for pieces in every_split(head):
        reader = expecting(to_head_request=True)
        assert read(reader, pieces) == Read([200], b"", ended=True)
        assert reader.keep_alive


def test_each_request_says_anew_whether_its_response_has_a_body() -> None:
    reader = expecting(to_head_request=True)
    assert read(reader, [SIZED]).ended
    reader.expect(to_head_request=False)
    assert not read(reader, [SIZED]).ended


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_a_response_after_which_the_connection_does_not_persist(head: bytes) -> None:
    for pieces in every_split(head):
        reader = expecting()
        assert read(reader, pieces).ended
        assert not reader.keep_alive


def test_a_close_of_one_response_says_nothing_of_another_reader() -> None:
    reader = expecting()
    read(reader, [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"])
    reader.expect(to_head_request=False)
    read(reader, [EMPTY])
    assert reader.keep_alive


def test_a_response_without_a_length_ends_with_its_connection() -> None:
    for pieces in every_split(UNSIZED + b"hello"):
        reader = expecting()
        assert read(reader, pieces) == Read([200], b"hello", ended=False)
        assert reader.end_of_input(orderly=True)
        assert reader.state is ResponseState.ENDED
        assert not reader.keep_alive


def test_a_response_that_was_cut_has_not_ended() -> None:
    for sent, orderly in [
        (UNSIZED + b"hello", False),
        (b"", True),
        (SIZED[:9], True),
        (CONTINUE, True),
        (SIZED, True),
        (SIZED + b"hell", True),
        (CHUNKED + b"5\r\nhello\r\n0\r\n", True),
    ]:
        reader = expecting()
        assert not read(reader, [sent] if sent else []).ended
        assert not reader.end_of_input(orderly=orderly)
        assert reader.state is ResponseState.BROKEN


def test_states_of_a_response_on_its_way() -> None:
    reader = expecting()
    seen = [reader.state.value]
    for piece in (CONTINUE[:9], CONTINUE[9:], SIZED[:9], SIZED[9:], b"he", b"llo"):
        read(reader, [piece])
        seen.append(reader.state.value)
    assert seen == ["awaited", "head", "awaited", "head", "body", "body", "ended"]
    assert repr(reader) == "<ResponseReader ended>"


@pytest.mark.parametrize("sent", [b"H", CONTINUE, CONTINUE + b"H", SIZED])
def test_a_response_is_untouched_until_its_first_byte(sent: bytes) -> None:
    reader = expecting()
    assert reader.is_untouched
    read(reader, [sent])
    assert not reader.is_untouched


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"NONSENSE\r\n\r\n", "The head of the upstream's response is malformed: the status line"),
        (b"HTTP/2 200 OK\r\n\r\n", "The head of the upstream's response is malformed: the status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "The head of the upstream's response is malformed"),
        (CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n", "The head of the upstream's response is malformed"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "an unexpected interim status"),
        (CONTINUE * (MAX_INFORMATIONAL + 1), "an unexpected interim status"),
        (CHUNKED + b"x\r\n", "The upstream's response is malformed: a chunk's size line"),
        (CHUNKED + b"1\r\nxy\r\n", "The upstream's response is malformed: a chunk of the body is longer"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * MAX_HEAD_BYTES, "is too large"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", "is too large"),
    ],
)
def test_a_broken_response_is_refused_however_it_comes(sent: bytes, message: str) -> None:
    for step in (1, 7, len(sent)):
        reader = expecting()
        with pytest.raises(BrokenResponse, match=message) as caught:
            read(reader, [sent[at : at + step] for at in range(0, len(sent), step)])
        assert caught.value.head_too_large == ("too large" in message)
        assert reader.state is ResponseState.BROKEN


def test_as_many_informational_responses_as_may_come() -> None:
    for pieces in ([CONTINUE * MAX_INFORMATIONAL + EMPTY], [CONTINUE] * MAX_INFORMATIONAL + [EMPTY]):
        found = read(expecting(), pieces)
        assert found.statuses == [100] * MAX_INFORMATIONAL + [200]


def test_the_limit_of_a_head_is_its_own() -> None:
    head = b"HTTP/1.1 103 Early Hints\r\nLink: "
    head += b"x" * (MAX_HEAD_BYTES - len(head) - 4) + b"\r\n\r\n"
    assert len(head) == MAX_HEAD_BYTES
    found = read(expecting(), [head + head + SIZED + b"hello"])
    assert found.statuses == [103, 103, 200]
