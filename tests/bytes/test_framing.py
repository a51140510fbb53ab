"""Tests of HTTP framing (RFC 9112): the proxy refuses a head or body that is ambiguous."""

import pytest

from proxy.server.errors import MalformedBody, MalformedHead
from proxy.server.http1.body_reader import CHUNKED, UNTIL_CLOSE
from proxy.server.http1.chunked import ChunkedDecoder
from proxy.server.http1.field_lines import listed_fields
from proxy.server.http1.forwarded_headers import KEPT, head_for_client
from proxy.server.http1.request_head import RequestHead, parse_request_head
from proxy.server.http1.response_head import parse_response_head

HOST = b"Host: proxy.example\r\n"


def head(text: bytes) -> RequestHead:
    return parse_request_head(text)


def test_a_head_keeps_names_case_and_order() -> None:
    parsed = head(b"GET /v1.0/users?$top=1 HTTP/1.1\r\n" + HOST + b"X-b: 1\r\nx-A: 2\r\n\r\n")
    assert parsed.method == "GET"
    assert parsed.target == "/v1.0/users?$top=1"
    assert parsed.headers == [(b"Host", b"proxy.example"), (b"X-b", b"1"), (b"x-A", b"2")]
    assert parsed.fields.keep_alive
    assert parsed.fields.length == 0


def test_heads_with_and_without_bodies_in_turn() -> None:
    post = b"POST /v1.0/users HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\n"
    get = b"GET /v1.0/users HTTP/1.1\r\n" + HOST + b"\r\n"
    assert [parse_request_head(each).fields.length for each in (post, get, post, get)] == [5, 0, 5, 0]


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 1\r\nContent-Length: 1\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n",
        b"Content-Length: 1, 1\r\n",
        b"Content-Length: +1\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 1_0\r\n",
        b"Content-Length: 0x1\r\n",
        b"Content-Length: \r\n",
        b"Content-Length: 99999999999999999999999999\r\n",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: \x0bchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Content-Length : 1\r\n",
        b"X: a\r\n b\r\n",
        b" X: a\r\n",
        b"X: a\nY: b\r\n",
        b"X: a\rb\r\n",
        b"X: a\x00b\r\n",
        b"X: a\x01b\r\n",
        b"X y: a\r\n",
        b"X\r\n",
        b": a\r\n",
        b"Host: other.example\r\n",
        b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
    ],
)
def test_ambiguous_or_malformed_fields_are_refused(fields: bytes) -> None:
    with pytest.raises(MalformedHead):
        head(b"POST /v1.0/users HTTP/1.1\r\n" + HOST + fields + b"\r\n")


@pytest.mark.parametrize(
    "line",
    [
        b"GET  /v1.0/users HTTP/1.1",
        b"GET /v1.0/users  HTTP/1.1",
        b"GET /v1.0/users HTTP/1.1 ",
        b" GET /v1.0/users HTTP/1.1",
        b"GET\t/v1.0/users HTTP/1.1",
        b"GET /v1.0/users",
        b"GET /v1.0/users HTTP/2.0",
        b"GET /v1.0/users HTTP/1.2",
        b"GET /v1.0/users HTTP/0.9",
        b"GET /v1.0/users RTSP/1.0",
        b"GET /v1.0/users http/1.1",
        b"GET http://upstream.example/v1.0/users HTTP/1.1",
        b"GET upstream.example:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"CONNECT upstream.example:443 HTTP/1.1",
        b"TRACE /v1.0/users HTTP/1.1",
        b"GET /v1.0/\xc3\xa9 HTTP/1.1",
        b"PRI * HTTP/2.0",
    ],
)
def test_request_lines_that_have_another_reading_are_refused(line: bytes) -> None:
    with pytest.raises(MalformedHead):
        head(line + b"\r\n" + HOST + b"\r\n")


@pytest.mark.parametrize("host", [b"", b"a b", b"a/b", b"a@b", b"a,b", b"a:b", b"[::1", b"a\\b"])
def test_a_host_that_is_none_is_refused(host: bytes) -> None:
    with pytest.raises(MalformedHead):
        head(b"GET /v1.0/users HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")


def test_http_1_1_needs_a_host_and_http_1_0_does_not() -> None:
    with pytest.raises(MalformedHead):
        head(b"GET /v1.0/users HTTP/1.1\r\n\r\n")
    old = head(b"GET /v1.0/users HTTP/1.0\r\n\r\n")
    assert old.http10
    assert not old.fields.keep_alive


def test_an_upgrade_is_ignored_and_the_connection_goes_on() -> None:
    upgrade = b"GET /v1.0/users HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert parse_request_head(upgrade).fields.listed == {b"upgrade"}
    assert parse_request_head(b"GET /v1.0/me HTTP/1.1\r\n" + HOST + b"\r\n").target == "/v1.0/me"


def test_the_only_expectation_is_100_continue() -> None:
    base = b"POST /v1.0/users HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n"
    assert head(base + b"Expect: 100-Continue\r\n\r\n").fields.expect_continue
    with pytest.raises(MalformedHead) as refused:
        head(base + b"Expect: 200-ok\r\n\r\n")
    assert refused.value.code == "expectationFailed"


def test_fields_that_connection_nominates() -> None:
    assert listed_fields(b"close, X-Mine ,,keep-alive") == {b"close", b"x-mine"}


# Framing of responses


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", 3),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", CHUNKED),
        (b"HTTP/1.1 200 OK\r\n\r\n", UNTIL_CLOSE),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 0),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", 0),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", 0),
    ],
)
def test_where_a_response_ends(text: bytes, length: int) -> None:
    assert parse_response_head(text, to_head_request=False).length == length


def test_a_response_to_head_has_no_body() -> None:
    text = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"
    assert parse_response_head(text, to_head_request=True).length == 0


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        b"HTTP/1.1 200 OK\nX: y\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 600 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
    ],
)
def test_hostile_responses_are_refused(text: bytes) -> None:
    with pytest.raises(MalformedHead):
        parse_response_head(text, to_head_request=False)


# Chunked bodies


def chunks_of(text: bytes, step: int) -> tuple[bytes, ChunkedDecoder]:
    decoder = ChunkedDecoder()
    payload = b""
    position = 0
    while position < len(text) and not decoder.done:
        payload += decoder.feed(text[position : position + step])
        position += step
    return payload, decoder


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_a_chunked_body_in_pieces_of_any_size(step: int) -> None:
    text = b'5\r\nhello\r\nA;name="v;x"\r\n, world!!!\r\n0\r\nTrailer: dropped\r\n\r\n'
    payload, decoder = chunks_of(text, step)
    assert payload == b"hello, world!!!"
    assert decoder.done


def test_what_follows_the_body_is_kept_apart() -> None:
    decoder = ChunkedDecoder()
    assert decoder.feed(b"1\r\na\r\n0\r\n\r\nGET /") == b"a"
    assert decoder.rest == b"GET /"


@pytest.mark.parametrize(
    "text",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5 5\r\nhello\r\n",
        b"-5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"5_0\r\nhello\r\n",
        b"\r\nhello\r\n",
        b"5;\x00\r\nhello\r\n",
        b"5;a=\r\nhello\r\n",
        b"FFFFFFFFFFFFFFFFF\r\nhello\r\n",
        b"5;" + b"a" * 300 + b"\r\nhello\r\n",
        b"0\r\nnot a field\r\n\r\n",
        b"0\r\nX: \x00\r\n\r\n",
        b"0\r\n" + b"X: y\r\n" * 2000 + b"\r\n",
        b"5\r\rhello\r\n",
    ],
)
def test_a_malformed_chunked_body_is_refused(text: bytes) -> None:
    for step in (1, 5, len(text)):
        with pytest.raises(MalformedBody):
            chunks_of(text, step)


IDS = [b"1", b"2", b"", b" 3 ", b"a b", b"\xc3\xa9", b"1"]


@pytest.mark.parametrize("again", [False, True], ids=["new", "remembered"])
@pytest.mark.parametrize("first", [True, False], ids=["first line", "behind others"])
def test_requests_that_differ_in_their_id_alone_keep_it(first: bool, again: bool) -> None:
    for own_id in IDS * (1 + again):
        id_line = b"client-request-id: " + own_id + b"\r\n"
        lines = id_line + HOST if first else HOST + id_line
        parsed = head(b"GET /v1.0/me HTTP/1.1\r\n" + lines + b"X-a: 1\r\n\r\n")
        assert (parsed.client_request_id or b"").strip() == own_id.strip()
        assert (b"client-request-id", parsed.client_request_id) in parsed.headers
        assert len(parsed.headers) == 3


def test_of_two_request_ids_neither_is_lost() -> None:
    for second in (b"2", b"3", b""):
        lines = HOST + b"client-request-id: 1\r\nclient-request-id: " + second + b"\r\n"
        parsed = head(b"GET /v1.0/me HTTP/1.1\r\n" + lines + b"\r\n")
        assert [value for _, value in parsed.headers[1:]] == [b"1", second]


@pytest.mark.parametrize("value", [b"1\r\nX: 2", b"1\x00", b"1\n", b"\x7f"])
def test_an_id_hides_no_second_field(value: bytes) -> None:
    text = b"GET /v1.0/me HTTP/1.1\r\n" + HOST + b"client-request-id: " + value + b"\r\n\r\n"
    try:
        parsed = head(text)
    except MalformedHead:
        return
    assert parsed.headers == [(b"Host", b"proxy.example"), (b"client-request-id", b"1"), (b"X", b"2")]


@pytest.mark.parametrize("again", [1, 2])
def test_responses_that_differ_in_a_value_alone_keep_it(again: int) -> None:
    for date, length, own_id in [
        (b"Sat", b"3", b"1"),
        (b"", b"12", b"\xc3\xa9"),
        (b" Sun ", b"0", b"a b"),
        (b"\t", b"4", b""),
    ]:
        lines = b"Date: %b\r\nX-a: 1\r\nContent-Length: %b\r\nrequest-id: %b\r\n" % (date, length, own_id)
        for _ in range(again):
            response = parse_response_head(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n", to_head_request=False)
            assert response.length == int(length)
            assert (response.request_id or b"").strip() == own_id
            assert [value.strip() for _, value in response.headers] == [date.strip(), b"1", length, own_id]
            assert b"".join(field.line for field in response.lines).count(b"\r\n") == 4
            seen = head_for_client(
                response, KEPT, changed=False, length_hidden=False, http10=False, close=False, relocated=bytes
            )
            assert [line.rstrip() for line in seen.split(b"\r\n")[1:4]] == [
                b"Date: " + date.strip() if date.strip() else b"Date:",
                b"X-a: 1",
                b"Content-Length: " + length,
            ]


@pytest.mark.parametrize(
    "second", [b"Content-Length: 3", b"content-length: 3", b"Content-Length:3", b"Content-Length: "]
)
def test_a_second_length_is_never_overlooked(second: bytes) -> None:
    once = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n"
    for text in (
        once + second + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + second + b"\r\nContent-Length: 3\r\n\r\n",
    ):
        assert parse_response_head(once + b"\r\n", to_head_request=False).length == 3
        with pytest.raises(MalformedHead):
            parse_response_head(text, to_head_request=False)


@pytest.mark.parametrize("value", [b"", b"+3", b"3,3", b"0x3", b"-1", b"3 3", b"9" * 19, b"\xb2", b"3\x00"])
def test_a_bad_length_is_refused_after_good_ones(value: bytes) -> None:
    for text in (b"3", value, b"3"):
        head = b"HTTP/1.1 200 OK\r\nDate: Sat\r\nContent-Length: " + text + b"\r\n\r\n"
        if text == b"3":
            assert parse_response_head(head, to_head_request=False).length == 3
        else:
            with pytest.raises(MalformedHead):
                parse_response_head(head, to_head_request=False)
