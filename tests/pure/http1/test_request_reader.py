"""Tests of requests on one connection (RFC 9112 §2.2, §3, §6): heads, bodies, pipelining, and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest

from proxy.server.errors import MalformedBody, MalformedHead
from proxy.server.http1.body_reader import CHUNKED, UNTIL_CLOSE
from proxy.server.http1.chunked import framed_chunk
from proxy.server.http1.request_reader import (
    EXCESS_FRAMING_BYTES,
    HeadTooLong,
    RequestReader,
    TooManyFields,
)
from tests.pure.http1.feeding import every_split

GET: Final = b"GET /v1.0/me HTTP/1.1\r\nHost: proxy\r\n\r\n"
SIZED: Final = b"POST /v1.0/users HTTP/1.1\r\nHost: proxy\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS: Final = (
    b"PUT /v1.0/file HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: dropped\r\n\r\n"
)
OLD: Final = b"GET /v1.0/old HTTP/1.0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Read:
    """A request in the form in which the request reader returned it."""

    target: str
    content: bytes = b""


READ: Final = {
    GET: Read("/v1.0/me"),
    SIZED: Read("/v1.0/users", b"hello"),
    CHUNKS: Read("/v1.0/file", b"hello"),
    OLD: Read("/v1.0/old"),
}


def reader_with(*, max_head_bytes: int = 300, max_fields: int = 5) -> RequestReader:
    return RequestReader(max_head_bytes=max_head_bytes, max_fields=max_fields)


def read(reader: RequestReader, pieces: list[bytes]) -> list[Read]:
    """Pass the pieces of bytes to a request reader one by one, like a connection that receives these pieces.

    Return the complete requests that the reader returned.
    """
    requests: list[Read] = []
    target, content = "", b""
    for piece in pieces:
        if reader.body_remaining:
            chunk, ended = reader.read_body(piece)
            content += chunk
            if not ended:
                continue
            requests.append(Read(target, content))
        else:
            reader.feed(piece)
        while head := reader.next_head():
            target, content = head.target, b""
            if reader.body_remaining:
                content, ended = reader.read_body(reader.take_waiting())
                if not ended:
                    break
            requests.append(Read(target, content))
    return requests


def head_with(*fields: bytes, target: bytes = b"/") -> bytes:
    return b"".join(
        [b"GET %b HTTP/1.1\r\nHost: p\r\n" % target, *(each + b"\r\n" for each in fields), b"\r\n"]
    )


# Whole, in pieces, pipelined


@pytest.mark.parametrize("request_", READ, ids=["GET", "sized", "chunked", "HTTP/1.0"])
def test_a_request_in_any_two_pieces_and_byte_by_byte(request_: bytes) -> None:
    for pieces in every_split(request_):
        reader = reader_with()
        assert read(reader, pieces) == [READ[request_]]
        assert (reader.waiting, reader.body_remaining) == (0, 0)


@pytest.mark.parametrize("first", READ, ids=["GET", "sized", "chunked", "HTTP/1.0"])
@pytest.mark.parametrize("second", READ, ids=["GET", "sized", "chunked", "HTTP/1.0"])
def test_two_pipelined_requests_however_they_are_split(first: bytes, second: bytes) -> None:
    for pieces in every_split(first + second):
        reader = reader_with()
        assert read(reader, pieces) == [READ[first], READ[second]]
        assert reader.waiting == 0


def test_pipelined_requests_wait_until_they_are_asked_for() -> None:
    reader = reader_with()
    reader.feed(GET * 3)
    for left in (2, 1, 0):
        head = reader.next_head()
        assert head is not None
        assert head.target == "/v1.0/me"
        assert reader.waiting == left * len(GET)
    assert reader.next_head() is None


def test_bytes_that_come_behind_pipelined_requests_continue_them() -> None:
    reader = reader_with()
    reader.feed(GET + GET[:10])
    assert reader.next_head() is not None
    reader.feed(GET[10:] + OLD[:-1])
    assert reader.next_head() is not None
    assert reader.next_head() is None
    reader.feed(OLD[-1:])
    assert read(reader, [b""]) == [READ[OLD]]


@pytest.mark.parametrize("size", [0, 1, len(GET)])
def test_what_waits_is_counted(size: int) -> None:
    reader = reader_with()
    reader.feed(GET[:size])
    assert reader.waiting == size
    assert (reader.next_head() is None) == (size < len(GET))
    assert reader.waiting == (size if size < len(GET) else 0)


def test_an_empty_line_before_a_request_is_ignored() -> None:
    for pieces in every_split(b"\r\n" + GET + b"\r\n" + GET):
        assert read(reader_with(), pieces) == [READ[GET]] * 2


def test_an_empty_line_alone_is_no_part_of_a_request() -> None:
    reader = reader_with()
    reader.feed(b"\r\n")
    assert reader.next_head() is None
    assert reader.waiting == 0


def test_a_body_is_read_to_its_end_and_not_beyond() -> None:
    reader = reader_with()
    reader.feed(SIZED + GET)
    assert reader.next_head() is not None
    assert reader.body_remaining == 5
    assert reader.read_body(reader.take_waiting()) == (b"hello", True)
    assert (reader.body_remaining, reader.waiting) == (0, len(GET))
    assert read(reader, [b""]) == [READ[GET]]


def test_a_chunked_body_has_no_size() -> None:
    reader = reader_with()
    reader.feed(CHUNKS)
    assert reader.next_head() is not None
    assert reader.body_remaining == CHUNKED


# Limits


def test_a_head_of_as_many_bytes_as_may_be_is_read() -> None:
    head = head_with(target=b"/".ljust(200, b"x"))
    for pieces in every_split(head):
        assert len(read(reader_with(max_head_bytes=len(head)), pieces)) == 1


def test_a_head_of_one_byte_more_is_refused_however_it_is_split() -> None:
    head = head_with(target=b"/".ljust(200, b"x"))
    for pieces in every_split(head):
        reader = reader_with(max_head_bytes=len(head) - 1)
        with pytest.raises(HeadTooLong) as refused:
            read(reader, pieces)
        assert refused.value.code == "headersTooLarge"
        assert reader.head_so_far() == head


def test_a_head_is_refused_before_its_end_as_soon_as_it_is_too_long() -> None:
    reader = reader_with(max_head_bytes=50)
    reader.feed(head_with()[:-2] + b"Name: ".ljust(50, b"v"))
    with pytest.raises(HeadTooLong):
        reader.next_head()


def test_an_empty_line_before_a_head_does_not_count_against_its_limit() -> None:
    reader = reader_with(max_head_bytes=len(GET))
    assert read(reader, [b"\r\n" + GET]) == [READ[GET]]


def test_a_long_request_behind_a_short_one_has_its_own_limit() -> None:
    reader = reader_with(max_head_bytes=len(GET) + 1)
    assert read(reader, [GET * 20]) == [READ[GET]] * 20


def test_a_head_of_as_many_fields_as_may_be_is_read() -> None:
    assert len(read(reader_with(max_fields=3), [head_with(b"A: 1", b"B: 2")])) == 1


@pytest.mark.parametrize("before", [b"", GET])
def test_a_head_of_one_field_more_is_refused(before: bytes) -> None:
    head = head_with(b"A: 1", b"B: 2", b"C: 3")
    reader = reader_with(max_fields=3)
    with pytest.raises(TooManyFields) as refused:
        read(reader, [before + head + GET])
    assert refused.value.code == "headersTooLarge"
    assert reader.head_so_far() == head


def test_a_body_of_more_framing_than_content_is_refused() -> None:
    reader = reader_with()
    reader.feed(CHUNKS)
    assert reader.next_head() is not None
    line = b"1;" + b"x" * 200 + b"\r\n"
    frames = (line + b"c\r\n") * (EXCESS_FRAMING_BYTES // len(line) + 2)
    with pytest.raises(MalformedBody, match="more bytes of framing than of content"):
        reader.read_body(frames)


def test_lines_of_chunk_framing_are_counted() -> None:
    reader = reader_with()
    reader.feed(CHUNKS)
    assert reader.next_head() is not None
    reader.take_waiting()
    reader.read_body(framed_chunk(b"x", last=False) * 5)  # two lines each
    assert not reader.chunk_lines_exceed(10)
    assert reader.chunk_lines_exceed(9)
    assert not reader.chunk_lines_exceed(9), "they count again from none"


# Malformed


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"GET  / HTTP/1.1\r\nHost: p\r\n\r\n", "badRequest"),
        (b"GET / HTTP/2.0\r\nHost: p\r\n\r\n", "badRequest"),
        (b"GET / HTTP/1.1\r\n\r\n", "badRequest"),
        (b"GET / HTTP/1.1\r\nHost: p\r\nHost: q\r\n\r\n", "badRequest"),
        (b"GET / HTTP/1.1\r\nHost : p\r\n\r\n", "badRequest"),
        (head_with(b"Content-Length: 1", b"Transfer-Encoding: chunked"), "badRequest"),
        (head_with(b"Content-Length: +1"), "badRequest"),
        (head_with(b"Transfer-Encoding: gzip, chunked"), "badRequest"),
        (b"CONNECT proxy:443 HTTP/1.1\r\nHost: p\r\n\r\n", "methodNotAllowed"),
        (head_with(b"Expect: something"), "expectationFailed"),
    ],
)
@pytest.mark.parametrize("before", [b"", GET, SIZED, CHUNKS], ids=["alone", "GET", "sized", "chunked"])
def test_a_malformed_head_is_refused_where_it_stands(before: bytes, head: bytes, code: str) -> None:
    for pieces in every_split(head):
        reader = reader_with()
        with pytest.raises(MalformedHead) as refused:
            read(reader, [before, *pieces[:-1], pieces[-1] + GET])
        assert refused.value.code == code
        assert reader.head_so_far() == head


def test_a_tls_handshake_is_refused_at_its_first_byte() -> None:
    reader = reader_with()
    reader.feed(b"\x16\x03\x01\x02\x00\x01")
    with pytest.raises(MalformedHead, match="TLS handshake"):
        reader.next_head()


@pytest.mark.parametrize(
    "body", [b"x\r\n", b"5\nhello", b"5\r\nhello!\r\n", b"-1\r\n", b"0x5\r\nhello\r\n", b"0\r\n: v\r\n\r\n"]
)
def test_a_malformed_body_is_refused(body: bytes) -> None:
    head = CHUNKS[: CHUNKS.index(b"\r\n\r\n") + 4]
    for pieces in every_split(body):
        with pytest.raises(MalformedBody):
            read(reader_with(), [head, *pieces])


# Incomplete and discarded requests


def test_the_bytes_of_a_head_that_is_not_whole_can_be_read() -> None:
    for size in range(1, len(GET)):
        reader = reader_with()
        assert read(reader, [CHUNKS + b"\r\n" + GET[:size]]) == [READ[CHUNKS]]
        assert reader.head_so_far() == GET[:size].removeprefix(b"\r\n")


def test_what_is_discarded_begins_no_request() -> None:
    reader = reader_with()
    reader.feed(GET * 2)
    assert reader.next_head() is not None
    reader.discard()
    assert (reader.waiting, reader.body_remaining) == (0, UNTIL_CLOSE)
    for piece in (GET, SIZED, b"\x16"):
        assert reader.read_body(piece) == (piece, False)
    assert reader.waiting == 0


def test_the_representation_tells_what_waits() -> None:
    reader = reader_with()
    reader.feed(SIZED + GET)
    reader.next_head()
    assert repr(reader) == f"<RequestReader waiting={len(GET) + 5} <BodyReader remaining=5>>"
