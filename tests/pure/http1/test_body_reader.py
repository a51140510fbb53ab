"""Tests that the reader finds the end of each message body (RFC 9112 §6.3, §7.1), whole or in pieces."""

from __future__ import annotations

import pytest

from proxy.server.errors import MalformedBody
from proxy.server.http1.body_reader import CHUNKED, UNTIL_CLOSE, BodyReader
from proxy.server.http1.chunked import MAX_CHUNK_LINE, MAX_TRAILER_BYTES
from tests.pure.http1.feeding import every_split

CONTENT = b"hello, world!!!"
CHUNKS = b'5\r\nhello\r\nA;name="v;x"\r\n, world!!!\r\n0\r\nTrailer: dropped\r\n\r\n'
NEXT = b"GET /v1.0/me HTTP/1.1\r\n"

BODIES = pytest.mark.parametrize(
    ("length", "sent", "content"),
    [
        pytest.param(len(CONTENT), CONTENT, CONTENT, id="sized"),
        pytest.param(1, b"x", b"x", id="one byte"),
        pytest.param(CHUNKED, CHUNKS, CONTENT, id="chunked"),
        pytest.param(CHUNKED, b"0\r\n\r\n", b"", id="chunked and empty"),
    ],
)


def reader_of(length: int, *, excess_limit: int | None = None) -> BodyReader:
    reader = BodyReader(excess_limit=excess_limit)
    reader.begin(length)
    return reader


def read_all(reader: BodyReader, pieces: list[bytes]) -> bytes:
    """Return the content of a body that arrives in pieces; only the last piece may end the body."""
    content = b""
    for number, piece in enumerate(pieces):
        chunk, ended = reader.read(piece)
        content += chunk
        assert ended == (reader.remaining == 0)
        assert number == len(pieces) - 1 or not ended
    return content


@BODIES
def test_a_body_in_any_two_pieces_and_byte_by_byte(length: int, sent: bytes, content: bytes) -> None:
    for pieces in every_split(sent):
        reader = reader_of(length)
        assert read_all(reader, pieces) == content
        assert reader.remaining == 0
        assert reader.take_rest() == b""


@BODIES
def test_what_follows_a_body_is_kept_apart(length: int, sent: bytes, content: bytes) -> None:
    for at in range(len(sent)):
        reader = reader_of(length)
        chunk, ended = reader.read(sent[:at])
        assert not ended
        last, ended = reader.read(sent[at:] + NEXT)
        assert (chunk + last, ended) == (content, True)
        assert reader.take_rest() == NEXT
        assert reader.take_rest() == b""  # the reader released it


@pytest.mark.parametrize("following", [b"", NEXT])
def test_a_message_without_a_body_has_ended_at_once(following: bytes) -> None:
    reader = reader_of(0)
    assert reader.remaining == 0
    assert reader.read(following) == (b"", True)
    assert reader.take_rest() == following


def test_a_new_reader_has_no_body_to_read() -> None:
    assert BodyReader().remaining == 0


@BODIES
def test_nothing_behind_the_end_is_read_as_content(length: int, sent: bytes, content: bytes) -> None:
    reader = reader_of(length)
    read_all(reader, [sent])
    assert reader.read(NEXT) == (b"", True)
    assert reader.take_rest() == NEXT


def test_one_reader_reads_one_body_after_the_other() -> None:
    reader = BodyReader()
    for length, sent in [(CHUNKED, CHUNKS), (len(CONTENT), CONTENT), (0, b""), (CHUNKED, CHUNKS)]:
        reader.begin(length)
        content, ended = reader.read(sent + NEXT)
        assert (content, ended) == (CONTENT if length else b"", True)


def test_what_is_left_of_a_body_is_not_the_next_ones() -> None:
    reader = reader_of(1)
    reader.read(b"x" + NEXT)
    reader.begin(1)
    assert reader.take_rest() == b""


def test_a_body_until_the_close_has_no_other_end() -> None:
    for pieces in every_split(CHUNKS):
        reader = reader_of(UNTIL_CLOSE)
        assert read_all(reader, pieces) == CHUNKS
        assert reader.remaining == UNTIL_CLOSE
        assert reader.take_rest() == b""


@pytest.mark.parametrize("length", [5, CHUNKED, UNTIL_CLOSE])
def test_an_abandoned_body_has_ended(length: int) -> None:
    reader = reader_of(length)
    reader.end()
    assert reader.remaining == 0
    assert reader.read(b"hello") == (b"", True)


@pytest.mark.parametrize(
    "sent",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"5 ; a = b\r\nhello\r\n0\r\n\r\nX",
        b"\r\nhello\r\n",
        b"0\r\nno field\r\n\r\n",
        b"0\r\n: no name\r\n\r\n",
        b"1" * (MAX_CHUNK_LINE + 1),
        b"1;" + b"a" * MAX_CHUNK_LINE + b"\r\n",
        b"0\r\nA: " + b"x" * MAX_TRAILER_BYTES + b"\r\n\r\n",
        b"0\r\n" + b"A: x\r\n" * (MAX_TRAILER_BYTES // 6 + 1) + b"\r\n",
    ],
)
def test_malformed_chunks_are_refused_however_they_come(sent: bytes) -> None:
    for step in (1, 2, 7, len(sent)):
        reader = reader_of(CHUNKED)
        with pytest.raises(MalformedBody):
            read_all(reader, [sent[at : at + step] for at in range(0, len(sent), step)])


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_the_framing_of_a_body_has_a_limit_where_one_is_set(step: int) -> None:
    sent = b"1;extension=value\r\nx\r\n" * 20 + b"0\r\n\r\n"
    pieces = [sent[at : at + step] for at in range(0, len(sent), step)]
    assert read_all(reader_of(CHUNKED), pieces) == b"x" * 20
    assert read_all(reader_of(CHUNKED, excess_limit=len(sent)), pieces) == b"x" * 20
    with pytest.raises(MalformedBody, match="more bytes of framing than of content"):
        read_all(reader_of(CHUNKED, excess_limit=100), pieces)


def test_lines_of_framing_are_counted_until_they_exceed_a_limit() -> None:
    reader = reader_of(CHUNKED)
    reader.read(b"1\r\nx\r\n" * 2)  # four lines
    assert not reader.lines_exceed(4)
    reader.read(b"1\r\n")
    assert reader.lines_exceed(4)
    assert not reader.lines_exceed(0)  # counted from there
    reader.read(b"x\r\n")
    assert reader.lines_exceed(0)


def test_a_sized_body_has_no_lines_of_framing() -> None:
    reader = reader_of(5)
    reader.read(b"he\nllo")
    assert not reader.lines_exceed(0)


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (5, "<BodyReader remaining=5>"),
        (CHUNKED, "<BodyReader remaining=chunked>"),
        (UNTIL_CLOSE, "<BodyReader remaining=until the close>"),
    ],
)
def test_a_reader_tells_what_it_waits_for(length: int, text: str) -> None:
    assert repr(reader_of(length)) == text
