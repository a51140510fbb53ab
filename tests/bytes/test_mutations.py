"""Test that no client bytes make the proxy fail, with thousands of mutated requests on uvloop.

`GRAPHWARD_MUTATIONS` sets the number of mutated requests, and `GRAPHWARD_MUTATIONS_SEED` sets the seed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
import uvloop

from tests.bytes.data_path import CLIENT_ID, CLIENT_SECRET, DataPath, data_path
from tests.bytes.h11_peer import H11Upstream, ReadRequest

MUTATIONS = int(os.environ.get("GRAPHWARD_MUTATIONS", "8000"))
SEED = int(os.environ.get("GRAPHWARD_MUTATIONS_SEED", "1"))
AT_ONCE = 64

RULES = r"""
version: 1
name: mutations
default: allow
rules:
  - {id: never, match: {path: ["/v1.0/blocked/**"]}, verdict: block}
  - id: hide
    match: {path: ["/v1.0/users", "/v1.0/users/{id}"]}
    conditions: [{query: $top, at_most: 100}, {header: Prefer, matches: "a+b?"}]
    verdict: filter
    transforms: {strip_properties: [hidden, manager.mail]}
  - {id: hide-too, match: {path: ["/v1.0/users/**"]}, verdict: filter, transforms: {allow_properties: [x]}}
  - id: by-body
    match: {path: ["/v1.0/invitations"], methods: [POST, PATCH]}
    conditions: [{body: user.kind, in: [guest, 1]}]
    verdict: block
  - id: responses
    when: response
    match: {path: ["/v1.0/groups/**"]}
    conditions: [{property: target, contains: secret}, {response_header: Content-Type, exists: true}]
    verdict: block
"""

DICTIONARY = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"%00",
    b"%2f",
    b"%2e%2e",
    b"%",
    b"%zz",
    b"%ff",
    b"\xff",
    b"\xc3\xa9",
    b"\xe2\x80\xa8",
    b"\x1b[31m",
    b"0",
    b"-1",
    b"99999999999999999999",
    b"1" * 5000,
    b"chunked",
    b"gzip",
    b"close",
    b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Expect: 100-continue\r\n",
    b"Host: a\r\n",
    b"Upgrade: h2c\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Content-Encoding: br\r\n",
    b"X-HTTP-Method-Override: DELETE\r\n",
    b"X-Forwarded-For: ::1%a\r\n",
    b"Range: bytes=0-1\r\n",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"/$batch",
    b"('",
    b"')",
    b"(",
    b")",
    b"@x",
    b"$filter=",
    b"$value",
    b"/microsoft.graph.user",
    b"root:",
    b":/",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b'"\\ud800"',
    b"\\u0000",
    b"null",
    b"NaN",
    b"1e999",
    b"[" * 2000,
    b'{"a":' * 500,
    b"&",
    b"=",
    b"?",
    b"#",
    b"+",
]


class GraphLike(H11Upstream):
    """A fake upstream that responds to a batch of requests with a batch of responses."""

    def body_for(self, request: ReadRequest) -> bytes:
        path = unquote_to_bytes(request.target.partition(b"?")[0]).lower()
        if request.method != b"POST" or path.strip(b"/").split(b"/")[-1] != b"$batch":
            return super().body_for(request)
        asked = json.loads(request.body)["requests"]
        return json.dumps(
            {"responses": [{"id": each["id"], "status": 200, "body": {}} for each in asked]}
        ).encode()


def seeds(proxy: DataPath) -> list[bytes]:
    def sized(body: bytes, *fields: bytes) -> bytes:
        return b"".join(each + b"\r\n" for each in (*fields, b"Content-Length: %d" % len(body)))

    guest = b'{"user":{"kind":"guest","age":1.50},"list":[1,"\\u00e9",null]}'
    parts = [
        {"id": "1", "method": "GET", "url": "/users/ada?$top=5", "headers": {"Prefer": "ab"}},
        {
            "id": "2",
            "method": "POST",
            "url": "/invitations",
            "body": {"user": {"kind": 1}},
            "dependsOn": ["1"],
        },
        {"id": "3", "method": "GET", "url": "/blocked/x"},
    ]
    batch = json.dumps({"requests": parts}).encode()
    form = f"grant_type=client_credentials&client_id={CLIENT_ID}&client_secret={CLIENT_SECRET}".encode()
    urlencoded = b"Content-Type: application/x-www-form-urlencoded"
    as_json = b"Content-Type: application/json"
    return [
        proxy.request(
            "/v1.0/users?$top=10&$select=id,name&$filter=startswith(name,'a')", fields=b"Prefer: aab\r\n"
        ),
        proxy.request("/v1.0/users('ada%40contoso.com')/manager?$expand=directReports($select=id)"),
        proxy.request(
            "/v1.0/groups/1/members/microsoft.graph.user/$count", fields=b"ConsistencyLevel: eventual\r\n"
        ),
        proxy.request("/v1.0/drives/1/root:/a%20b/c.txt:/content", "PUT", sized(b"hello"), b"hello"),
        proxy.request("/v1.0/invitations", "POST", sized(guest, as_json), guest),
        proxy.request(
            "/v1.0/invitations",
            "POST",
            b"Transfer-Encoding: chunked\r\n",
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(guest), guest),
        ),
        proxy.request(
            "/v1.0/$batch", "POST", sized(batch, as_json, b"Accept-Encoding: gzip, br, zstd"), batch
        ),
        proxy.request("/v1.0/users/ada", "HEAD", b"Connection: close, x\r\nX: y\r\nTE: trailers\r\n"),
        proxy.request(
            "/beta/me/messages", "PATCH", sized(b"{}", b"Expect: 100-continue", b"If-Match: *"), b"{}"
        ),
        b"POST /proxy/token HTTP/1.1\r\nHost: p\r\n" + sized(form, urlencoded) + b"\r\n" + form,
        b"POST /contoso/oauth2/v2.0/token HTTP/1.1\r\nHost: p\r\nAuthorization: Basic YTpi\r\n"
        + sized(form, urlencoded)
        + b"\r\n"
        + form,
        b"GET /contoso/v2.0/.well-known/openid-configuration HTTP/1.1\r\nHost: p:1\r\n\r\n",
        proxy.request("/v1.0/users") + proxy.request("/v1.0/blocked/1") + proxy.request("/v1.0/groups/2"),
        f"GET /v1.0/users HTTP/1.0\r\nAuthorization: Bearer {proxy.token}\r\n\r\n".encode(),
    ]


def mutated(chance: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(data) + 1)
        size = chance.choice((1, 1, 2, 8, 40))
        match chance.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                data[at:at] = chance.randbytes(size)
            case 2:
                del data[at : at + size]
            case 3:
                data[at:at] = data[at : at + size] * chance.choice((1, 2, 50))
            case 4:
                other = chance.choice(seeds)
                data[at:] = other[chance.randrange(len(other)) :]
            case 5:
                data[at : at + size] = chance.choice(DICTIONARY)
            case _:
                data[at:at] = chance.choice(DICTIONARY)
    return bytes(data)


@pytest.mark.timeout(0)
def test_no_mutated_request_makes_the_proxy_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_send_mutations(tmp_path))
    failures = [each for each in caplog.records if each.levelno >= logging.ERROR or each.exc_info]
    assert failures == []
    assert not any("\n" in each.getMessage() or "\x1b" in each.getMessage() for each in caplog.records)


async def _send_mutations(directory: Path) -> None:
    upstream = GraphLike()
    chance = random.Random(SEED)
    async with data_path(upstream.script, directory, RULES, max_connections=32) as proxy:
        own = seeds(proxy)
        left = MUTATIONS
        while left > 0:
            sent = [mutated(chance, own) for _ in range(min(left, AT_ONCE))]
            left -= len(sent)
            for data, response in zip(
                sent, await asyncio.gather(*(_sent(proxy, each) for each in sent)), strict=True
            ):
                assert b"HTTP/1.1 5" not in response, (data, response)
            upstream.requests.clear()
            assert upstream.refused == []
            if proxy.context.spool.needs_maintenance:
                proxy.context.spool.maintain()  # the worker does this about once a second
        reply = await proxy.ask(proxy.request("/v1.0/stranger"))
        assert reply.json() == {"target": "/v1.0/stranger"}
        while proxy.context.connections:
            for each in list(proxy.context.connections):
                each.drain()
            await asyncio.sleep(0.001)
        assert not proxy.context.pool._waiting
        assert not proxy.credential.waiting
        assert proxy.context.verifying == 0


async def _sent(proxy: DataPath, data: bytes) -> bytes:
    """Send an incomplete request, and return all that the proxy sends until the connection is silent."""
    reader, writer = await proxy.connect()
    response = b""
    try:
        writer.write(data)
        while piece := await asyncio.wait_for(reader.read(1 << 16), 0.02):
            response += piece
    except (TimeoutError, ConnectionError):
        pass
    writer.close()
    return response
