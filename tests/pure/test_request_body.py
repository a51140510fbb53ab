"""Tests of each mode in which the proxy reads the body of a request."""

import gzip

import pytest

from proxy.server.errors import Refusal
from proxy.server.exchange.request_body import NO_BODY, REPEAT_BYTES, BodyMode, RequestBody
from proxy.server.http1.request_head import RequestHead, parse_request_head

CHUNKED = -1


def head(*fields: bytes) -> RequestHead:
    lines = b"".join(each + b"\r\n" for each in (b"Host: x", b"Content-Length: 4", *fields))
    return parse_request_head(b"POST /v1.0/a HTTP/1.1\r\n" + lines + b"\r\n", None)


def body_of(length: int, *pieces: bytes, whole: bool = False) -> RequestBody:
    body = RequestBody(length)
    for piece in pieces:
        body.add(piece)
    body.whole = whole
    return body


def test_no_body_is_whole_and_repeatable_from_the_start() -> None:
    assert (NO_BODY.whole, NO_BODY.repeatable, NO_BODY.kept, NO_BODY.replaced_length) == (
        True,
        True,
        False,
        None,
    )
    assert NO_BODY.take_for_upstream() == b""


def test_a_body_that_is_passed_on_gives_up_what_is_taken() -> None:
    body = body_of(6, b"ab", b"cd")
    assert body.take_for_upstream() == b"abcd"
    assert body.take_for_upstream() == b""
    body.whole = True
    assert not body.repeatable
    assert body.framed(b"ef") == b"ef"


def test_a_chunked_body_is_framed_anew_and_ends_when_it_is_whole() -> None:
    body = body_of(CHUNKED, b"ab", b"c")
    assert body.take_for_upstream() == b"3\r\nabc\r\n"
    assert body.framed(b"d") == b"1\r\nd\r\n"
    body.whole = True
    assert body.framed(b"e") == b"1\r\ne\r\n0\r\n\r\n"
    assert body.framed(b"") == b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("length", "awaited", "kept"),
    [
        (1, False, True),
        (REPEAT_BYTES, False, True),
        (REPEAT_BYTES + 1, False, False),
        (CHUNKED, False, False),
        (1, True, False),  # the client sends no body before it gets 100 Continue
    ],
)
def test_only_a_small_body_of_known_length_is_kept_for_a_repetition(
    length: int, awaited: bool, kept: bool
) -> None:
    body = RequestBody(length)
    assert body.keep_if_small(awaited=awaited) is kept
    assert body.kept is kept
    assert not body.keep_if_small(awaited=awaited)  # only once


def test_a_repeatable_body_is_the_same_each_time_it_is_taken() -> None:
    body = RequestBody(4)
    body.keep_if_small(awaited=False)
    body.add(b"ab")
    assert not body.repeatable
    body.add(b"cd")
    body.whole = True
    assert body.repeatable
    assert [body.take_for_upstream(), body.take_for_upstream()] == [b"abcd", b"abcd"]


def test_a_collected_body_can_be_passed_on_before_it_is_whole() -> None:
    body = body_of(CHUNKED)
    body.collect()
    body.add(b"ab")
    body.pass_on()
    assert body.mode is BodyMode.STREAM
    body.add(b"c")
    assert body.take_for_upstream() == b"3\r\nabc\r\n"
    body.add(b"d")
    assert body.take_for_upstream() == b"1\r\nd\r\n"


def test_a_collected_body_that_is_whole_stays_repeatable() -> None:
    body = body_of(2)
    body.collect()
    body.add(b"ab")
    body.whole = True
    body.pass_on()
    assert body.repeatable
    assert body.mode is BodyMode.COLLECTED


def test_another_body_is_sent_in_place_of_a_replaced_one() -> None:
    body = body_of(CHUNKED, b"a long", b" batch", whole=True)
    body = body.replaced_by(b"short")
    assert (body.replaced_length, body.repeatable) == (5, True)
    assert body.take_for_upstream() == b"5\r\nshort\r\n0\r\n\r\n"


def test_the_body_of_all_requests_without_one_is_never_replaced() -> None:
    assert NO_BODY.replaced_by(b"of one request").take_for_upstream() == b"of one request"
    assert (NO_BODY.replaced_length, NO_BODY.take_for_upstream()) == (None, b"")


def test_rules_read_a_body_without_its_content_codings() -> None:
    coded = gzip.compress(b"{}")
    body = body_of(len(coded), coded, whole=True)
    assert body.readable(head(b"Content-Encoding: gzip"), 100) == b"{}"
    assert body.take_for_upstream() == coded


@pytest.mark.parametrize(
    ("fields", "content", "code"),
    [
        ((b"Content-Encoding: gzip",), gzip.compress(b"{}" + b" " * 1000, mtime=0), "payloadTooLarge"),
        ((b"Content-Encoding: gzip",), b"no gzip", "badRequest"),
        ((b"Content-Encoding: zstd",), b"{}", "badRequest"),
        ((b"Content-Type: application/json; charset=utf-16",), b"{}", "badRequest"),
    ],
)
def test_a_body_that_rules_cannot_read_is_refused(
    fields: tuple[bytes, ...], content: bytes, code: str
) -> None:
    with pytest.raises(Refusal) as refused:
        body_of(4, content, whole=True).readable(head(*fields), 100)
    assert refused.value.code == code
