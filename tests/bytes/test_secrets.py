"""Tests that secrets never reach a log, event or error, and that input cannot forge log lines.

The test sends every kind of request, keeps every byte and log line, and then searches them for secrets.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from proxy.wire.log_line import LineFormatter
from tests.bytes.data_path import (
    CLIENT_ID,
    CLIENT_SECRET,
    TOKEN_KEY,
    UPSTREAM_TOKEN,
    DataPath,
    Reply,
    UpstreamPeer,
    data_path,
    ok,
    read_reply,
    responding,
)

RULES = """
version: 1
name: secrets
default: allow
rules:
  - {id: never, match: {path: ["/v1.0/blocked/**"]}, verdict: block}
  - {id: hide, match: {path: ["/v1.0/users/**"]}, verdict: filter, transforms: {strip_properties: [phone]}}
"""

BODY_SECRET = "b0dy-of-the-application"
RESPONSE_SECRET = "answ3r-of-the-upstream"
SECOND_TOKEN = "second-upstream-token-after-the-first-was-refused"


async def upstream(peer: UpstreamPeer) -> None:
    """Start an upstream whose path selects the response: normal, refused, broken, missing, or an echo."""
    while True:
        head = await peer.head()
        target = head.split(b" ")[1]
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length: "):
                await peer.body(int(line[16:]))
        if b"/refused" in target and SECOND_TOKEN.encode() not in head:
            peer.send(b'HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="x"\r\nContent-Length: 0\r\n\r\n')
        elif b"/status" in target:
            response = ok(b'{"error":"%b"}' % RESPONSE_SECRET.encode())
            peer.send(response.replace(b"200 OK", target.rpartition(b"/")[2] + b" X"))
        elif b"/garbage" in target:
            peer.send(b"HTTP/1.1 200 OK\r\nX: \x00%b\r\n\r\n" % RESPONSE_SECRET.encode())
        elif b"/broken" in target:
            peer.send(ok(b'{"phone":"%b"' % RESPONSE_SECRET.encode()))
        elif b"/cut" in target:
            peer.abort()
        elif b"/silent" in target:
            await peer.reader.read()
        else:
            peer.send(ok(b'{"id":"1","phone":"%b"}' % RESPONSE_SECRET.encode()))


async def run(proxy: DataPath) -> list[Reply]:
    """Send a request of each kind through the proxy."""
    replies: list[Reply] = []
    json_body = json.dumps({"password": BODY_SECRET}).encode()
    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(json_body)
    for target in (
        "/v1.0/users/1",
        "/v1.0/blocked/x",
        "/v1.0/%00",
        "/v1.0/users/refused",
        "/v1.0/garbage",
        "/v1.0/users/broken",
        "/v1.0/cut",
        "/v1.0/silent",
        "/v1.0/$batch",
        "/v1.0/groups",
        *(f"/v1.0/status/{each}" for each in (400, 403, 404, 429, 500, 503)),
    ):
        for method, more, body in (
            ("GET", b"", b""),
            ("POST", fields, json_body),
            ("PATCH", fields, json_body),
        ):
            replies.append(await proxy.ask(proxy.request(target, method, more, body)))
            if target == "/v1.0/users/refused" and not proxy.credential.generation == 2:
                raise AssertionError("the first of them renews the token")
    part: dict[str, Any] = {"id": "1", "method": "GET", "url": "/groups/1"}
    for headers in (
        {"Authorization": f"Bearer {proxy.token}"},
        {"a": "b", "authorization": proxy.token, "c": "d"},
        {"AUTHORIZATION": proxy.token, "c": "d"},
        {"a": "b", "Authorization": proxy.token},
    ):
        batch = json.dumps({"requests": [{**part, "headers": headers}]}).encode()
        sized = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(batch)
        replies.append(await proxy.ask(proxy.request("/v1.0/$batch", "POST", sized, batch)))
    form = (
        f"grant_type=client_credentials&client_id={CLIENT_ID}&client_secret={quote(CLIENT_SECRET)}".encode()
    )
    urlencoded = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n"
    for body in (form, form + b"wrong", form.replace(b"client-1", b"client-2"), b"x" + form):
        head = b"POST /proxy/token HTTP/1.1\r\nHost: p\r\n" + urlencoded % len(body)
        replies += [await proxy.ask(head + body)]
    token = proxy.token.encode()
    for line in (
        b"Authorization: Bearer " + token + b"x",
        b"Authorization: Basic " + base64.b64encode(token),
        b"X: " + token + b"\x00",
        b"Authorization: Bearer " + token + b"\r\nAuthorization: Bearer " + token,
        b"Connection: authorization",
        b"Authorization: " + token,
    ):
        replies += [await proxy.ask(b"GET /v1.0/users HTTP/1.1\r\nHost: p\r\n" + line + b"\r\n\r\n")]
    for query in (
        "access_token=",
        "client_secret=",
        "code=",
        "sig=",
        "a=b&refresh_token=",
        "api_key=",
        "Password=",
    ):
        replies += [await proxy.ask(proxy.request(f"/v1.0/groups?{query}{BODY_SECRET}&x=1"))]
    return replies


def test_of_course_the_secrets_differ() -> None:
    assert len({UPSTREAM_TOKEN, SECOND_TOKEN, BODY_SECRET, RESPONSE_SECRET, CLIENT_SECRET}) == 5


async def test_neither_credential_crosses_and_no_secret_is_written_anywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with data_path(upstream, tmp_path, RULES, response_timeout=1.0) as proxy:
        renewing = asyncio.ensure_future(_renew(proxy))
        replies = await run(proxy)
        await renewing
        received = b"".join(bytes(each) for each in proxy.upstream.received)
        responded = b"".join(each.head + each.body for each in replies)
        written = _written(tmp_path)
        logged = "\n".join(_logged(caplog)).encode()
        issued = [each.json()["access_token"].encode() for each in replies if b"access_token" in each.body]
        assert len(replies) > 60
        assert len(issued) == 1
        assert len({each.status for each in replies}) >= 9
    tokens = [proxy.token.encode(), *issued]
    for token in tokens:
        signature = token.rpartition(b".")[2]
        for place in (received, written, logged):
            assert signature not in place
    assert tokens[0] not in responded
    for token in (UPSTREAM_TOKEN.encode(), SECOND_TOKEN.encode()):
        assert token in received
        for place in (responded, written, logged):
            assert token not in place
    for secret in (CLIENT_SECRET.encode(), quote(CLIENT_SECRET).encode(), TOKEN_KEY):
        for place in (received, responded, written, logged):
            assert secret not in place
    for secret in (BODY_SECRET.encode(), RESPONSE_SECRET.encode()):
        for place in (written, logged):
            assert secret not in place


def _written(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


async def _renew(proxy: DataPath) -> None:
    while not proxy.asked_for_credential:  # noqa: ASYNC110 - the harness has no event for it
        await asyncio.sleep(0.001)
    proxy.credential.renew(SECOND_TOKEN, asyncio.get_running_loop().time() + 3600, 2)


def _logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    formatters = (LineFormatter("text", "test"), LineFormatter("json", "test"))
    return [formatter.format(record) for record in caplog.records for formatter in formatters]


FORGERIES = [
    "a%0d%0a2026-11-21T00:00:00Z%20INFO%20forged",
    "%1b[31mred",
    "%e2%80%a8",
    "%c2%85",
    "%00",
    "%0a",
    '"}{"',
    "\\n",
    "%ff",
    "%c0%8a",
    "%ef%bb%bf",
    "a" * 50_000,
    "%41" * 17_000,
    "%E2%80%AE",
    "<script>",
    "%250a",
    "'; DROP TABLE events; --".replace(" ", "%20"),
]


@pytest.mark.parametrize("text", FORGERIES, ids=[f"{at}" for at in range(len(FORGERIES))])
async def test_neither_logs_nor_events_can_be_forged(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with data_path(responding(ok(b"{}")), tmp_path, RULES, max_header_bytes=200_000) as proxy:
        names = ("client-request-id", "User-Agent", "X-Forwarded-For")
        fields = "".join(f"{name}: {text[:3000]}\r\n" for name in names)
        asked = 0
        for target in (f"/v1.0/users/{text}", f"/v1.0/users?x={text}", f"/v1.0/blocked/{text}"):
            for more in (fields.encode(), fields.encode() + b"X: \xff\xe2\x80\xa8\r\n"):
                reply = await proxy.ask(proxy.request(target, fields=more))
                asked += 1
                assert reply.status in (200, 400, 403)
                assert b"\x1b" not in reply.head + reply.body
        await proxy.ask(
            f"GET /v1.0/x HTTP/1.1\r\nHost: p\r\nclient-request-id: {text[:100]}\r\n\r\n".encode()
        )
        events = proxy.events()
    assert len(events) == asked
    for event in events:
        line = json.dumps(event, ensure_ascii=False)
        assert len(line.splitlines()) == 1
        assert len(line) < 20_000
        assert event["clientIp"] == "127.0.0.1"
    for line in _logged(caplog):
        assert len(line.splitlines()) == 1
        assert line.isprintable()


@pytest.mark.parametrize("forwarded", [b"10.0.0.1%\x1b[31m", b"::1%a b", b"fe80::1%\x85", b"fe80::1%eth0"])
async def test_an_address_with_a_zone_brings_no_text_into_the_event(tmp_path: Path, forwarded: bytes) -> None:
    import ipaddress

    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        proxy.context.trusted_proxies = (ipaddress.ip_network("127.0.0.0/8"),)
        reader, writer = await proxy.connect()
        writer.write(proxy.request(fields=b"X-Forwarded-For: " + forwarded + b"\r\n"))
        await read_reply(reader)
        writer.close()
        for event in proxy.events():
            assert "%" not in event["clientIp"]
            ipaddress.ip_address(event["clientIp"])


# One correct event per request


async def test_each_event_says_what_the_client_saw(tmp_path: Path) -> None:
    async with data_path(upstream, tmp_path, RULES, response_timeout=1.0) as proxy:
        renewing = asyncio.ensure_future(_renew(proxy))
        seen = []
        for number, (target, rule) in enumerate(
            (
                ("/v1.0/users/1", "hide"),
                ("/v1.0/blocked/x", "never"),
                ("/v1.0/groups", "default"),
                ("/v1.0/%00", None),
                ("/v1.0/users/refused", "hide"),
                ("/v1.0/garbage", "default"),
                ("/v1.0/users/broken", "hide"),
                ("/v1.0/cut", "default"),
                ("/v1.0/silent", "default"),
                ("/v1.0/status/404", "default"),
                ("/v1.0/status/429", "default"),
                ("/v1.0/status/500", "default"),
                ("/v1.0/status/503", "default"),
                ("/proxy/token", None),
            )
        ):
            mark = f"c-{number}"
            reply = await proxy.ask(proxy.request(target, "GET", f"client-request-id: {mark}\r\n".encode()))
            seen.append((mark, reply.status, target, rule, len(reply.body)))
        await renewing
        events = {each["clientRequestId"]: each for each in proxy.events()}
        assert len(events) == len(seen) == len(proxy.events())
        for mark, status, target, rule, size in seen:
            event = events[mark]
            assert (event["status"], event["path"], event["ruleId"]) == (status, target, rule)
            assert (event["orgId"], event["clientId"], event["method"]) == ("org-1", CLIENT_ID, "GET")
            assert event["responseBytes"] == size
            assert (
                event["verdict"]
                == {"never": "block", "hide": "filter", "default": "allow", None: "block"}[rule]
            )


# Secrets in no other place


ELSEWHERE = [
    {"line": "GET http://ELSE/v1.0/users HTTP/1.1"},
    {"line": "GET //ELSE/v1.0/users HTTP/1.1"},
    {"line": "GET /\\ELSE/v1.0/users HTTP/1.1"},
    {"line": "GET @ELSE/v1.0/users HTTP/1.1"},
    {"line": "CONNECT ELSE HTTP/1.1"},
    {"line": "GET /v1.0/users?$skiptoken=http://ELSE/ HTTP/1.1"},
    {"line": "GET /http://ELSE/v1.0/users HTTP/1.1"},
    {"host": "ELSE"},
    *(
        {"field": f"{name}: ELSE"}
        for name in (
            "X-Forwarded-Host",
            "Forwarded",
            "X-Host",
            "X-Original-URL",
            "X-Rewrite-URL",
            "X-Forwarded-Server",
            "X-Real-IP",
            "Referer",
            "Origin",
            "Location",
            "Via",
            "X-Forwarded-For",
            "Destination",
            "X-Forwarded-Port",
        )
    ),
]


@pytest.mark.parametrize("changes", ELSEWHERE, ids=[f"{at}" for at in range(len(ELSEWHERE))])
async def test_nobody_but_the_configured_upstream_is_ever_connected_to(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    visitors = 0

    def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visitors
        visitors += 1
        writer.close()

    other = await asyncio.start_server(visited, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    response = ok(
        b'{"@odata.nextLink":"http://127.0.0.1:%d/v1.0/users?$skip=1"}' % port,
        b"Location: http://127.0.0.1:%d/v1.0/x" % port,
    )
    async with data_path(responding(response), tmp_path) as proxy:
        asked = {"line": "GET /v1.0/users HTTP/1.1", "host": "p", "field": "X: y", **changes}
        lines = (
            asked["line"],
            f"Host: {asked['host']}",
            f"Authorization: Bearer {proxy.token}",
            asked["field"],
        )
        reply = await proxy.ask("\r\n".join((*lines, "", "")).replace("ELSE", f"127.0.0.1:{port}").encode())
        assert reply.status in (200, 400, 405)
        for head in proxy.upstream.heads:
            assert b"\r\nHost: 127.0.0.1:%d\r\n" % proxy.upstream.port in head
    assert visitors == 0
    other.close()
