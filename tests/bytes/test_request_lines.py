"""Tests of request lines in every form of RFC 9112 §3: the forwarded line, or the message of the refusal."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.server.errors import MalformedBody, MalformedHead
from proxy.server.http1.chunked import ChunkedDecoder
from proxy.server.http1.request_head import parse_request_head
from tests.bytes.data_path import data_path, ok, responding


def refusal_of(line: bytes, *fields: bytes) -> tuple[str, str]:
    head = b"\r\n".join((line, *(fields or (b"Host: p",)))) + b"\r\n\r\n"
    with pytest.raises(MalformedHead) as caught:
        parse_request_head(head)
    return caught.value.code, str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"GET /v1.0/root:/R\xc3\xa9sum\xc3\xa9.docx HTTP/1.1", "encode characters beyond ASCII as %XX"),
        (b"GET http://p/\xe9 HTTP/1.1", "encode characters beyond ASCII as %XX"),
        (b"G\xc3\x89T / HTTP/1.1", "the method contains a byte beyond ASCII"),
        (b"GET /a b HTTP/1.1", "encode it as %20"),
        (b"GET http://p/a b HTTP/1.1", "encode it as %20"),
        (b"GET /a\x00 HTTP/1.1", "control character; encode it as %00"),
        (b"GET /a\x7f HTTP/1.1", "control character; encode it as %7F"),
        (b"GET /a\nHTTP/1.1", "bare CR or LF"),
        (b"GET /a HTTP/1.1\r", "bare CR or LF"),
        (b"GET\t/a HTTP/1.1", "a tab"),
        (b"GET  /a HTTP/1.1", "a space too many"),
        (b" GET /a HTTP/1.1", "a space too many"),
        (b"GET /a HTTP/1.1 ", "a space too many"),
        (b"GET /a", "does not end in a version"),
        (b"GET /a ICE/1.0", "does not end in a version"),
        (b"GET", "no target"),
        (b"GET HTTP/1.1", "no target"),
        (b"GET HTTP/x", "no target"),
        (b"", "an empty line"),
        (b"GET /a HTTP/0.9", "the proxy does not support HTTP/0.9"),
        (b"GET /a HTTP/2.0", "the proxy does not support HTTP/2.0; use HTTP/1.1"),
        (b"GET /a HTTP/2", "the proxy does not support HTTP/2; use HTTP/1.1"),
        (b"GET http://p/a HTTP/3", "the proxy does not support HTTP/3; use HTTP/1.1"),
        (b"PRI * HTTP/2.0", "the proxy does not support HTTP/2; use HTTP/1.1"),
        (b"GET /a http/1.1", "'http/1.1' is not a version of HTTP"),
        (b"GET /a HTTP/1.10", "'HTTP/1.10' is not a version of HTTP"),
        (b"get /a HTTP/1.1", "the method 'get' is not known; methods are written in capitals"),
        (b"Get http://p/a HTTP/1.1", "methods are written in capitals"),
        (b"BREW /a HTTP/1.1", "the method 'BREW' is not known"),
        (b"BREW http://p/a HTTP/1.1", "the method 'BREW' is not known"),
        (b"G(T /a HTTP/1.1", "not a token"),
        (b"A1 /a HTTP/1.1", "the method 'A1' is not known"),
        (b"B" * 10000 + b" /a HTTP/1.1", "'" + "B" * 32 + "...' is not known"),
        (b"GET * HTTP/1.1", "the proxy does not support the target '*'"),
        (b"OPTIONS * HTTP/1.1", "the proxy does not support the target '*'"),
        (b"OPTIONS http://p HTTP/1.1", "the proxy does not support the target '*'"),
        (b"GET p:80 HTTP/1.1", "names a host and port, which only CONNECT does"),
        (b"GET a/b HTTP/1.1", "does not begin with '/'"),
        (b"GET ?a HTTP/1.1", "does not begin with '/'"),
        (b"GET ftp://p/a HTTP/1.1", "another scheme than http and https"),
        (b"GET http://u:p@p/a HTTP/1.1", "user information"),
        (b"GET http:///a HTTP/1.1", "is not a valid host and port"),
        (b"GET http://p:x/a HTTP/1.1", "is not a valid host and port"),
        (b"GET http://q/a HTTP/1.1", "name different hosts"),
        (b"GET http://p:8080/a HTTP/1.1", "name different hosts"),
        (b"GET https://p:80/a HTTP/1.1", "name different hosts"),
    ],
)
def test_each_fault_of_a_request_line_has_its_own_words(line: bytes, words: str) -> None:
    code, message = refusal_of(line)
    assert code == "badRequest"
    assert words in message


@pytest.mark.parametrize("line", [b"CONNECT p:443 HTTP/1.1", b"CONNECT /a HTTP/1.1", b"TRACE /a HTTP/1.1"])
def test_connect_and_trace_are_methods_that_are_not_allowed(line: bytes) -> None:
    assert refusal_of(line)[0] == "methodNotAllowed"


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (b"X y", "has no colon"),
        (b": y", "has no name"),
        (b"X : y", "a space between its name and the colon"),
        (b" X: y", "begins with a space"),
        (b"X@: y", "a character that is not allowed"),
        (b"X: a\x00b", "header field X contains a control character"),
        (b"X: a\nb", "header field X contains a bare CR or LF"),
        (b"Content-Length:", "Content-Length is empty"),
        (b"Content-Length: 1, 1", "Content-Length has several values"),
        (b"content-length: 5,6", "Content-Length has several values"),
        (b"Content-Length: +1", "not a number of decimal digits"),
        (b"Content-Length: " + b"9" * 30, "more than 18 digits"),
        (b"Transfer-Encoding: gzip, chunked", "the only supported transfer coding is chunked"),
        (b"Host: q", "several Host fields"),
    ],
)
def test_each_fault_of_a_header_field_has_its_own_words(field: bytes, words: str) -> None:
    for _ in range(2):  # the second time, the line is remembered
        assert words in refusal_of(b"GET / HTTP/1.1", b"Host: p", field)[1]


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (b"", "is empty"),
        (b"a, b", "several hosts"),
        (b"u@p", "user information"),
        (b"\xc3\xa9", "xn--"),
        (b"http://p", "more than a host and a port"),
        (b"p:99x", "is not a host"),
    ],
)
def test_each_fault_of_the_host_has_its_own_words(host: bytes, words: str) -> None:
    assert words in refusal_of(b"GET / HTTP/1.1", b"Host: " + host)[1]


def test_a_coding_in_http_1_0_is_refused_for_its_version() -> None:
    code, message = refusal_of(b"GET / HTTP/1.0", b"Host: p", b"Transfer-Encoding: chunked")
    assert (code, message) == ("badRequest", "Transfer-Encoding needs HTTP/1.1 in the request line")


OURS = [
    ("http://p/v1.0/users/1", "p", "/v1.0/users/1"),
    ("http://p/v1.0/users/1", "P:80", "/v1.0/users/1"),
    ("https://p/v1.0/users/1", "p", "/v1.0/users/1"),  # a load balancer in front of the proxy terminated TLS
    ("HttpS://P:443/v1.0/users/1?$top=1&x=http://q/", "p", "/v1.0/users/1?$top=1&x=http://q/"),
    ("http://p:8443/v1.0/users('a@b')", "p:08443", "/v1.0/users('a@b')"),
    ("http://[::1]:80/v1.0//%2E/a", "[::1]", "/v1.0//%2E/a"),
    ("http://p", "p", "/"),
    ("http://p:", "p", "/"),
    ("http://p?a=b", "p", "/?a=b"),
    ("http://p//evil.example/a", "p", "//evil.example/a"),
]


@pytest.mark.parametrize(("target", "host", "forwarded"), OURS)
async def test_an_absolute_url_of_ours_is_forwarded_in_origin_form(
    tmp_path: Path, target: str, host: str, forwarded: str
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        for version in ("1.1", "1.0"):
            fields = f"Host: {host}\r\nAuthorization: Bearer {proxy.token}\r\n\r\n"
            assert (await proxy.ask(f"GET {target} HTTP/{version}\r\n{fields}".encode())).status == 200
        lines = [head.split(b"\r\n")[0] for head in proxy.upstream.heads]
        assert lines == [b"GET %b HTTP/1.1" % forwarded.encode()] * 2
        recorded = [f"{e['path']}?{e['query']}" if e["query"] else e["path"] for e in proxy.events()]
        assert recorded == [forwarded] * 2


async def test_an_absolute_url_leads_to_the_configured_upstream_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        host = f"127.0.0.1:{elsewhere.getsockname()[1]}"
        async with data_path(responding(ok(b'{"@odata.nextLink":"http://x/"}')), tmp_path) as proxy:
            token = f"Authorization: Bearer {proxy.token}\r\n"
            for named in (host, "proxy.example"):
                await proxy.ask(f"GET http://{host}/v1.0/a HTTP/1.1\r\nHost: {named}\r\n{token}\r\n".encode())
            reply = await proxy.ask(f"GET http://{host}/v1.0/a HTTP/1.0\r\n{token}\r\n".encode())
            assert reply.status == 200
            assert reply.json() == {"@odata.nextLink": "http://x/"}
            upstream = b"host: 127.0.0.1:%d\r\n" % proxy.upstream.port
            assert all(upstream in head.lower() for head in proxy.upstream.heads)
            assert len(proxy.upstream.heads) == 2
        await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


async def test_an_absolute_url_of_the_token_endpoint_is_the_token_endpoint(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await proxy.ask(b"GET http://p/proxy/token HTTP/1.1\r\nHost: p\r\n\r\n")
        assert reply.status == 405
        assert proxy.upstream.received == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"0\r\nX y\r\n\r\n", "a line of the trailer section is not a header field"),
        (b"0\r\n" + b"X: y\r\n" * 2000 + b"\r\n", "the trailer section is too large"),
        (b"x\r\n", "a chunk's size line is malformed"),
        (b"1\r\nab\r\n", "a chunk of the body is longer than its size line says"),
    ],
)
def test_each_fault_of_a_chunked_body_has_its_own_words(body: bytes, words: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        ChunkedDecoder().feed(body)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("target", "words"),
    [("/v1.0/a#b", "encode '#' as %23"), ("/v1.0/é", "printable ASCII; encode any other character as %XX")],
)
def test_each_fault_of_a_target_has_its_own_words(target: str, words: str) -> None:
    with pytest.raises(MalformedTarget) as caught:
        canonicalise(target)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (b"&".join(b"a%d=b" % n for n in range(70)), "more than 64 fields"),
        (b"grant_type=%ff", "not UTF-8 text"),
        (b"grant_type=a&grant_type=b", "given more than once"),
    ],
)
async def test_each_fault_of_a_form_has_its_own_words(tmp_path: Path, form: bytes, words: str) -> None:
    head = (
        b"POST /proxy/token HTTP/1.1\r\nHost: p\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: %d\r\n\r\n" % len(form)
    )
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await proxy.ask(head + form)
        assert (reply.status, reply.json()["error"]) == (400, "invalid_request")
        assert words in reply.json()["error_description"]
