"""Tests of ambiguous requests on raw sockets.

The tests check the bytes that the upstream receives, and the response to the client's next request.

Every request in the smuggling tests carries a valid token. If a smuggling test hides a second request in a
request, the rules block the path of the second request. If the upstream receives the blocked path, the proxy
interpreted the bytes differently than the upstream.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bytes.data_path import CALLER, TOKENS, DataPath, data_path
from tests.bytes.h11_peer import H11Upstream, ReadRequest, readings

RULES = """
version: 1
name: smuggling
default: allow
rules:
  - {id: never, match: {path: ["/v1.0/blocked/**"]}, verdict: block}
"""

EXAMPLES = int(os.environ.get("GRAPHWARD_DIFFERENTIAL_EXAMPLES", "400"))

# Placeholder for a valid token, of the same length, so that sizes of bodies with a token are correct.
TOKEN = b"Authorization: Bearer " + b"{" * len(TOKENS.issue(CALLER, now=time.time(), token_id="t"))
HIDDEN = b"GET /v1.0/blocked/h HTTP/1.1\r\nHost: p\r\n%b\r\n\r\n" % TOKEN
START = b"POST /v1.0/a HTTP/1.1\r\nHost: p\r\n%b\r\n" % TOKEN

# Targets that the upstream receives whole
NOTHING: tuple[bytes, ...] = ()
A = (b"/v1.0/a",)


def request(*fields: bytes, body: bytes = b"", line: bytes = b"POST /v1.0/a HTTP/1.1") -> bytes:
    lines = (line, b"Host: p", TOKEN, *fields)
    return b"".join(each + b"\r\n" for each in lines) + b"\r\n" + body


def _content_lengths() -> Iterator[tuple[str, bytes, tuple[bytes, ...]]]:
    odd = (
        b"+5", b"-5", b"5,5", b"5, 5", b"5,6", b"0x5", b"5 5", b"5;", b"1e1", b"5.0", b"0_5", b"'5'", b'"5"',
        b"5\x00", b"5\x0b", b"5\x0c", b"\x0b5", b"\xef\xbc\x95", b"\xe0\xa5\xab", b"\xa05", b"5\x85", b"",
        b" ", b"\t", b"five", b"99999999999999999999", b"18446744073709551621", b"-0", b"+0", b"0,0", b"NaN",
        b"9223372036854775808", b"5\r\n ", b"\r\n 5", b"5 ,", b",5", b"0x0", b"0b1", b"5L",
    )  # fmt: skip
    for value in odd:
        yield f"length {value!r}", request(b"Content-Length: " + value, body=HIDDEN), NOTHING
    yield "length padded", request(b"Content-Length:   5 \t", body=b"hello" + HIDDEN), A
    yield "length with zeros", request(b"Content-Length: 0005", body=b"hello" + HIDDEN), A
    yield "length in capitals", request(b"CONTENT-LENGTH: 5", body=b"hello" + HIDDEN), A
    yield "length zero", request(b"Content-Length: 0", body=HIDDEN), A
    yield "length of all", request(b"Content-Length: %d" % 1000, body=HIDDEN), NOTHING
    for name in (b"Content-Length ", b" Content-Length", b"Content-Length\t", b"Content-Length\x00",
                 b"Content\rLength", b"\x0bContent-Length", b"Content-Length\x0b",
                 b"\xefContent-Length"):  # fmt: skip
        yield f"length named {name!r}", request(name + b": 5", body=b"hello" + HIDDEN), NOTHING
    for name in (b"Content_Length", b"Content-Lengthx", b"X-Content-Length", b"Content.Length"):
        yield f"no length {name!r}", request(name + b": 200", body=HIDDEN), A
    two = b"Content-Length: 5"
    yield "two lengths alike", request(two, two, body=b"hello" + HIDDEN), NOTHING
    yield "two lengths unlike", request(two, b"Content-Length: 0", body=b"hello" + HIDDEN), NOTHING
    yield "two lengths unlike turned", request(b"Content-Length: 0", two, body=b"hello" + HIDDEN), NOTHING
    yield "lengths in two cases", request(two, b"content-length: 6", body=b"hello" + HIDDEN), NOTHING
    yield "get with a body", request(b"Content-Length: %d" % len(HIDDEN), body=HIDDEN,
                                     line=b"GET /v1.0/a HTTP/1.1"), A  # fmt: skip
    yield "head with a body", request(b"Content-Length: %d" % len(HIDDEN), body=HIDDEN,
                                      line=b"HEAD /v1.0/a HTTP/1.1"), A  # fmt: skip
    yield "delete with a body", request(b"Content-Length: %d" % len(HIDDEN), body=HIDDEN,
                                        line=b"DELETE /v1.0/a HTTP/1.1"), A  # fmt: skip


CHUNKED_HELLO = b"5\r\nhello\r\n0\r\n\r\n"


def _transfer_codings() -> Iterator[tuple[str, bytes, tuple[bytes, ...]]]:
    odd = (
        b"chunked, chunked", b"gzip, chunked", b"chunked, gzip", b"identity", b"chunked, identity",
        b"xchunked",
        b"identity, chunked", b"chunkedx", b"\x0bchunked", b"chunked\x00", b'"chunked"', b"'chunked'",
        b"chunked;q=1", b"chunked; a=b", b"c\rhunked", b"chu\nnked", b"chunked\r\n gzip", b"\r\n chunked",
        b", chunked", b"chunked,", b"", b"\t", b"x", b"chunke\xef\xbd\x84", b"chunked\x85", b"\xa0chunked",
        b"cow", b"trailers", b"chunk ed", b"chunked\x0c", b"(chunked)", b"deflate",
    )  # fmt: skip
    for value in odd:
        yield (
            f"coding {value!r}",
            request(b"Transfer-Encoding: " + value, body=CHUNKED_HELLO + HIDDEN),
            NOTHING,
        )
    for value in (b"chunked", b"CHUNKED", b"Chunked", b"\tchunked"):
        yield f"coding {value!r}", request(b"Transfer-Encoding: " + value, body=CHUNKED_HELLO + HIDDEN), A
    chunked, sized = b"Transfer-Encoding: chunked", b"Content-Length: 5"
    body = CHUNKED_HELLO + HIDDEN
    yield "coding before length", request(chunked, sized, body=body), NOTHING
    yield "coding after length", request(sized, chunked, body=body), NOTHING
    yield "coding and length zero", request(chunked, b"Content-Length: 0", body=body), NOTHING
    yield "two codings alike", request(chunked, chunked, body=body), NOTHING
    yield "two codings unlike", request(chunked, b"Transfer-Encoding: identity", body=body), NOTHING
    yield "two codings turned", request(b"Transfer-Encoding: identity", chunked, body=body), NOTHING
    yield "other coding and length", request(b"Transfer-Encoding: identity", sized, body=body), NOTHING
    yield "old version", request(chunked, body=body, line=b"POST /v1.0/a HTTP/1.0"), NOTHING
    for name in (b"Transfer-Encoding ", b" Transfer-Encoding", b"Transfer-Encoding\t",
                 b"Transfer-Encoding\x00",
                 b"Transfer-\rEncoding", b"Transfer\xadEncoding"):  # fmt: skip
        yield f"coding named {name!r}", request(name + b": chunked", body=body), NOTHING
    yield "coding after a bare LF", request(b"Transfer-Encoding:\nchunked", body=body), NOTHING
    yield "coding behind a bare LF", request(b"X: y\nTransfer-Encoding: chunked", body=body), NOTHING
    yield "coding behind a bare CR", request(b"X: y\rTransfer-Encoding: chunked", body=body), NOTHING


def _chunks() -> Iterator[tuple[str, bytes, tuple[bytes, ...]]]:
    def chunked(body: bytes) -> bytes:
        return request(b"Transfer-Encoding: chunked", body=body)

    end = b"0\r\n\r\n"
    for size in (b"0x5", b"+5", b"-5", b" 5", b"\t5", b"\xd9\xa5", b"FFFFFFFFFFFFFFFF", b"10000000000000005",
                 b"5_0", b"", b"\r\n5", b"5,", b"5;\n", b"5;a=\x00", b"5;a=\x0b", b"000000000000000000005",
                 b'5;a="', b"5 5", b"5;=", b"5;a b", b"g", b"5;" + b"a" * 300, b"5\x00", b"5\x0b",
                 b"5h"):  # fmt: skip
        yield f"chunk size {size!r}", chunked(size + b"\r\nhello\r\n" + end + HIDDEN), NOTHING
    for size in (b"5", b"05", b"5;a", b"5;a=b", b'5;a="b;c"', b"5 ; a=b", b"5;a=b;c=d"):
        yield f"chunk size {size!r}", chunked(size + b"\r\nhello\r\n" + end + HIDDEN), A
    yield "size line ended by LF", chunked(b"5\nhello\r\n" + end + HIDDEN), NOTHING
    yield "size line ended by CR", chunked(b"5\rhello\r\n" + end + HIDDEN), NOTHING
    yield "size line ended by CR CR LF", chunked(b"5\r\r\nhello\r\n" + end + HIDDEN), NOTHING
    yield "chunk ended by LF", chunked(b"5\r\nhello\n" + end + HIDDEN), NOTHING
    yield "chunk ended by nothing", chunked(b"5\r\nhello" + end + HIDDEN), NOTHING
    yield "chunk longer than its size", chunked(b"5\r\nhelloX\r\n" + end + HIDDEN), NOTHING
    yield "chunk shorter than its size", chunked(b"6\r\nhello\r\n" + end + HIDDEN), NOTHING
    yield "last chunk ended by LF", chunked(b"5\r\nhello\r\n0\n\n" + HIDDEN), NOTHING
    yield "end with LF alone", chunked(b"5\r\nhello\r\n0\r\n\n" + HIDDEN), NOTHING
    yield "end without empty line", chunked(b"5\r\nhello\r\n0\r\n" + HIDDEN), NOTHING
    yield "several zeros", chunked(b"5\r\nhello\r\n000\r\n\r\n" + HIDDEN), A
    yield "last chunk with extension", chunked(b"5\r\nhello\r\n0;a=b\r\n\r\n" + HIDDEN), A
    yield "trailer", chunked(b"5\r\nhello\r\n0\r\nX: y\r\n\r\n" + HIDDEN), A
    for trailer in (b"X y", b"X: y\nZ: w", b"X: \x00", b": y", b" X: y", b"X : y", b"X: " + b"y" * 9000):
        yield (
            f"trailer {trailer[:9]!r}",
            chunked(b"5\r\nhello\r\n0\r\n" + trailer + b"\r\n\r\n" + HIDDEN),
            NOTHING,
        )
    for trailer in (
        b"Content-Length: 200",
        b"Transfer-Encoding: chunked",
        b"Host: evil",
        b"Authorization: x",
    ):
        yield f"trailer {trailer!r}", chunked(b"5\r\nhello\r\n0\r\n" + trailer + b"\r\n\r\n" + HIDDEN), A
    yield "hidden within a chunk", chunked(b"%x\r\n%b\r\n" % (len(HIDDEN), HIDDEN) + end), A


def _request_lines() -> Iterator[tuple[str, bytes, tuple[bytes, ...]]]:
    lines = (
        b"get /v1.0/a HTTP/1.1", b"Get /v1.0/a HTTP/1.1", b"GET  /v1.0/a HTTP/1.1", b"GET\t/v1.0/a HTTP/1.1",
        b"GET /v1.0/a\tHTTP/1.1", b"GET /v1.0/a  HTTP/1.1", b"GET /v1.0/a HTTP/1.1 ", b"GET /v1.0/a",
        b"GET /v1.0/a ", b"GET /v1.0/a HTTP/2.0", b"GET /v1.0/a HTTP/1.2", b"GET /v1.0/a HTTP/1.10",
        b"GET /v1.0/a HTTP/0.9", b"GET /v1.0/a http/1.1", b"GET /v1.0/a HTTP/11", b"GET /v1.0/a HTTP/1",
        b"GET /v1.0/a HTTPS/1.1", b"GET /v1.0/a HTTP/1.1 HTTP/1.1", b" GET /v1.0/a HTTP/1.1",
        b"GET http://q/v1.0/a HTTP/1.1", b"GET https://evil/v1.0/a HTTP/1.1", b"GET //evil:80 HTTP/9.9",
        b"GET http://p@evil/v1.0/a HTTP/1.1", b"GET http://p:443/v1.0/a HTTP/1.1",
        b"GET http:///v1.0/a HTTP/1.1", b"GET http://p\\@evil/v1.0/a HTTP/1.1",
        b"GET http:/p/v1.0/a HTTP/1.1", b"GET ftp://p/v1.0/a HTTP/1.1",
        b"GET http://p/v1.0/blocked/h HTTP/1.1", b"GET http://p HTTP/2.0", b"GET http://p#/v1.0/a HTTP/1.1",
        b"GET p:80 HTTP/1.1", b"GET * HTTP/1.1", b"OPTIONS * HTTP/1.1", b"CONNECT p:443 HTTP/1.1",
        b"CONNECT /v1.0/a HTTP/1.1", b"TRACE /v1.0/a HTTP/1.1", b"GET v1.0/a HTTP/1.1",
        b"GET /v1.0/a b HTTP/1.1",
        b"GET /v1.0/\x00 HTTP/1.1", b"GET /v1.0/a\x0b HTTP/1.1", b"GET /v1.0/\x7f HTTP/1.1",
        b"GET /v1.0/\xc3\xa9 HTTP/1.1", b"GET /v1.0/\xff HTTP/1.1", b"GET /v1.0/a#b HTTP/1.1",
        b"GE\x00T /v1.0/a HTTP/1.1", b"GET\x0b/v1.0/a HTTP/1.1", b"PRI * HTTP/2.0", b"PRI /v1.0/a HTTP/1.1",
        b"GET /v1.0/a HTTP/1.1\r", b"\x00GET /v1.0/a HTTP/1.1", b"\nGET /v1.0/a HTTP/1.1",
        b"\r\nGET /v1.0/a HTTP/1.1", b"GET ?a HTTP/1.1", b"GET  HTTP/1.1", b"HTTP/1.1 200 OK", b"GET",
        b"GETGETGET /v1.0/a HTTP/1.1", b"G\xcb\x89T /v1.0/a HTTP/1.1", b"GET /v1.0/%zz HTTP/1.1",
        b"GET /v1.0/a HTTP/1.\xd9\xa1", b"GET /v1.0/a HTTP/+1.1", b"GET /v1.0/a HTTP/1.1\x00",
        b"SOURCE /v1.0/a ICE/1.0", b"DESCRIBE /v1.0/a RTSP/1.0", b"SETUP /v1.0/a HTTP/1.1",
    )  # fmt: skip
    for line in lines:
        if line == b"\r\nGET /v1.0/a HTTP/1.1":
            yield "an empty line before", request(line=line), A
        else:
            yield f"line {line!r}", request(line=line, body=HIDDEN), NOTHING
    for line in (b"GET http://p/v1.0/a HTTP/1.1", b"GET HTTPS://P:443/v1.0/a HTTP/1.1"):
        yield f"absolute form {line!r}", request(line=line, body=HIDDEN), A
    yield "two empty lines before", b"\r\n\r\n" + request(), NOTHING
    yield "empty lines alone", b"\r\n\r\n\r\n\r\n", NOTHING
    yield "line ended by LF", b"GET /v1.0/a HTTP/1.1\nHost: p\r\n" + TOKEN + b"\r\n\r\n" + HIDDEN, NOTHING
    yield "all ended by LF", b"GET /v1.0/a HTTP/1.1\nHost: p\n" + TOKEN + b"\n\n" + HIDDEN, NOTHING
    yield "simple request of HTTP/0.9", b"GET /v1.0/a\r\n\r\n", NOTHING
    yield "preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN, NOTHING
    yield (
        "hello of TLS",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200 + b"\r\n\r\n",
        NOTHING,
    )
    yield "PROXY protocol 1", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + request(), NOTHING
    yield "PROXY protocol 2", b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + b"\x00" * 12 + request(), NOTHING
    yield "SOCKS", b"\x05\x01\x00\r\n\r\n" + request(), NOTHING


def _fields() -> Iterator[tuple[str, bytes, tuple[bytes, ...]]]:
    odd = (
        b"X y", b": y", b"X : y", b"X\t: y", b" X: y", b"\tX: y", b"X: y\r\n z", b"X: y\r\n\tz", b"X: a\x00b",
        b"X: a\x01b", b"X: a\x7fb", b"X: a\rb", b"X: a\nb", b"X: a\r\rb", b"\x00: y", b"X\x00: y",
        b"X\xe9: y",
        b"X(y): z", b"X,y: z", b"X y: z", b"X;: z", b'"X": z', b"X@y: z", b"Host: q", b"Host: p", b"host: p",
        b"Expect: x", b"Expect: 100-continue, x", b"Expect: 100-Continue\r\nExpect: 100-continue",
        b"Expect: ",
        b"X-HTTP-Method-Override: DELETE", b"X-Method-Override: PUT\r\nX-Method-Override: POST",
        b"Authorization: Bearer x", b"authorization: Bearer a.b.c", b"\r", b"\x0b", b"X", b"\xff\xfe",
        b"X: y\x00\r\nZ: w", b"Content-Length: 5\x00",
    )  # fmt: skip
    for field in odd:
        yield f"field {field!r}", request(field, body=HIDDEN), NOTHING
    plain = b"GET /v1.0/a HTTP/1.1\r\n"
    for host in (b"p/x", b"a@b", b"a b", b"a,b", b"", b"p:x", b"p:999999", b"[::1", b"p\x00", b"p#",
                 b"p?", b"a;b",
                 b"http://p", b"\xc3\xa9", b"p\\q"):  # fmt: skip
        yield f"host {host!r}", plain + b"Host: " + host + b"\r\n" + TOKEN + b"\r\n\r\n", NOTHING
    yield "no host", plain + b"" + TOKEN + b"\r\n\r\n", NOTHING
    yield "no host before 1.1", b"GET /v1.0/a HTTP/1.0\r\n" + TOKEN + b"\r\n\r\n" + HIDDEN, A
    yield "empty value", request(b"X:"), A
    yield "text beyond ASCII", request(b"X: \xc3\xa9"), A
    yield "method override alike", request(b"X-HTTP-Method-Override: POST"), A
    yield "upgrade to h2c", request(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c",
                                    b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA", body=HIDDEN), A  # fmt: skip
    yield "upgrade to websocket", request(b"Connection: Upgrade", b"Upgrade: websocket", body=HIDDEN), A
    yield (
        "listed framing",
        request(b"Connection: content-length", b"Content-Length: 5", body=b"hello" + HIDDEN),
        A,
    )
    yield "listed coding", request(b"Connection: transfer-encoding", b"Transfer-Encoding: chunked",
                                      body=CHUNKED_HELLO + HIDDEN), A  # fmt: skip
    yield "listed credential", request(b"Connection: authorization, host, expect"), A
    yield "other end of connection", request(b"Connection: close", body=HIDDEN), A
    yield "many fields", request(*[b"X: y"] * 200, body=HIDDEN), NOTHING
    yield "long field", request(b"X: " + b"y" * 70000, body=HIDDEN), NOTHING
    yield "long target", request(line=b"GET /v1.0/" + b"a" * 70000 + b" HTTP/1.1"), NOTHING
    yield "head without an end", START + b"X: y\r\n", NOTHING
    yield "nothing but NUL", b"\x00" * 100 + b"\r\n\r\n", NOTHING
    yield "nothing but CR", b"\r" * 100 + b"\r\n\r\n", NOTHING
    yield "nothing but LF", b"\n" * 100 + b"\r\n\r\n", NOTHING
    yield "nothing but a space", b" \r\n\r\n", NOTHING


def _refused_with_bodies() -> Iterator[tuple[str, bytes, tuple[bytes, ...]]]:
    """Yield requests that have a body and that the proxy refuses because of their head.

    The proxy must not interpret the body of a refused request as another request.
    """
    sized = b"Content-Length: %d" % len(HIDDEN)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
    for line in (b"POST /v1.0/blocked/x", b"POST /v1.0/%00", b"POST /v1.0/$batch", b"POST /proxy/token",
                 b"GET /proxy/token", b"GET /t/v2.0/.well-known/openid-configuration",
                 b"GET /adfs/.well-known/openid-configuration", b"GET /t/discovery/v2.0/keys"):  # fmt: skip
        yield f"{line!r} sized", request(sized, body=HIDDEN, line=line + b" HTTP/1.1"), NOTHING
        yield (
            f"{line!r} chunked",
            request(b"Transfer-Encoding: chunked", body=chunked, line=line + b" HTTP/1.1"),
            NOTHING,
        )
        yield (
            f"{line!r} expecting",
            request(sized, b"Expect: 100-continue", body=HIDDEN, line=line + b" HTTP/1.1"),
            NOTHING,
        )
    nobody = b"POST /v1.0/a HTTP/1.1\r\nHost: p\r\n"
    yield "no token", nobody + sized + b"\r\n\r\n" + HIDDEN, NOTHING
    yield "no token, chunked", nobody + b"Transfer-Encoding: chunked\r\n\r\n" + chunked, NOTHING
    yield "no token, malformed chunk", nobody + b"Transfer-Encoding: chunked\r\n\r\nx\r\n" + HIDDEN, NOTHING
    yield "blocked, malformed chunk", request(b"Transfer-Encoding: chunked", body=b"x\r\n" + HIDDEN,
                                              line=b"POST /v1.0/blocked/x HTTP/1.1"), NOTHING  # fmt: skip
    yield "form over its limit", request(b"Content-Length: 100000", body=b"a" * 100000 + HIDDEN,
                                         line=b"POST /proxy/token HTTP/1.1"), NOTHING  # fmt: skip


# Forwarded although h11 refuses it: RFC 9112 §7.1.1 allows white space around extensions. The proxy forwards
# none.
READ_OTHERWISE = {"chunk size b'5 ; a=b'"}

CORPUS = [
    *_content_lengths(),
    *_transfer_codings(),
    *_chunks(),
    *_request_lines(),
    *_fields(),
    *_refused_with_bodies(),
]


def test_the_corpus_is_broad() -> None:
    assert len(CORPUS) >= 250
    assert len({name for name, _, _ in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize(("name", "raw", "forwarded"), CORPUS, ids=[name for name, _, _ in CORPUS])
async def test_an_odd_request_is_forwarded_as_it_is_read_or_not_at_all(
    tmp_path: Path, name: str, raw: bytes, forwarded: tuple[bytes, ...]
) -> None:
    upstream = H11Upstream()
    async with data_path(upstream.script, tmp_path, RULES) as proxy:
        raw = with_token(proxy, raw)
        reply = await exchanged(proxy, raw)
        assert upstream.refused == []
        assert tuple(each.target for each in upstream.requests) == forwarded
        if name not in READ_OTHERWISE:
            expected = [each.essence for each in readings(raw) if each.target in forwarded]
            assert [each.essence for each in upstream.requests] == expected[: len(forwarded)]
        assert b" 500 " not in reply
        for number in range(2):
            stranger = await proxy.ask(proxy.request(f"/v1.0/stranger/{number}"))
            assert stranger.json() == {"target": f"/v1.0/stranger/{number}"}


def with_token(proxy: DataPath, raw: bytes) -> bytes:
    return raw.replace(TOKEN, f"Authorization: Bearer {proxy.token}".encode())


async def exchanged(proxy: DataPath, raw: bytes) -> bytes:
    """Send the bytes, and return what the proxy sends until it closes the connection or pauses."""
    reader, writer = await proxy.connect()
    writer.write(raw)
    response = b""
    try:
        quiet = 0
        while quiet < 3:
            try:
                piece = await asyncio.wait_for(reader.read(1 << 16), 0.004)
                if not piece:
                    break
                response += piece
                quiet = 0
            except TimeoutError:
                quiet += not any(each.busy for each in proxy.context.connections) or 1
    except ConnectionError:
        pass
    writer.close()
    return response


# Every prefix, and every cut into two pieces


@pytest.mark.parametrize("body", ["sized", "chunked"])
async def test_however_a_request_is_cut_in_two_it_means_the_same(tmp_path: Path, body: str) -> None:
    raw = (
        request(b"Content-Length: 5", b"X: y", body=b"hello")
        if body == "sized"
        else request(b"Transfer-Encoding: chunked", body=b"3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nX: y\r\n\r\n")
    )
    upstream = H11Upstream()
    async with data_path(upstream.script, tmp_path, RULES) as proxy:
        raw = with_token(proxy, raw)
        for cut in range(1, len(raw)):
            upstream.requests.clear()
            reply = await proxy.ask(raw[:cut], raw[cut:])
            assert reply.json() == {"target": "/v1.0/a"}
            assert [each.essence for each in upstream.requests] == [(b"POST", b"/v1.0/a", b"hello")]
        assert upstream.refused == []


async def test_a_client_that_leaves_within_a_request_leaves_no_whole_request_behind(tmp_path: Path) -> None:
    upstream = H11Upstream()
    async with data_path(upstream.script, tmp_path, RULES) as proxy:
        raw = with_token(proxy, request(b"Transfer-Encoding: chunked", body=CHUNKED_HELLO))
        for cut in range(1, len(raw)):
            _, writer = await proxy.connect()
            writer.write(raw[:cut])
            await writer.drain()
            writer.close()
        while proxy.context.connections:  # noqa: ASYNC110 - they end one by one, without an event
            await asyncio.sleep(0.001)
        assert (await proxy.ask(proxy.request("/v1.0/mine"))).json() == {"target": "/v1.0/mine"}
        assert [each.target for each in upstream.requests] == [b"/v1.0/mine"]
        assert {each["reason"] for each in proxy.events()} == {"clientAborted", "default"}


# Comparison with h11 as the other reader


FRAMING = (
    b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: 7", b"content-length: 5",
    b"Content-Length: 05",
    b"Content-Length: 5, 5", b"Content-Length : 5", b"Content-Length: +5", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: Chunked", b"Transfer-Encoding: gzip, chunked", b"transfer-encoding:chunked",
    b"Transfer-Encoding: identity", b"Transfer-Encoding:\tchunked ", b"Transfer-Encoding: chunked, identity",
    b"Connection: close", b"Connection: keep-alive", b"Connection: x-hop", b"X-Hop: 1",
    b"Expect: 100-continue",
    b"Upgrade: h2c", b"Connection: Upgrade", b"TE: trailers", b"X: y", b"X:", b"X:  \t y \t", b"X: \xff",
    b"X: a\x00",
    b"X: a\r\n b", b"Host: q", b"x_y: z", b"Content_Length: 5", b"Accept-Encoding: gzip, zstd",
    b"Content-Type: application/json", b"Cookie: a=b; c=d", b"\xc3\xa9: x", b"X y: z", b"If-Match: *",
)  # fmt: skip
BODIES = (
    b"", b"hello", b"hello\r\n", b"hell", CHUNKED_HELLO, b"5;a=b\r\nhello\r\n0\r\nT: x\r\n\r\n",
    b"05\r\nhello\r\n0\r\n\r\n",
    b"5\nhello\n0\n\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    b"5\r\nhelloo\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", HIDDEN, b"\r\n", b"\r\n\r\n", b"\x00",
)  # fmt: skip
LINES = (
    b"GET /v1.0/a HTTP/1.1", b"POST /v1.0/a HTTP/1.1", b"HEAD /v1.0/a?b=c HTTP/1.1",
    b"DELETE /v1.0/a HTTP/1.1",
    b"PUT /v1.0/a;x/y HTTP/1.1", b"POST /v1.0/blocked/x HTTP/1.1", b"GET /v1.0/a HTTP/1.0",
    b"OPTIONS /v1.0/a HTTP/1.1",
    b"QUERY /v1.0/a HTTP/1.1", b"GET /v1.0/a  HTTP/1.1", b"GET http://p/v1.0/a HTTP/1.1",
    b"PATCH /v1.0/a HTTP/1.1",
    b"M-SEARCH /v1.0/a HTTP/1.1", b"POST /v1.0/a HTTP/1.2", b"get /v1.0/a HTTP/1.1",
)  # fmt: skip
SPICE = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"0",
    b"5",
    b"\xff",
    b"\x0b",
    b"a",
    b"\x7f",
)


@st.composite
def client_bytes(draw: st.DrawFn) -> bytes:
    """Build one to three HTTP requests from valid and invalid parts.

    In some cases, also insert, remove or change bytes in the requests.
    """
    raw = b""
    for _ in range(draw(st.integers(1, 3))):
        fields = draw(st.lists(st.sampled_from(FRAMING), max_size=4))
        raw += request(*fields, body=draw(st.sampled_from(BODIES)), line=draw(st.sampled_from(LINES)))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(raw)))
        gone = draw(st.integers(0, 2))
        raw = raw[:at] + draw(st.sampled_from(SPICE)) + raw[at + gone :]
    return raw


class Bench:
    """A proxy that all examples of a hypothesis test share.

    The proxy's event loop stays open while hypothesis runs one example after another.
    """

    def __init__(self, directory: Path) -> None:
        self.upstream = H11Upstream()
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        entering = self._stack.enter_async_context(data_path(self.upstream.script, directory, RULES))
        self.proxy = self._runner.run(_awaited(entering))

    def exchanged(self, raw: bytes) -> list[ReadRequest]:
        self.upstream.requests.clear()
        self._runner.run(exchanged(self.proxy, raw))
        if self.proxy.context.spool.needs_maintenance:
            self.proxy.context.spool.maintain()  # the worker does this about once a second
        return list(self.upstream.requests)

    def stranger(self) -> object:
        return self._runner.run(self.proxy.ask(self.proxy.request("/v1.0/stranger"))).json()

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


async def _awaited(entering: object) -> DataPath:
    return await entering  # type: ignore[misc,no-any-return]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="GRAPHWARD_DIFFERENTIAL_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(raw=client_bytes())
def test_the_upstream_receives_exactly_what_an_independent_parser_reads(bench: Bench, raw: bytes) -> None:
    raw = with_token(bench.proxy, raw)
    received = bench.exchanged(raw)
    assert bench.upstream.refused == []
    read = [(*each.essence, end_to_end(each.fields)) for each in readings(raw)]
    position = 0
    for each in received:
        assert not each.target.startswith(b"/v1.0/blocked")
        essence = (*each.essence, end_to_end(each.fields))
        while position < len(read) and read[position] != essence:
            position += 1  # a request that the proxy refused
        assert position < len(read), f"{each} is no request that h11 reads in {raw!r}"
        position += 1
    assert bench.stranger() == {"target": "/v1.0/stranger"}


def end_to_end(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the header fields to forward unchanged: all except framing fields and replaced fields."""
    listed = {
        option.strip().lower()
        for name, value in fields
        if name == b"connection"
        for option in value.split(b",")
    }
    ours = {b"host", b"authorization", b"connection", b"upgrade", b"te", b"content-length",
    b"transfer-encoding",
            b"accept-encoding", b"expect", b"x-hop"}  # fmt: skip
    return [(name, value) for name, value in fields if name not in listed | ours]
