"""Tests of the decompression of an encoded response, and of its limits."""

from __future__ import annotations

import contextlib
import gzip
import random
import zlib
from collections.abc import Callable

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.server.content.content_coding import ContentCodingError, StreamDecoder, acceptable, decode

LIMIT = 1 << 20
TEXT = b'{"value":[{"id":"1","displayName":"Ada"}]}' * 50


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "identity": bytes,
}


@pytest.mark.parametrize("coding", ENCODERS)
def test_a_coding_is_taken_off(coding: str) -> None:
    assert decode(ENCODERS[coding](TEXT), [coding], limit=LIMIT) == TEXT


@pytest.mark.parametrize("spelling", ["GZIP", "GZip", " gzip\t"])
def test_codings_compare_without_regard_to_case(spelling: str) -> None:
    assert decode(gzip.compress(TEXT), [spelling], limit=LIMIT) == TEXT


def test_deflate_without_the_zlib_wrapper_is_taken_off() -> None:
    assert decode(raw_deflate(TEXT), ["deflate"], limit=LIMIT) == TEXT


def test_gzip_members_are_joined() -> None:
    body = gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two")
    assert decode(body, ["gzip"], limit=LIMIT) == b"one two"


def test_codings_are_taken_off_in_the_opposite_order_of_their_application() -> None:
    body = brotli.compress(gzip.compress(zlib.compress(TEXT)))
    assert decode(body, ["deflate", "gzip", "br"], limit=LIMIT) == TEXT


def test_no_codings_leave_the_body_as_it_is() -> None:
    assert decode(TEXT, [], limit=LIMIT) == TEXT


def test_an_empty_body_stays_empty() -> None:
    assert decode(b"", ["gzip"], limit=LIMIT) == b""


@pytest.mark.parametrize("coding", ["zstd", "compress", "", "gzip, br", "*", "utf-8", "gz\u0131p"])
def test_an_unknown_coding_is_an_error(coding: str) -> None:
    with pytest.raises(ContentCodingError):
        decode(TEXT, [coding], limit=LIMIT)


def test_more_codings_than_anyone_stacks_are_an_error() -> None:
    with pytest.raises(ContentCodingError):
        decode(TEXT, ["identity"] * 4, limit=LIMIT)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_truncation_at_every_length_is_an_error(coding: str) -> None:
    body = ENCODERS[coding](b'{"value":[]}')
    for length in range(1, len(body)):
        with pytest.raises(ContentCodingError):
            decode(body[:length], [coding], limit=LIMIT)


def test_deflate_that_means_something_else_without_its_header_is_an_error() -> None:
    """Some servers send deflate data without a zlib header.

    The bytes of a zlib header can also be the start of a stored block.
    """
    hidden = b'{"importance":"high"}'
    for first, flags in ((0x78, 0x9C), (0x78, 0x01), (0x58, 0x85)):
        stored = bytes((flags, 0x01))  # 256 bytes and more
        polyglot = bytes((first,)) + stored + bytes(byte ^ 0xFF for byte in stored)
        with pytest.raises(ContentCodingError, match="ambiguous deflate data"):
            decode(polyglot + hidden + bytes(600), ["deflate"], limit=LIMIT)


def test_truncated_bare_deflate_is_an_error() -> None:
    body = raw_deflate(TEXT)
    for length in range(1, len(body)):
        with pytest.raises(ContentCodingError):
            decode(body[:length], ["deflate"], limit=LIMIT)


@pytest.mark.parametrize("garbage", [b"\0", b"x", b"\0" * 512, b'{"mobilePhone":1}', b"\x1f\x8b"])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_bytes_after_the_end_are_an_error(coding: str, garbage: bytes) -> None:
    with pytest.raises(ContentCodingError):
        decode(ENCODERS[coding](TEXT) + garbage, [coding], limit=LIMIT)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_bytes_after_the_end_of_a_body_of_many_pieces_are_an_error(coding: str) -> None:
    with pytest.raises(ContentCodingError):
        decode(ENCODERS[coding](b"a" * 500_000) + b"x", [coding], limit=LIMIT)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_damaged_data_is_an_error(coding: str) -> None:
    with pytest.raises(ContentCodingError):
        decode(b"this is not compressed at all", [coding], limit=LIMIT)


def test_a_wrong_checksum_is_an_error() -> None:
    body = bytearray(gzip.compress(TEXT))
    body[-6] ^= 1
    with pytest.raises(ContentCodingError):
        decode(bytes(body), ["gzip"], limit=LIMIT)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_the_limit_is_exact(coding: str) -> None:
    data = random.Random(4).randbytes(200_000)
    body = ENCODERS[coding](data)
    assert decode(body, [coding], limit=max(len(body), len(data))) == data
    with pytest.raises(ContentCodingError):
        decode(ENCODERS[coding](b"a" * 200_000), [coding], limit=199_999)


def test_a_body_without_codings_meets_the_limit_too() -> None:
    with pytest.raises(ContentCodingError):
        decode(b"x" * 11, [], limit=10)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_a_bomb_is_stopped_while_it_unfolds(coding: str) -> None:
    bomb = ENCODERS[coding](bytes(50_000_000))
    decoder = StreamDecoder([coding], limit=LIMIT)
    made = len(decoder.feed(bomb))
    with pytest.raises(ContentCodingError):
        made += unread(decoder)
    assert made <= LIMIT


def unread(decoder: StreamDecoder) -> int:
    size = 0
    while decoder.pending:
        size += len(decoder.feed(b""))
    return size


@pytest.mark.parametrize("outer", ["gzip", "deflate", "br"])
def test_a_bomb_inside_another_coding_counts_where_it_unfolds(outer: str) -> None:
    # Empty gzip members: the output is empty, and the input may have any length.
    between = gzip.compress(b"") * 1000
    bomb = ENCODERS[outer](between)
    assert decode(bomb, ["gzip", outer], limit=len(between)) == b""
    with pytest.raises(ContentCodingError):
        decode(bomb, ["gzip", outer], limit=len(between) - 1)


def test_endless_empty_gzip_members_are_an_error() -> None:
    with pytest.raises(ContentCodingError):
        decode(gzip.compress(b"") * 2000, ["gzip"], limit=LIMIT)


@given(
    data=st.binary(max_size=300),
    codings=st.lists(st.sampled_from(list(ENCODERS)), max_size=3),
    sizes=st.lists(st.integers(1, 40), min_size=1),
)
def test_any_chunking_gives_the_same_bytes(data: bytes, codings: list[str], sizes: list[int]) -> None:
    body = data
    for coding in codings:
        body = ENCODERS[coding](body)
    decoder = StreamDecoder(codings)
    out = b""
    position, slot = 0, 0
    while position < len(body):
        size = sizes[slot % len(sizes)]
        out += decoder.feed(body[position : position + size])
        while decoder.pending:
            out += decoder.feed(b"")
        position, slot = position + size, slot + 1
    assert out + decoder.finish() == data


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_a_streamed_bomb_comes_in_bounded_pieces(coding: str) -> None:
    decoder = StreamDecoder([coding])
    piece = decoder.feed(ENCODERS[coding](bytes(20_000_000)))
    size = len(piece)
    while decoder.pending:
        assert len(piece) <= 128 * 1024
        piece = decoder.feed(b"")
        size += len(piece)
    decoder.finish()
    assert size == 20_000_000


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_a_stream_may_be_fed_before_its_output_is_fetched(coding: str) -> None:
    data = random.Random(4).randbytes(1000) * 500
    body = ENCODERS[coding](data)
    decoder = StreamDecoder([coding])
    out = b"".join(decoder.feed(body[start : start + 100]) for start in range(0, len(body), 100))
    while decoder.pending:
        out += decoder.feed(b"")
    assert out + decoder.finish() == data


def test_a_stream_that_ends_early_is_an_error() -> None:
    decoder = StreamDecoder(["gzip"])
    decoder.feed(gzip.compress(TEXT)[:-1])
    with pytest.raises(ContentCodingError):
        decoder.finish()


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "br"]))
@settings(max_examples=300)
def test_no_bytes_raise_anything_else(data: bytes, coding: str) -> None:
    with contextlib.suppress(ContentCodingError):
        decode(data, [coding], limit=LIMIT)


@pytest.mark.parametrize(
    ("sent", "forwarded"),
    [
        ("gzip, deflate, br", "gzip, deflate, br"),
        ("gzip, deflate, br, zstd", "gzip, deflate, br"),
        ("GZip;q=0.5, zstd;q=1.0,br ; q=0.9", "GZip;q=0.5, br ; q=0.9"),
        ("*", "identity"),
        ("zstd", "identity"),
        ("compress, *;q=0.1", "identity"),
        ("", "identity"),
        ("identity", "identity"),
        ("identity;q=0.2, x-gzip", "identity;q=0.2, x-gzip"),
        ("gzip;q=0, br", "gzip;q=0, br"),
        (",, gzip ,", "gzip"),
        ("dcb, dcz, gzip", "gzip"),
        ("gzip,deflate ,br", "gzip,deflate ,br"),
    ],
)
def test_codings_that_we_cannot_take_off_are_not_asked_for(sent: str, forwarded: str) -> None:
    assert acceptable(sent) == forwarded
