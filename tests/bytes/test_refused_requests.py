"""Test that a refused request is an event of the app that its token names, if the token is readable."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proxy.ipc.counters import BAD_REQUESTS, UNAUTHENTICATED
from proxy.server.client.state import State
from tests.bytes.data_path import (
    CALLER,
    CLIENT_ID,
    ORG_ID,
    TOKENS,
    DataPath,
    data_path,
    ok,
    read_reply,
    responding,
    until,
)
from tests.patience import PATIENCE_SECONDS

RULES = """
version: 1
name: refused
default: allow
rules:
  - {id: reads-bodies, match: {path: ["/v1.0/read"], methods: [POST]}, verdict: block,
     conditions: [{body: a, equals: b}]}
"""

START = b"POST /v1.0/a HTTP/1.1\r\nHost: p\r\nTOKEN"
GET = b"GET /v1.0/a HTTP/1.1\r\nHost: p\r\nTOKEN"
READ = b"POST /v1.0/read HTTP/1.1\r\nHost: p\r\nTOKENContent-Type: application/json\r\n"
BATCH = b"POST /v1.0/$batch HTTP/1.1\r\nHost: p\r\nTOKENContent-Type: application/json\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"


class Case(NamedTuple):
    name: str
    raw: bytes  # TOKEN stands for the Authorization field
    status: int
    reason: str
    method: str = "POST"
    path: str = "/v1.0/a"
    verdict: str = "block"


def line(text: bytes) -> bytes:
    return text + b"\r\nHost: p\r\nTOKEN\r\n"


CASES = [
    # Request line
    Case("trace", line(b"TRACE /v1.0/a HTTP/1.1"), 405, "unsupported", "TRACE"),
    Case("connect", line(b"CONNECT p:443 HTTP/1.1"), 405, "unsupported", "CONNECT", "p:443"),
    Case("connect a path", line(b"CONNECT /v1.0/a HTTP/1.1"), 405, "unsupported", "CONNECT"),
    Case("unknown method", line(b"BREW /v1.0/a HTTP/1.1"), 400, "unsupported", "BREW"),
    Case("lower-case method", line(b"get /v1.0/a HTTP/1.1"), 400, "unsupported", "get"),
    Case("method that is no token", line(b"G@T /v1.0/a HTTP/1.1"), 400, "malformedRequest", "G@T"),
    Case("method of http/2's preface", line(b"PRI /v1.0/a HTTP/1.1"), 400, "unsupported", "PRI"),
    Case("another host's absolute form", line(b"GET http://evil/v1.0/a HTTP/1.1"), 400, "malformedTarget",
         "GET", "http://evil/v1.0/a"),
    Case("user information", line(b"GET http://u:secret@p/v1.0/a HTTP/1.1"), 400, "malformedTarget",
         "GET", "http://***@p/v1.0/a"),
    Case("raw utf-8", line(b"GET /v1.0/\xc3\xa9 HTTP/1.1"), 400, "malformedTarget", "GET", "/v1.0/%C3%A9"),
    Case("nul in the target", line(b"GET /v1.0/\x00 HTTP/1.1"), 400, "malformedTarget", "GET", "/v1.0/%00"),
    Case("space in the target", line(b"GET /v1.0/a b HTTP/1.1"), 400, "malformedTarget", "GET",
         "/v1.0/a%20b"),
    Case("asterisk", line(b"OPTIONS * HTTP/1.1"), 400, "malformedTarget", "OPTIONS", "*"),
    Case("authority", line(b"GET p:80 HTTP/1.1"), 400, "malformedTarget", "GET", "p:80"),
    Case("no version", line(b"GET /v1.0/a"), 400, "malformedRequest", "GET"),
    Case("another version", line(b"GET /v1.0/a HTTP/2.0"), 400, "unsupported", "GET"),
    Case("two spaces", line(b"GET  /v1.0/a HTTP/1.1"), 400, "malformedRequest", "GET"),
    Case("a tab", line(b"GET\t/v1.0/a HTTP/1.1"), 400, "malformedRequest", "GET"),
    Case("a method alone", line(b"GET"), 400, "malformedRequest", "GET", "-"),
    # Header section
    Case("two lengths", START + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na", 400, "malformedRequest"),
    Case("length and coding", START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         400, "malformedRequest"),
    Case("length that is no number", START + b"Content-Length: +1\r\n\r\na", 400, "malformedRequest"),
    Case("another coding", START + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400, "malformedRequest"),
    Case("coding in http/1.0", START.replace(b"/1.1", b"/1.0") + b"Transfer-Encoding: chunked\r\n\r\n",
         400, "malformedRequest"),
    Case("no host", GET.replace(b"Host: p\r\n", b"") + b"\r\n", 400, "malformedRequest", "GET"),
    Case("two hosts", GET + b"Host: p\r\n\r\n", 400, "malformedRequest", "GET"),
    Case("host that is none", GET.replace(b": p", b": a/b") + b"\r\n", 400, "malformedRequest", "GET"),
    Case("line that is no field", GET + b"nonsense\r\n\r\n", 400, "malformedRequest", "GET"),
    Case("nul in a value", GET + b"X: a\x00b\r\n\r\n", 400, "malformedRequest", "GET"),
    Case("folded line", GET + b"X: a\r\n b\r\n\r\n", 400, "malformedRequest", "GET"),
    Case("space before a colon", GET + b"X : a\r\n\r\n", 400, "malformedRequest", "GET"),
    Case("another expectation", START + b"Expect: 200-ok\r\n\r\n", 417, "unsupported"),
    Case("too many fields", GET + b"X: a\r\n" * 200 + b"\r\n", 431, "headersTooLarge", "GET"),
    Case("too large a head", GET + b"X: " + b"a" * 70000 + b"\r\n\r\n", 431, "headersTooLarge", "GET"),
    Case("too large, without end", GET + b"X: " + b"a" * 70000, 431, "headersTooLarge", "GET"),
    Case("too long a target", b"GET /" + b"a" * 70000 + b"\r\nTOKEN\r\n", 431, "headersTooLarge", "GET"),
    Case("contradicting overrides", START + b"X-Method-Override: PUT\r\nX-Method-Override: PATCH\r\n\r\n",
         400, "malformedRequest"),
    Case("method override", START + b"X-Method-Override: PUT\r\n\r\n", 400, "unsupported"),
    # Target and body
    Case("malformed target", GET.replace(b"/a ", b"/%00 ") + b"\r\n", 400, "malformedTarget", "GET",
         "/v1.0/%00"),
    Case("malformed chunk", START + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", 400, "malformedRequest",
         verdict="allow"),
    Case("malformed trailer", START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX y\r\n\r\n", 400,
         "malformedRequest", verdict="allow"),
    Case("too large a body", READ + b"Content-Length: 9999999\r\n\r\n", 413, "payloadTooLarge",
         path="/v1.0/read"),
    Case("malformed body", READ + b"Content-Length: 1\r\n\r\n{", 400, "malformedRequest",
         path="/v1.0/read"),
    Case("malformed batch", BATCH + b"Content-Length: 1\r\n\r\n{", 400, "malformedBatch",
         path="/v1.0/$batch", verdict="allow"),
    # Token endpoint
    Case("another method for a token", b"GET /proxy/token HTTP/1.1\r\nHost: p\r\nTOKEN\r\n", 405,
         "malformedRequest", "GET", "/proxy/token"),
    Case("too large a form", b"POST /proxy/token HTTP/1.1\r\nHost: p\r\nTOKENContent-Length: 99999\r\n\r\n",
         413, "payloadTooLarge", path="/proxy/token"),
    Case("form that is none", b"POST /proxy/token HTTP/1.1\r\nHost: p\r\nTOKENContent-Length: 1\r\n\r\na",
         400, "malformedRequest", path="/proxy/token"),
    Case("nobody's secret",
         b"POST /proxy/token HTTP/1.1\r\nHost: p\r\nTOKEN" + FORM + b"Content-Length: 68\r\n\r\n"
         b"grant_type=client_credentials&client_id=nobody-known&client_secret=x", 401, "tokenRefused",
         path="/proxy/token"),
]  # fmt: skip


def with_token(raw: bytes, token: str) -> bytes:
    return raw.replace(b"TOKEN", f"Authorization: Bearer {token}\r\n".encode())


def error_of(response: bytes) -> tuple[int, dict[str, Any]]:
    """Return the status and the error body of the last response.

    `response` has the bytes of several responses.
    """
    head, _, body = response.rpartition(b"\r\n\r\n")
    return int(head.rpartition(b"HTTP/1.1 ")[2][:3]), json.loads(body)


async def response_to(proxy: DataPath, raw: bytes) -> bytes:
    reader, writer = await proxy.connect()
    writer.write(raw)
    reply = await asyncio.wait_for(read_reply(reader), PATIENCE_SECONDS)
    writer.close()
    return reply.head + reply.body


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_a_refusal_is_one_event_that_says_what_the_client_was_told(tmp_path: Path, case: Case) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        status, error = error_of(await response_to(proxy, with_token(case.raw, proxy.token)))
        assert status == case.status
        [event] = proxy.events()
        names = ("status", "reason", "method", "verdict", "orgId", "appId")
        assert {name: event[name] for name in names} == {
            "status": case.status,
            "reason": case.reason,
            "method": case.method,
            "verdict": case.verdict,
            "orgId": ORG_ID,
            "appId": CALLER.app_id,
        }
        assert event["path"].startswith("/aaa") or event["path"] == case.path
        assert event["ruleId"] in (None, "default")
        assert "secret" not in event["path"]
        if "innerError" in error["error"]:  # errors of RFC 6749 have none
            assert error["error"]["innerError"]["request-id"] == event["id"]
        assert proxy.upstream.received == []


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_a_request_without_a_token_leaves_no_event(tmp_path: Path, case: Case) -> None:
    forged = TOKENS.issue(CALLER, now=time.time(), token_id="t")[:-8] + "AAAAAAAA"
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        for raw in (case.raw.replace(b"TOKEN", b""), with_token(case.raw, forged)):
            await response_to(proxy, raw)
        assert proxy.events() == []
        assert proxy.upstream.received == []


AMBIGUOUS = [
    ("two tokens", b"GET http://evil/ HTTP/1.1\r\nHost: p\r\nTOKENTOKEN\r\n"),
    ("another one beside it", b"GET * HTTP/1.1\r\nHost: p\r\nTOKENAuthorization: Basic eA==\r\n\r\n"),
    ("another one with a space", b"GET * HTTP/1.1\r\nHost: p\r\nTOKENAuthorization : Basic eA==\r\n\r\n"),
    ("another one that is folded", b"GET * HTTP/1.1\r\nHost: p\r\nTOKEN Authorization: Basic eA==\r\n\r\n"),
    ("another one behind a bare LF", b"GET * HTTP/1.1\r\nX: a\nAuthorization: Basic eA==\r\nTOKEN\r\n"),
    ("behind a bare LF", b"GET * HTTP/1.1\r\nHost: p\r\nX: a\nTOKEN\r\n"),
    ("behind a bare CR", b"GET * HTTP/1.1\r\nHost: p\r\nX: a\rTOKEN\r\n"),
    ("in the body", b"GET * HTTP/1.1\r\nHost: p\r\n\r\nTOKEN\r\n\r\n"),
    ("behind a space", b"GET * HTTP/1.1\r\nHost: p\r\n TOKEN\r\n"),
    ("all behind bare LF", b"GET * HTTP/1.1\nHost: p\nTOKEN\r\n"),
]


@pytest.mark.parametrize(("name", "raw"), AMBIGUOUS, ids=[name for name, _ in AMBIGUOUS])
async def test_a_token_that_may_be_another_s_proves_nothing(tmp_path: Path, name: str, raw: bytes) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        assert error_of(await proxy.raw(with_token(raw, proxy.token)))[0] == 400
        assert proxy.events() == []
        assert proxy.context.counters.values[BAD_REQUESTS] == 1


async def test_a_token_that_has_expired_still_says_whose_request_was_refused(tmp_path: Path) -> None:
    expired = TOKENS.issue(CALLER, now=time.time() - 7200, token_id="t")
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        await proxy.raw(with_token(b"TRACE / HTTP/1.1\r\nHost: p\r\nTOKEN\r\n", expired))
        [event] = proxy.events()
        assert (event["status"], event["reason"], event["clientId"]) == (405, "unsupported", CLIENT_ID)


async def test_a_refused_head_counts_as_a_bad_request_and_as_nothing_else(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        before = list(proxy.context.counters.values)
        await proxy.raw(b"GET * HTTP/1.1\r\nHost: p\r\n\r\n")
        values = proxy.context.counters.values
        changed = {at for at, value in enumerate(before) if values[at] != value}
        assert BAD_REQUESTS in changed
        assert UNAUTHENTICATED not in changed


async def test_a_bad_request_behind_a_good_one_is_an_event_of_its_own(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        bad = with_token(line(b"GET http://evil/ HTTP/1.1"), proxy.token)
        response = await proxy.raw(proxy.request("/v1.0/good") + bad + proxy.request("/v1.0/never"))
        assert response.count(b"HTTP/1.1 ") == 2
        recorded = [(event["path"], event["status"]) for event in proxy.events()]
        assert recorded == [("/v1.0/good", 200), ("http://evil/", 400)]


async def test_a_head_that_comes_too_slowly_is_an_event(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, head_timeout=0.2) as proxy:
        raw = proxy.request("/v1.0/slow", fields=b"client-request-id: mine\r\nX: a")[:-2]
        assert error_of(await proxy.raw(raw))[0] == 408
        [event] = proxy.events()
        assert (event["path"], event["status"], event["reason"], event["clientRequestId"]) == (
            "/v1.0/slow",
            408,
            "requestTimeout",
            "mine",
        )


async def test_a_body_that_comes_too_slowly_is_an_event(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, body_grace=0.1, min_body_rate=100000) as proxy:
        raw = proxy.request("/v1.0/slow", "POST", b"Content-Length: 9\r\n")
        assert error_of(await response_to(proxy, raw))[0] == 408
        assert [(e["status"], e["reason"]) for e in proxy.events()] == [(408, "requestTimeout")]


async def leave(proxy: DataPath, raw: bytes, received: Callable[[], object]) -> None:
    _, writer = await proxy.connect()
    writer.write(raw)
    await until(received)
    writer.close()
    await until(lambda: not proxy.connections)


async def test_a_client_that_leaves_within_its_head_is_an_event_if_its_token_came(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:

        def arriving() -> bool:
            return any(each.state is State.HEAD for each in proxy.connections)

        await leave(proxy, proxy.request("/v1.0/left")[:-2], arriving)
        await leave(proxy, b"GET /v1.0/nobody HTTP/1.1\r\nHost: p\r\n", arriving)
        await leave(proxy, proxy.request("/v1.0/half")[:-40], arriving)
        assert [(e["path"], e["status"], e["reason"]) for e in proxy.events()] == [
            ("/v1.0/left", 499, "clientAborted")
        ]


async def test_a_head_that_arrives_while_the_proxy_stops_is_served(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        request = proxy.request("/v1.0/late")
        writer.write(request[:60])
        await until(lambda: any(each.state is State.HEAD for each in proxy.connections))
        proxy.context.draining = True
        for each in proxy.connections:
            each.drain()
        writer.write(request[60:])
        reply = await read_reply(reader)
        writer.close()
        assert (reply.status, reply.value("connection")) == (200, "close")
        assert [(e["path"], e["status"]) for e in proxy.events()] == [("/v1.0/late", 200)]


async def test_a_refusal_that_cannot_be_recorded_says_so_and_closes(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        spool = proxy.context.spool
        while spool._prepared:
            spool._prepared.popleft().release()
        spool._end, spool._spare = spool._offset, 0  # no byte is free,
        spool._max_bytes = 0  # and no segment can be prepared
        status, error = error_of(await proxy.raw(with_token(line(b"TRACE / HTTP/1.1"), proxy.token)))
        assert (status, error["error"]["code"]) == (503, "notReady")
        assert proxy.events() == []
        assert error_of(await proxy.raw(line(b"TRACE / HTTP/1.1").replace(b"TOKEN", b"")))[0] == 405


async def test_a_refused_head_request_has_no_body_in_its_response(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        response = await proxy.raw(with_token(line(b"HEAD http://evil/ HTTP/1.1"), proxy.token))
        assert response.startswith(b"HTTP/1.1 400 ")
        assert response.endswith(b"\r\n\r\n")
        assert len(proxy.events()) == 1
