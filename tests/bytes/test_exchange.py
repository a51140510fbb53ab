"""Tests of the proxy's behaviour towards clients, against a scripted upstream."""

import asyncio
import base64
import gc
import gzip
import json
import ssl
import zlib
from pathlib import Path

import pytest

from proxy.ipc.counters import UNAUTHENTICATED, UPSTREAM_ERRORS, VERDICTS
from proxy.server.exchange.exchange import Exchange
from proxy.server.exchange.owner import ResponseBody
from tests.bytes.data_path import (
    CLIENT_ID,
    ORG_ID,
    UPSTREAM_TOKEN,
    UpstreamPeer,
    data_path,
    ok,
    read_chunks,
    read_reply,
    responding,
)

RULES = """
version: 1
name: test
default: block
rules:
  - id: no-mail
    match: {path: ["/v1.0/users/{id}/messages/**"]}
    verdict: block
  - id: three-properties
    match: {path: ["/v1.0/users", "/v1.0/users/{id}"], methods: [GET, HEAD]}
    verdict: filter
    transforms: {strip_properties: [mobilePhone, manager.mail]}
  - id: groups
    match: {path: ["/v1.0/groups/**"]}
    verdict: allow
  - id: by-body
    match: {path: ["/v1.0/invitations"], methods: [POST]}
    conditions: [{body: kind, equals: guest}]
    verdict: allow
  - id: secret-answers
    when: response
    match: {path: ["/v1.0/groups/{id}/secret"]}
    conditions: [{property: visibility, equals: Private}]
    verdict: block
"""


# Pass-through without changes


async def test_method_target_header_names_order_and_body_reach_the_upstream_unchanged(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        fields = (
            b"Accept: application/json\r\nX-lower: a\r\nx-UPPER:   b\r\nPrefer: odata.maxpagesize=2\r\n"
            b"Content-Length: 4\r\nContent-Type: text/plain\r\n"
        )
        target = "/v1.0/users/a@b.c/x:/y/(z='1%20')?$filter=a%20eq%20'b'&$top=5"
        reply = await proxy.ask(proxy.request(target, "PATCH", fields, b"\x00\xff\r\n"))
        assert reply.status == 200
        assert bytes(proxy.upstream.received[0]) == (
            b"PATCH " + target.encode() + b" HTTP/1.1\r\n"
            b"Host: 127.0.0.1:%d\r\nAuthorization: Bearer %b\r\n"
            b"Accept: application/json\r\nX-lower: a\r\nx-UPPER: b\r\nPrefer: odata.maxpagesize=2\r\n"
            b"Content-Length: 4\r\nContent-Type: text/plain\r\n\r\n\x00\xff\r\n"
            % (proxy.upstream.port, UPSTREAM_TOKEN.encode())
        )


async def test_the_response_arrives_byte_for_byte(tmp_path: Path) -> None:
    body = b'{"n": 1.0E+400, "n":123456789012345678901234567890 ,"e":"\\u00e9\\/"}\n'
    response = (
        b"HTTP/1.1 200 Fine Thanks\r\nrequest-ID: r-1\r\nX-b: 2\r\nx-A: 1\r\nX-b: 3\r\n"
        b'Content-Type: application/json\r\nContent-Length: %d\r\nETag: W/"1"\r\n\r\n%b' % (len(body), body)
    )
    async with data_path(responding(response), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert reply.head + reply.body == response
        assert proxy.events()[0]["upstreamRequestId"] == "r-1"


async def test_hop_by_hop_and_nominated_fields_cross_in_neither_direction(tmp_path: Path) -> None:
    response = (
        b"HTTP/1.1 200 OK\r\nConnection: X-Hop, keep-alive\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n"
        b"Proxy-Authenticate: Basic\r\nUpgrade: h2c\r\nX-End: 2\r\nContent-Length: 0\r\n\r\n"
    )
    async with data_path(responding(response), tmp_path) as proxy:
        fields = (
            b"Connection: close, X-Mine, authorization, content-length\r\nX-Mine: 1\r\nTE: trailers\r\n"
            b"Proxy-Authorization: Basic x\r\nKeep-Alive: 5\r\nUpgrade: websocket\r\nX-Kept: 1\r\n"
        )
        reply = await proxy.ask(proxy.request(fields=fields))
        received = bytes(proxy.upstream.received[0]).lower()
        for name in (b"x-mine", b"te:", b"proxy-authorization", b"keep-alive", b"upgrade", b"connection"):
            assert name not in received
        assert b"x-kept: 1" in received
        assert f"authorization: bearer {UPSTREAM_TOKEN}".encode() in received
        for gone in ("x-hop", "proxy-authenticate", "upgrade", "keep-alive"):
            assert reply.value(gone) is None
        assert reply.value("x-end") == "2"


async def test_an_expectation_of_http_1_0_means_nothing_and_goes_no_further(tmp_path: Path) -> None:
    """The header `Expect` has no meaning in HTTP/1.0 (RFC 9110 §10.1.1)."""

    async def script(peer: UpstreamPeer) -> None:
        assert b"expect" not in (await peer.head()).lower()
        assert await peer.body(2) == b"{}"
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path) as proxy:
        fields = b"Content-Length: 2\r\nExpect: 100-continue\r\n"
        request = proxy.request("/v1.0/a", "POST", fields, b"{}").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        assert (await proxy.raw(request)).startswith(b"HTTP/1.1 200 ")


async def test_no_verdict_rests_on_a_field_that_connection_keeps_from_the_upstream(tmp_path: Path) -> None:
    rules = """
    version: 1
    name: careful
    default: allow
    rules:
      - id: no-blind-change
        match: {methods: [PATCH], path: ["/v1.0/users/*"]}
        conditions: [{header: If-Match, exists: false}]
        verdict: block
      - id: small
        match: {methods: [PUT], path: ["/v1.0/users/*"]}
        conditions: [{header: Content-Length, at_least: 5}]
        verdict: block
      - id: no-mail
        match: {methods: [POST], path: ["/v1.0/users"]}
        conditions: [{body: mail, exists: true}]
        verdict: block
    """
    hidden = gzip.compress(b"{}")
    async with data_path(responding(ok(b"{}")), tmp_path, rules) as proxy:
        body = b"Content-Length: 2\r\nIf-Match: *\r\n"
        assert (await proxy.ask(proxy.request("/v1.0/users/a", "PATCH", body, b"{}"))).status == 200
        for nominating in (b"Connection: if-match\r\n", b"Connection: close\r\nConnection: IF-MATCH\r\n"):
            reply = await proxy.ask(proxy.request("/v1.0/users/a", "PATCH", body + nominating, b"{}"))
            assert reply.status == 403
        # Connection cannot hide fields that are sent upstream in any case, so they are evaluated too.
        body = b"Content-Length: 6\r\nConnection: content-length\r\n"
        assert (await proxy.ask(proxy.request("/v1.0/users/a", "PUT", body, b'{"":1}'))).status == 403
        # Without its content coding, the body is not JSON for any reader.
        body = b"Content-Encoding: gzip\r\nConnection: content-encoding\r\nContent-Length: %d\r\n" % len(
            hidden
        )
        assert (await proxy.ask(proxy.request("/v1.0/users", "POST", body, hidden))).status == 400
        assert len(proxy.upstream.heads) == 1


async def test_no_verdict_rests_on_a_field_of_one_connection(tmp_path: Path) -> None:
    rules = """
    version: 1
    name: careful
    default: block
    rules:
      - id: with-it
        match: {path: ["/v1.0/users"]}
        conditions: [{header: Proxy-Authorization, exists: true}]
        verdict: allow
      - id: or-that
        match: {path: ["/v1.0/users"]}
        conditions: [{header: TE, exists: true}]
        verdict: allow
    """
    async with data_path(responding(ok(b"{}")), tmp_path, rules) as proxy:
        fields = b"Proxy-Authorization: Basic eDp5\r\nTE: trailers\r\n"
        assert (await proxy.ask(proxy.request(fields=fields))).status == 403


async def test_nothing_is_added_that_the_application_did_not_send(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        await proxy.ask(proxy.request())
        names = [line.split(b":")[0] for line in proxy.upstream.heads[0].split(b"\r\n")[1:-2]]
        assert names == [b"Host", b"Authorization"]


async def test_codings_that_the_proxy_cannot_decode_are_not_asked_for(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        await proxy.ask(proxy.request(fields=b"Accept-Encoding: gzip, zstd, br;q=0.5\r\n"))
        assert b"Accept-Encoding: gzip, br;q=0.5\r\n" in proxy.upstream.heads[0]


async def test_where_nobody_reads_a_response_any_coding_may_be_asked_for(tmp_path: Path) -> None:
    fields = b"Accept-Encoding: zstd,gzip;q=0.5\r\n"
    async with data_path(responding(ok(b"{}")), tmp_path, RULES, rewrite_links=False) as proxy:
        for target in ("/v1.0/groups/1", "/v1.0/users/1", "/v1.0/groups/1"):
            await proxy.ask(proxy.request(target, fields=fields))
        asked = [b"zstd" in head for head in proxy.upstream.heads]
        assert asked == [True, False, True]


# Authentication of callers


@pytest.mark.parametrize(
    "authorization",
    [b"", b"Authorization: Bearer x.y.z\r\n", b"Authorization: Basic abc\r\n", b"Authorization: Bearer\r\n"],
)
async def test_a_request_without_a_valid_token_gets_401_and_goes_nowhere(
    tmp_path: Path, authorization: bytes
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await proxy.ask(b"GET /v1.0/users HTTP/1.1\r\nHost: p\r\n" + authorization + b"\r\n")
        assert reply.status == 401
        assert reply.json()["error"]["code"] == "InvalidAuthenticationToken"
        challenge = reply.value("www-authenticate") or ""
        assert challenge.startswith('Bearer realm="", error="insufficient_claims", claims="')
        claims = json.loads(base64.b64decode(challenge.split('claims="')[1].rstrip('"')))
        assert claims["access_token"]["nbf"]["essential"] is True
        assert proxy.upstream.received == []


async def test_the_upstream_never_sees_the_proxy_token_nor_the_application_the_upstream_s(
    tmp_path: Path,
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert proxy.token.encode() not in bytes(proxy.upstream.received[0])
        assert UPSTREAM_TOKEN.encode() not in reply.head + reply.body


# Verdicts of rules


async def test_a_blocked_request_gets_403_that_names_the_rule_and_never_reaches_the_upstream(
    tmp_path: Path,
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reply = await proxy.ask(
            proxy.request("/v1.0/users/ada/messages/1", fields=b"client-request-id: c-1\r\n")
        )
        assert reply.status == 403
        error = reply.json()["error"]
        assert error["code"] == "policyBlocked"
        assert error["ruleId"] == "no-mail"
        assert error["message"] == "Graphward blocked this request by rule 'no-mail'."
        assert error["innerError"]["client-request-id"] == reply.value("client-request-id") == "c-1"
        assert error["innerError"]["request-id"] == reply.value("request-id")
        assert proxy.upstream.received == []
        (event,) = proxy.events()
        assert event["requestId"] == error["innerError"]["request-id"]
        assert (event["status"], event["verdict"], event["ruleId"], event["reason"]) == (
            403,
            "block",
            "no-mail",
            "rule",
        )
        assert (event["orgId"], event["clientId"], event["rulesetVersion"]) == (ORG_ID, CLIENT_ID, 7)


async def test_a_403_says_whom_to_ask_and_other_own_errors_that_graphward_made_them(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{")), tmp_path, RULES) as proxy:
        proxy.context.contact = "graph-admins@contoso.com"
        blocked = await proxy.ask(proxy.request("/v1.0/sites"))
        assert blocked.json()["error"]["message"] == (
            "Graphward blocked this request: no rule allows it (default). Ask: graph-admins@contoso.com"
        )
        failed = await proxy.ask(proxy.request("/v1.0/users/ada"))
        assert failed.status == 502
        assert failed.json()["error"]["message"].startswith("Graphward: ")
        assert [each["id"] for each in proxy.events()] == [
            blocked.value("request-id"),
            failed.value("request-id"),
        ]


@pytest.mark.parametrize(
    "own", [b"a\x1bb", b"\xff", b"x" * 257, b""], ids=["control", "other", "long", "empty"]
)
async def test_no_response_repeats_an_odd_client_request_id(tmp_path: Path, own: bytes) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reply = await proxy.ask(
            proxy.request("/v1.0/users/ada/messages/1", fields=b"client-request-id: " + own + b"\r\n")
        )
        assert reply.status in (400, 403)
        assert reply.value("request-id")
        assert reply.value("client-request-id") is None
        assert b"xxxx" not in reply.body


async def test_a_response_of_the_upstream_keeps_its_own_request_id(tmp_path: Path) -> None:
    own = ok(b"{}", b"request-id: of-graph")
    async with data_path(responding(own), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users/ada", fields=b"client-request-id: c-1\r\n"))
        assert reply.value("request-id") == "of-graph"
        assert reply.value("client-request-id") is None


async def test_where_no_rule_matches_the_default_decides(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/sites"))
        assert reply.status == 403
        assert reply.json()["error"]["ruleId"] == "default"


async def test_a_filter_takes_properties_out_of_the_response(tmp_path: Path) -> None:
    body = b'{"value":[{"id":"1","mobilePhone":"+1","manager":{"mail":"m","id":2.50}},{"id":"2"}]}'
    async with data_path(responding(ok(body)), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request())
        assert reply.body == b'{"value":[{"id":"1","manager":{"id":2.50}},{"id":"2"}]}'
        (event,) = proxy.events()
        assert event["verdict"] == "filter"
        assert event["transforms"] == ["strip:mobilePhone", "strip:manager.mail"]
        assert event["responseBytes"] == len(reply.body)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_compressed_response_is_decoded_and_filtered(tmp_path: Path, coding: str) -> None:
    body = b'{"id":"1","mobilePhone":"+1"}'
    packed = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    response = ok(packed, b"Content-Encoding: " + coding.encode())
    async with data_path(responding(response), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users/1"))
        assert reply.body == b'{"id":"1"}'
        assert reply.value("content-encoding") is None


@pytest.mark.parametrize(
    "response",
    [
        ok(b'{"mobilePhone":"+1"'),
        ok(b'{"mobilePhone":NaN}'),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-7\r\nContent-Length: 25\r\n\r\n"
            b'{"+AG0-obilePhone":"+1" }'
        ),
        ok(b'{"mobilePhone":"+1"}', b"Content-Encoding: zstd"),
        ok(b'{"mobilePhone":"+1"}', b"Content-Encoding: gzip"),
        ok(gzip.compress(b'{"a":"' + b"+" * 4_000_000 + b'"}', mtime=0), b"Content-Encoding: gzip"),
        ok(b'{"mobilePhone":"' + b"1" * 2_000_000 + b'"}'),
        b'HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 20\r\n\r\n{"mobilePhone":"+1"}',
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b'{"mobilePhone":"+1"}',
        (
            b"HTTP/1.1 206 Partial\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
            b'{"mobilePhone":"+1"}'
        ),
    ],
)
async def test_a_response_that_cannot_be_filtered_is_never_passed(tmp_path: Path, response: bytes) -> None:
    async with data_path(responding(response), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users/1"))
        assert reply.status == 502
        assert reply.json()["error"]["code"] == "filterFailed"
        assert b"+1" not in reply.body
        (event,) = proxy.events()
        assert (event["status"], event["reason"], event["upstreamStatus"]) == (
            502,
            "filterFailed",
            int(response.split(b" ")[1]),
        )


@pytest.mark.parametrize(
    ("method", "target", "status", "report"),
    [
        ("HEAD", "/v1.0/users/1", b"200 OK", False),
        ("GET", "/v1.0/users/1", b"304 Not Modified", False),
        ("HEAD", "/v1.0/users/1", b"304 Not Modified", False),
        ("HEAD", "/v1.0/users/1", b"404 Not Found", True),  # never filtered
        ("HEAD", "/v1.0/groups/1", b"200 OK", True),
        ("HEAD", "/v1.0/groups/1/secret", b"200 OK", False),  # a rule reads its body
        ("GET", "/v1.0/groups/1/secret", b"304 Not Modified", False),
        ("GET", "/v1.0/groups/1", b"304 Not Modified", True),
    ],
)
async def test_without_the_body_its_head_tells_nothing_of_what_a_filter_would_take_out(
    tmp_path: Path, method: str, target: str, status: bytes, report: bool
) -> None:
    """The length and digest of the unfiltered body would reveal the removed content, or confirm a guess."""
    fields = b'Content-Length: 20\r\nContent-MD5: Q2hlY2sgSW50ZWdyaXR5IQ==\r\nETag: W/"1"\r\n'
    response = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n%b\r\n" % (status, fields)
    async with data_path(responding(response), tmp_path, RULES) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request(target, method))
        reply = await read_reply(reader, to_head=True)
        assert (reply.head == response) is report
        for name in ("content-length", "content-md5"):
            assert (reply.value(name) is not None) is report
        assert reply.value("etag") == 'W/"1"'
        writer.close()


@pytest.mark.parametrize(
    ("target", "asked"),
    [("/v1.0/users/1", False), ("/v1.0/groups/1/secret", False), ("/v1.0/groups/1", True)],
)
async def test_the_upstream_is_asked_for_the_whole_of_what_rules_filter_or_evaluate(
    tmp_path: Path, target: str, asked: bool
) -> None:
    """Rules cannot evaluate a byte range, and the range reveals the body's length (RFC 9110 §14.4)."""
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        fields = b'Range: bytes=5-9\r\nIf-Range: "1"\r\n'
        for _ in range(2):  # the second time, the meaning of the head is remembered
            assert (await proxy.ask(proxy.request(target, "GET", fields))).status == 200
        for head in proxy.upstream.heads:
            assert (b"\r\nRange: bytes=5-9\r\nIf-Range:" in head) is asked


async def test_a_part_of_a_response_is_not_evaluated_as_if_it_were_the_whole(tmp_path: Path) -> None:
    response = b"HTTP/1.1 206 Partial\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    async with data_path(responding(response), tmp_path, RULES) as proxy:
        assert (await proxy.ask(proxy.request("/v1.0/groups/1/secret"))).status == 502
        assert (await proxy.ask(proxy.request("/v1.0/groups/1"))).status == 206


async def test_a_body_that_says_it_is_not_utf8_is_none_that_rules_read(tmp_path: Path) -> None:
    """The bytes `+AGE-` mean the letter `a` in UTF-7, but five separate characters in UTF-8."""
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        body = b'{"kind":"guest"}'
        for target, statuses in (("/v1.0/invitations", (200, 400)), ("/v1.0/$batch", (400, 400))):
            for charset, status in zip((b"utf-8", b"utf-7"), statuses, strict=True):
                fields = b"Content-Type: application/json; charset=%b\r\nContent-Length: %d\r\n"
                asked = proxy.request(target, "POST", fields % (charset, len(body)), body)
                assert (await proxy.ask(asked)).status == status
        assert len(proxy.upstream.received) == 1
        assert {event["reason"] for event in proxy.events() if event["status"] == 400} == {
            "malformedRequest",
            "malformedBatch",
        }


async def test_a_part_s_body_in_base64_is_evaluated_by_what_it_is_decoded(tmp_path: Path) -> None:
    async with data_path(responding(ok(b'{"responses":[]}')), tmp_path, RULES) as proxy:
        fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n"
        for text, status in (
            (b"caf\xe9\x80\x80", 400),
            (b"cafe", 502),
        ):  # 502, because the request was sent and got no response
            headers = {"Content-Type": "text/plain; charset=iso-8859-1"}
            in_base64 = base64.b64encode(text).decode()
            part = {"id": "1", "method": "POST", "url": "/groups/1", "headers": headers, "body": in_base64}
            body = json.dumps({"requests": [part]}).encode()
            reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields % len(body), body))
            assert reply.json()["responses"][0]["status"] == status


async def test_a_condition_on_the_body_evaluates_before_the_upstream_sees_anything(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        good, bad = b'{"kind":"guest"}', b'{"kind":"member"}'
        fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n"
        refused = await proxy.ask(proxy.request("/v1.0/invitations", "POST", fields % len(bad), bad))
        assert refused.status == 403
        assert proxy.upstream.received == []
        request = proxy.request("/v1.0/invitations", "POST", fields % len(good))
        allowed = await proxy.ask(request, good[:5], good[5:])
        assert allowed.status == 200
        assert bytes(proxy.upstream.received[0]).endswith(b"\r\n\r\n" + good)


async def test_a_body_too_large_to_evaluate_gets_413(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES, max_buffered_body=10) as proxy:
        reply = await proxy.ask(
            proxy.request("/v1.0/invitations", "POST", b"Content-Length: 11\r\n", b"x" * 11)
        )
        assert reply.status == 413
        assert reply.json()["error"]["code"] == "payloadTooLarge"
        assert proxy.upstream.received == []


async def test_a_response_rule_replaces_the_response(tmp_path: Path) -> None:
    body = b'{"visibility":"Private","members":["ada"]}'
    async with data_path(responding(ok(body), ok(b'{"visibility":"Public"}')), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/groups/1/secret"))
        assert reply.status == 403
        assert reply.json()["error"]["ruleId"] == "secret-answers"
        assert b"ada" not in reply.body
        assert (await proxy.ask(proxy.request("/v1.0/groups/1/secret"))).body == b'{"visibility":"Public"}'
        assert [(e["verdict"], e["ruleId"], e["reason"]) for e in proxy.events()] == [
            ("block", "secret-answers", "responseRule"),
            ("allow", "groups", "rule"),
        ]


ONLY_LOGGING = """
version: 1
name: trying-out
default: allow
rules:
  - {id: secret-answers, when: response, match: {path: ["/v1.0/**"]}, verdict: log_only,
     conditions: [{property: label, equals: secret}]}
  - {id: secret-changes, match: {methods: [POST, PUT], path: ["/v1.0/**"]}, verdict: log_only,
     conditions: [{body: label, equals: secret}]}
"""


@pytest.mark.parametrize(
    ("fields", "body", "logged"),
    [
        (b"Content-Type: application/json\r\n", b'{"label":"secret"}', True),
        (b"Content-Type: application/json\r\n", b'{"label":"public"}', False),
        # An unreadable body may contain the property.
        (b"Content-Type: text/plain\r\n", b"no JSON", True),
        (b"Content-Type: application/json; charset=utf-16\r\n", b"{}", True),
        (b"Content-Encoding: gzip\r\n", b"no gzip", True),
        (b"", b"x" * 300_000, True),
    ],
)
@pytest.mark.parametrize("sized", [True, False])
async def test_a_rule_that_only_logs_refuses_no_body(
    tmp_path: Path, fields: bytes, body: bytes, logged: bool, sized: bool
) -> None:
    pieces = [body[:1000], body[1000:150_000], body[150_000:]]
    sent = b"".join(pieces)
    if sized:
        framing = b"Content-Length: %d\r\n" % len(body)
    else:
        framing = b"Transfer-Encoding: chunked\r\n"
        pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece] + [b"0\r\n\r\n"]
    received = bytearray()

    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        if b"chunked" in head:
            received.extend(await read_chunks(peer.reader))
        else:
            received.extend(await peer.body(len(body)))
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, ONLY_LOGGING, max_buffered_body=100_000) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/files", "PUT", fields + framing), *pieces)
        assert reply.status == 200
        assert received == sent
        (event,) = proxy.events()
        assert event["loggedRuleIds"] == (["secret-changes"] if logged else [])
        assert event["verdict"] == ("log_only" if logged else "allow")
        assert proxy.context.buffer_budget.reserved == 0


@pytest.mark.parametrize(
    ("response", "logged"),
    [
        (ok(b'{"label":"secret"}'), True),
        (ok(b'{"label":"public"}'), False),
        (ok(gzip.compress(b'{"label":"public"}', mtime=0), b"Content-Encoding: gzip"), False),
        (ok(b"x" * 300_000).replace(b"application/json", b"application/pdf"), True),
        (ok(b"x" * 300).replace(b"application/json", b"application/pdf"), True),
        (ok(b'{"a":"%b"}' % (b"x" * 300_000)), True),
        (ok(b"no zstd", b"Content-Encoding: zstd").replace(b"application/json", b"image/png"), True),
        (ok(b"1234").replace(b"200 OK", b"206 Partial"), True),
    ],
)
async def test_a_rule_that_only_logs_withholds_no_response(
    tmp_path: Path, response: bytes, logged: bool
) -> None:
    async with data_path(responding(response), tmp_path, ONLY_LOGGING, max_filter_bytes=100_000) as proxy:
        reply = await proxy.ask(proxy.request(fields=b"Range: bytes=0-3\r\n"))
        assert b"Range: bytes=0-3" in proxy.upstream.heads[0]
        assert reply.status == int(response.split(b" ")[1])
        assert reply.body == response.partition(b"\r\n\r\n")[2]
        (event,) = proxy.events()
        assert event["loggedRuleIds"] == (["secret-answers"] if logged else [])
        assert proxy.context.buffer_budget.reserved == 0


async def test_a_body_is_read_only_where_a_verdict_hangs_on_it(tmp_path: Path) -> None:
    rules = """
    version: 1
    name: heads-first
    default: block
    rules:
      - {id: stopped, match: {path: ["/v1.0/files"]}, verdict: block,
         conditions: [{header: X-Kind, equals: bad}]}
      - {id: trusted, match: {path: ["/v1.0/files"]}, verdict: allow,
         conditions: [{header: X-Kind, equals: good}]}
      - {id: by-body, match: {path: ["/v1.0/files"]}, verdict: allow,
         conditions: [{body: label, exists: true}]}
      - id: secret
        when: response
        match: {path: ["/v1.0/files"]}
        conditions:
          - {response_header: Content-Type, prefix: application/json}
          - {property: label, exists: true}
        verdict: block
    """
    pdf = ok(b"x" * 300_000).replace(b"application/json", b"application/pdf")

    async def script(peer: UpstreamPeer) -> None:
        while True:
            await peer.head()
            await peer.body(300_000)
            peer.send(pdf)

    async with data_path(script, tmp_path, rules, max_buffered_body=1000, max_filter_bytes=1000) as proxy:
        for kind, status, rule in (
            (b"good", 200, "trusted"),
            (b"bad", 403, "stopped"),
            (b"other", 413, None),
        ):
            fields = b"X-Kind: %b\r\nContent-Type: image/png\r\nContent-Length: 300000\r\n" % kind
            body = b"x" * 300_000 if status == 200 else b""
            reply = await proxy.ask(proxy.request("/v1.0/files", "PUT", fields, body))
            assert reply.status == status
            assert proxy.events()[-1]["ruleId"] == rule


@pytest.mark.parametrize("status", [b"429 Slow down", b"503 Busy", b"404 Not Found"])
async def test_what_a_load_balancer_says_of_a_failure_is_no_property(tmp_path: Path, status: bytes) -> None:
    """A load balancer's error must not become a 403, because client libraries do not retry after a 403."""
    response = b"HTTP/1.1 %b\r\nRetry-After: 7\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
    async with data_path(responding(response % status), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/groups/1/secret"))
        assert reply.head + reply.body == response % status
        assert proxy.events()[0]["verdict"] == "allow"


async def test_a_status_that_is_told_as_502_is_evaluated_all_the_same(tmp_path: Path) -> None:
    rules = """
    version: 1
    name: failures
    default: allow
    rules:
      - {id: noted, when: response, match: {path: ["/v1.0/**"]}, verdict: log_only,
         conditions: [{status: true, at_least: 400}]}
      - {id: withheld, when: response, match: {path: ["/v1.0/users"]}, verdict: block,
         conditions: [{status: true, equals: 507}]}
    """
    failures = [b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status for status in (500, 507, 401)]
    async with data_path(responding(*failures), tmp_path, rules) as proxy:
        assert [(await proxy.ask(proxy.request())).status for _ in range(2)] == [502, 403]
        posted = proxy.request("/v1.0/users", "POST", b"Content-Length: 70000\r\n", b"x" * 70_000)
        assert (await proxy.ask(posted)).status == 502
        report = [(event["reason"], event["loggedRuleIds"]) for event in proxy.events()]
        assert report == [
            ("upstreamError", ["noted"]),
            ("responseRule", ["noted"]),
            ("upstreamUnauthorised", ["noted"]),
        ]


# Statuses of the upstream


@pytest.mark.parametrize("status", [200, 201, 202, 302, 400, 403, 404, 409, 412, 423, 429, 503, 504])
async def test_statuses_that_pass_unchanged(tmp_path: Path, status: int) -> None:
    response = b"HTTP/1.1 %d Reason\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\nhi" % status
    async with data_path(responding(response), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert reply.head + reply.body == response


@pytest.mark.parametrize("status", [500, 501, 502, 505, 599])
async def test_other_5xx_become_502_with_the_upstream_s_status(tmp_path: Path, status: int) -> None:
    response = b"HTTP/1.1 %d Reason\r\nContent-Length: 6\r\n\r\nsecret" % status
    async with data_path(responding(response), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert reply.status == 502
        error = reply.json()["error"]
        assert (error["code"], error["upstreamStatus"]) == ("upstreamError", status)
        (event,) = proxy.events()
        assert (event["status"], event["upstreamStatus"], event["reason"]) == (502, status, "upstreamError")


@pytest.mark.parametrize("body", [b"", b'{"a":1}'])
async def test_an_upstream_401_is_responded_with_a_new_token_and_one_more_try(
    tmp_path: Path, body: bytes
) -> None:
    async def script(peer: UpstreamPeer) -> None:
        while True:
            head = await peer.head()
            await peer.body(len(body))
            good = b"Bearer second" in head
            peer.send(ok(b"{}") if good else b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")

    async with data_path(script, tmp_path) as proxy:
        fields = b"Content-Length: %d\r\n" % len(body) if body else b""
        asking = asyncio.ensure_future(proxy.ask(proxy.request(method="POST", fields=fields, body=body)))
        await proxy.credential_asked.wait()
        now = asyncio.get_running_loop().time()
        proxy.credential.renew("second", now + 3600, 2)
        assert (await asking).status == 200
        assert proxy.asked_for_credential == [1]
        (event,) = proxy.events()
        assert (event["status"], event["upstreamStatus"]) == (200, 200)


async def test_an_upstream_that_goes_on_responding_401_is_never_the_application_s_fault(
    tmp_path: Path,
) -> None:
    refusal = b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"
    async with data_path(responding(refusal), tmp_path) as proxy:
        asking = asyncio.ensure_future(proxy.ask(proxy.request()))
        await proxy.credential_asked.wait()
        proxy.credential.renew("second", asyncio.get_running_loop().time() + 3600, 2)
        reply = await asking
        assert reply.status == 502
        assert reply.json()["error"]["upstreamStatus"] == 401
        assert proxy.events()[0]["reason"] == "upstreamUnauthorised"


async def test_without_an_upstream_token_the_response_is_503_with_retry_after(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        proxy.credential.expires_at = 0
        reply = await proxy.ask(proxy.request())
        assert reply.status == 503
        assert reply.json()["error"]["code"] == "notReady"
        assert int(reply.value("retry-after") or 0) > 0
        assert proxy.upstream.received == []


# Bodies and framing


@pytest.mark.parametrize("pieces", [1, 3, 50])
async def test_a_sized_upload_streams(tmp_path: Path, pieces: int) -> None:
    body = bytes(range(256)) * 400

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        assert await peer.body(len(body)) == body
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path) as proxy:
        head = proxy.request(method="PUT", fields=b"Content-Length: %d\r\n" % len(body))
        step = len(body) // pieces
        parts = [body[at : at + step] for at in range(0, len(body), step)]
        assert (await proxy.ask(head, *parts)).status == 200
        assert proxy.events()[0]["requestBytes"] == len(body)


async def test_a_chunked_upload_streams(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        assert b"Transfer-Encoding: chunked\r\n" in head
        text = await peer.reader.readuntil(b"0\r\n\r\n")
        peer.send(ok(b"{}"))
        assert b"".join(part for part in text.split(b"\r\n")[1::2]) == b"hello, world"

    async with data_path(script, tmp_path) as proxy:
        head = proxy.request(method="PUT", fields=b"Transfer-Encoding: chunked\r\n")
        assert (await proxy.ask(head, b"5\r\nhel", b"lo\r\n7\r\n, world\r\n", b"0\r\n\r\n")).status == 200


async def test_expect_100_continue_is_the_upstream_s_to_response(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        assert b"Expect: 100-continue\r\n" in await peer.head()
        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await peer.body(2) == b"hi"
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request(method="PUT", fields=b"Expect: 100-continue\r\nContent-Length: 2\r\n"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await read_reply(reader)).status == 200
        writer.close()


async def test_an_early_response_reaches_the_client_and_neither_connection_is_used_again(
    tmp_path: Path,
) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await peer.reader.read()

    async with data_path(script, tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request(method="PUT", fields=b"Content-Length: 1000000\r\n", body=b"x" * 10))
        reply = await read_reply(reader)
        assert reply.status == 413
        assert reply.value("connection") == "close"
        writer.close()
        assert (
            await proxy.ask(proxy.request(method="PUT", fields=b"Content-Length: 999999\r\n"))
        ).status == 413
        assert len(proxy.upstream.received) == 2


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
        b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\nContent-Length: 99\r\n\r\n',
    ],
)
async def test_responses_without_a_body_leave_the_connection_in_step(tmp_path: Path, response: bytes) -> None:
    async with data_path(responding(response, ok(b'{"next":1}')), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request() + proxy.request())
        first = await read_reply(reader)
        assert first.head == response
        assert (await read_reply(reader)).body == b'{"next":1}'
        assert len(proxy.upstream.received) == 1
        writer.close()


async def test_head_has_no_body_whatever_its_content_length(tmp_path: Path) -> None:
    response = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"
    async with data_path(responding(response, ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request(method="HEAD") + proxy.request())
        assert (await read_reply(reader, to_head=True)).head == response
        assert (await read_reply(reader)).body == b"{}"
        writer.close()


@pytest.mark.parametrize("step", [1, 7, 100000])
async def test_a_chunked_response_arrives_whole_however_it_is_cut(tmp_path: Path, step: int) -> None:
    text = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n3;x=y\r\nefg\r\n0\r\nT: 1\r\n\r\n"
    )

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        for at in range(0, len(text), step):
            peer.send(text[at : at + step])
            await peer.writer.drain()
            await asyncio.sleep(0)
        await peer.reader.read()

    async with data_path(script, tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert reply.body == b"abcdefg"
        assert proxy.events()[0]["responseBytes"] == 7


async def test_a_response_that_ends_with_the_connection_is_chunked_for_the_client(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with data_path(script, tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert reply.value("transfer-encoding") == "chunked"
        assert reply.body == b"all of it"


async def test_an_http_1_0_client_reads_until_the_close(tmp_path: Path) -> None:
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"
    async with data_path(responding(response), tmp_path) as proxy:
        request = f"GET /v1.0/users HTTP/1.0\r\nAuthorization: Bearer {proxy.token}\r\n\r\n"
        text = await proxy.raw(request.encode())
        assert text.endswith(b"\r\n\r\nabcd")
        assert b"ransfer-" not in text
        assert proxy.upstream.heads[0].startswith(b"GET /v1.0/users HTTP/1.1\r\n")


async def test_pipelined_requests_are_responded_in_order(tmp_path: Path) -> None:
    responses = [ok(b'{"turn":%d}' % slot) for slot in range(5)]
    async with data_path(responding(*responses), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(b"".join(proxy.request(f"/v1.0/users/{slot}") for slot in range(5)))
        assert [(await read_reply(reader)).json()["turn"] for _ in range(5)] == [0, 1, 2, 3, 4]
        assert len(proxy.upstream.received) == 1
        writer.close()


async def test_a_good_request_before_garbage_gets_its_response(tmp_path: Path) -> None:
    async with data_path(responding(ok(b'{"good":1}')), tmp_path) as proxy:
        text = await proxy.raw(proxy.request() + b"\x00garbage\r\n\r\n")
        first, _, rest = text.partition(b'{"good":1}')
        assert first.startswith(b"HTTP/1.1 200 OK")
        assert rest.startswith(b"HTTP/1.1 400 Bad Request")
        assert len(proxy.upstream.heads) == 1


async def test_a_second_request_hidden_in_a_body_is_never_read_as_one(tmp_path: Path) -> None:
    hidden = b"GET /v1.0/hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        fields = b"Content-Length: %d\r\n" % len(hidden)
        request = proxy.request("/v1.0/sites", "POST", fields, hidden) + proxy.request("/v1.0/groups/1")
        reader, writer = await proxy.connect()
        writer.write(request)
        assert (await read_reply(reader)).status == 403
        assert (await read_reply(reader)).status == 200
        assert [head.split(b" ")[1] for head in proxy.upstream.heads] == [b"/v1.0/groups/1"]
        writer.close()


# Links in responses


async def test_links_that_an_sdk_follows_lead_back_to_the_proxy(tmp_path: Path) -> None:
    body = (
        b'{"@odata.context":"%b/$metadata","@odata.nextLink":"%b/v1.0/users?$skiptoken=a\\u0026b","value":[]}'
    )

    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        base = b"http://" + head.split(b"Host: ")[1].split(b"\r\n")[0]
        peer.send(ok(body % (base, base), b"Location: " + base + b"/v1.0/jobs/1"))

    async with data_path(script, tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        base = f"http://127.0.0.1:{proxy.upstream.port}".encode()
        assert reply.body == body % (base, b"http://proxy.example")
        assert reply.value("location") == "http://proxy.example/v1.0/jobs/1"


async def test_links_lead_back_to_where_a_client_that_names_no_host_came(tmp_path: Path) -> None:
    body = b'{"@odata.nextLink":"%b/v1.0/users?p=2"}'

    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        peer.send(ok(body % (b"http://" + head.split(b"Host: ")[1].split(b"\r\n")[0])))

    async with data_path(script, tmp_path) as proxy:
        request = f"GET /v1.0/users HTTP/1.0\r\nAuthorization: Bearer {proxy.token}\r\n\r\n"
        text = await proxy.raw(request.encode())
        assert text.endswith(body % f"http://127.0.0.1:{proxy.port}".encode())


async def test_a_compressed_response_without_such_a_link_keeps_every_byte(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"value":[]}')
    async with data_path(responding(ok(packed, b"Content-Encoding: gzip")), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert reply.body == packed
        assert reply.value("content-encoding") == "gzip"


async def test_a_part_of_a_response_keeps_every_byte(tmp_path: Path) -> None:
    """Links in a range response stay unchanged.

    If the proxy rewrote a link, the declared position and total length of the range would be wrong.
    """
    async with data_path(responding(b""), tmp_path) as proxy:
        body = b'{"@odata.nextLink":"http://127.0.0.1:%d/v1.0/users?$skiptoken=1"}' % proxy.upstream.port
        fields = b"Content-Type: application/json\r\nContent-Range: bytes 0-9/1000\r\n"
        response = b"HTTP/1.1 206 Partial\r\n%bContent-Length: %d\r\n\r\n%b" % (fields, len(body), body)
        proxy.upstream.script = responding(response)
        reply = await proxy.ask(proxy.request(fields=b"Range: bytes=0-9\r\n"))
        assert (reply.status, reply.head + reply.body) == (206, response)


@pytest.mark.parametrize("body", [b'{"a":1}', gzip.compress(b'{"a":1}', mtime=0)[:-6] + b"abcdef"])
async def test_a_response_that_is_not_in_the_coding_that_it_names_is_told_as_such(
    tmp_path: Path, body: bytes
) -> None:
    """If a response body does not have its declared coding, the proxy can't find the links in the body.

    If the proxy can't decode a response body, the client receives a response with the status 502.
    """
    async with data_path(responding(ok(body, b"Content-Encoding: gzip")), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert (reply.status, reply.json()["error"]["code"]) == (502, "upstreamError")


@pytest.mark.parametrize("coded", [False, True])
async def test_a_link_at_the_end_of_a_long_response_is_rewritten_as_it_streams(
    tmp_path: Path, coded: bool
) -> None:
    import random

    noise = bytes(
        random.Random(1).choices(
            b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", k=3_500_000
        )
    )

    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        base = b"http://" + head.split(b"Host: ")[1].split(b"\r\n")[0]
        body = b'{"value":["%b"],"@odata.nextLink":"%b/v1.0/users?p=2"}' % (noise, base)
        peer.send(ok(gzip.compress(body, 1), b"Content-Encoding: gzip") if coded else ok(body))
        await peer.reader.read()

    async with data_path(script, tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert (
            reply.body == b'{"value":["%b"],"@odata.nextLink":"http://proxy.example/v1.0/users?p=2"}' % noise
        )
        assert reply.value("transfer-encoding") == "chunked"
        assert reply.value("content-encoding") is None


# Faults on either side


async def test_an_upstream_that_cannot_be_reached_is_502(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        object.__setattr__(proxy.context.pool, "settings", _with_port(proxy.context.pool.settings, 1))
        reply = await proxy.ask(proxy.request())
        assert reply.status == 502
        assert reply.json()["error"]["code"] == "upstreamUnreachable"
        assert "127.0.0.1" not in reply.json()["error"]["message"]
        (event,) = proxy.events()
        assert event["reason"] == "upstreamUnreachable"
        assert event["upstreamMs"] is not None
        assert proxy.context.counters.values[UPSTREAM_ERRORS] == 1


def _with_port(settings: object, port: int) -> object:
    from dataclasses import replace

    return replace(settings, port=port)  # type: ignore[type-var]


async def test_an_upstream_that_is_too_slow_is_504(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.reader.read()

    async with data_path(script, tmp_path, response_timeout=0.2) as proxy:
        reply = await proxy.ask(proxy.request())
        assert reply.status == 504
        assert reply.json()["error"]["code"] == "upstreamTimeout"
        (event,) = proxy.events()
        assert event["upstreamMs"] >= 200
        assert proxy.context.counters.values[UPSTREAM_ERRORS] == 1


async def test_what_no_application_asked_counts_as_no_verdict(tmp_path: Path) -> None:
    """Clients without a token must not be able to trigger or hide the alarm about blocked requests."""
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        await proxy.ask(b"GET /v1.0/users HTTP/1.1\r\nHost: p\r\n\r\n")
        values = proxy.context.counters.values
        assert [values[verdict] for verdict in VERDICTS] == [0] * len(VERDICTS)
        assert values[UNAUTHENTICATED] == 1


@pytest.mark.parametrize("cut", range(0, 60, 4))
async def test_a_response_cut_at_any_byte_is_never_taken_for_a_whole_one(tmp_path: Path, cut: int) -> None:
    response = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello, world"

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(response[:cut])

    async with data_path(script, tmp_path) as proxy:
        text = await proxy.raw(proxy.request(method="POST", fields=b"Connection: close\r\n"))
        if cut < len(response):
            assert not text.endswith(b"world")
            assert len(proxy.upstream.heads) == 1  # a POST that reached the upstream is never sent twice
        (event,) = proxy.events()
        head_came = cut >= response.index(b"hello")
        if cut >= len(response):
            assert event["reason"] == "default"
        elif head_came:
            assert (event["status"], event["reason"]) == (200, "upstreamAborted")
        else:
            assert (event["status"], event["reason"]) == (502, "upstreamUnreachable")
            assert b"upstreamUnreachable" in text


async def test_a_get_on_a_kept_connection_that_the_upstream_closed_is_tried_once_more(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(ok(b'{"on":%d}' % peer.number))
        await peer.head()  # reads the second request, and closes without a response

    async with data_path(script, tmp_path) as proxy:
        assert (await proxy.ask(proxy.request())).json() == {"on": 1}
        assert (await proxy.ask(proxy.request())).json() == {"on": 2}
        assert len(proxy.events()) == 2


async def test_a_post_on_such_a_connection_is_not(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(ok(b"{}"))
        await peer.head()

    async with data_path(script, tmp_path) as proxy:
        assert (await proxy.ask(proxy.request())).status == 200
        assert (await proxy.ask(proxy.request(method="POST"))).status == 502
        assert len(proxy.upstream.heads) == 2


async def test_a_client_that_leaves_never_spoils_another_s_response(tmp_path: Path) -> None:
    waiting = asyncio.Event()
    left = asyncio.Event()

    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        if b"/leaving " in head:
            waiting.set()
            await peer.reader.read()
            left.set()
        else:
            peer.send(ok(b'{"mine":true}'))

    async with data_path(script, tmp_path) as proxy:
        _, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/leaving"))
        await waiting.wait()
        writer.transport.abort()
        await left.wait()
        assert (await proxy.ask(proxy.request())).json() == {"mine": True}
        assert [(e["path"], e["status"], e["reason"]) for e in proxy.events()] == [
            ("/v1.0/leaving", 499, "clientAborted"),
            ("/v1.0/users", 200, "default"),
        ]


async def test_bytes_after_a_response_are_never_the_next_response(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(ok(b'{"on":%d}' % peer.number) + ok(b'{"smuggled":true}'))
        await peer.reader.read()

    async with data_path(script, tmp_path) as proxy:
        assert (await proxy.ask(proxy.request())).json() == {"on": 1}
        assert (await proxy.ask(proxy.request())).json() == {"on": 2}


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 103 Hints\r\n\r\n" * 50,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000,
        b"nonsense\r\n\r\n",
    ],
)
async def test_a_hostile_response_is_502(tmp_path: Path, response: bytes) -> None:
    async with data_path(responding(response), tmp_path) as proxy:
        text = await proxy.raw(proxy.request(fields=b"Connection: close\r\n"))
        assert b"HTTP/1.1 502 Bad Gateway" in text
        assert proxy.events()[0]["reason"] == "upstreamProtocol"


# Malformed requests


@pytest.mark.parametrize(
    ("request_text", "status", "code"),
    [
        (b"GET /v1.0/users HTTP/1.1\r\n\r\n", 400, "badRequest"),
        (b"GET /v1.0/users HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70000 + b"\r\n\r\n", 431, "headersTooLarge"),
        (b"GET /v1.0/users HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431, "headersTooLarge"),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405, "methodNotAllowed"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, "badRequest"),
    ],
)
async def test_bad_requests_get_a_clear_response_and_a_close(
    tmp_path: Path, request_text: bytes, status: int, code: str
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        text = await proxy.raw(request_text)
        head, _, body = text.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(body)["error"]["code"] == code
        assert b"Connection: close" in head
        assert proxy.upstream.received == []


async def test_a_malformed_target_is_400_with_an_event(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users/%00"))
        assert reply.status == 400
        assert reply.json()["error"]["code"] == "badRequest"
        assert proxy.events()[0]["reason"] == "malformedTarget"


@pytest.mark.parametrize(
    "name", [b"X-HTTP-Method-Override", b"x-http-method", b"X-Method-Override", b"x_method_override"]
)
async def test_a_method_override_is_refused(tmp_path: Path, name: bytes) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request(method="POST", fields=name + b": DELETE\r\n"))
        assert reply.status == 400
        assert proxy.upstream.received == []
        part = {"id": "1", "method": "GET", "url": "/users/ada", "headers": {name.decode(): "DELETE"}}
        body = json.dumps({"requests": [part]}).encode()
        fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        assert (reply.json()["responses"][0]["status"], proxy.upstream.received) == (400, [])


@pytest.mark.parametrize("target", ["/v1.0/users/$query", "/v1.0/users/ada/messages/%24Query"])
async def test_a_query_in_a_body_is_refused(tmp_path: Path, target: str) -> None:
    """A POST with its query in the body is a GET (OData 4.01, Passing Query Options in the Request Body)."""
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        fields = b"Content-Type: text/plain\r\nContent-Length: 4\r\n"
        reply = await proxy.ask(proxy.request(target, "POST", fields, b"$top"))
        assert (reply.status, proxy.upstream.received) == (400, [])
        part = {"id": "1", "method": "POST", "url": target.removeprefix("/v1.0"), "body": {}}
        part["headers"] = {"Content-Type": "application/json"}
        body = json.dumps({"requests": [part]}).encode()
        fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        assert (reply.json()["responses"][0]["status"], proxy.upstream.received) == (400, [])
        assert {event["reason"] for event in proxy.events()} == {"unsupported", "default"}


async def test_a_head_that_drips_is_cut_by_its_total_time(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, head_timeout=0.3) as proxy:
        reader, writer = await proxy.connect()
        dripping = asyncio.ensure_future(
            _drip(writer, b"GET /v1.0/users HTTP/1.1\r\nHost: p\r\nX: " + b"a" * 500)
        )
        reply = await read_reply(reader)
        assert reply.status == 408
        dripping.cancel()
        writer.close()


async def test_tls_on_a_plain_listener_is_refused_at_its_first_bytes(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, head_timeout=3600) as proxy:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", proxy.port, ssl=ssl.create_default_context())


async def test_a_body_that_drips_is_cut_by_its_rate(tmp_path: Path) -> None:
    async with data_path(
        responding(ok(b"{}")), tmp_path, RULES, body_grace=0.2, min_body_rate=100000
    ) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/invitations", "POST", b"Content-Length: 1000\r\n"))
        dripping = asyncio.ensure_future(_drip(writer, b"a" * 900))
        reply = await read_reply(reader)
        assert reply.status == 408
        assert proxy.events()[0]["reason"] == "requestTimeout"
        dripping.cancel()
        writer.close()


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    for at in range(len(data)):
        writer.write(data[at : at + 1])
        await asyncio.sleep(0.02)


# Readiness of the proxy


async def test_a_proxy_without_rules_responses_503_and_says_why(tmp_path: Path) -> None:
    from proxy.server.callers.rulebook import Rulebook

    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        proxy.context.use(Rulebook())
        reply = await proxy.ask(proxy.request())
        assert reply.status == 503
        assert reply.json()["error"]["code"] == "notReady"
        assert "no rules" in reply.json()["error"]["message"]
        assert proxy.upstream.received == []


async def test_a_known_application_s_request_leaves_its_event_while_the_proxy_is_not_ready(
    tmp_path: Path,
) -> None:
    from proxy.server.callers.rulebook import Rulebook

    forged = b"GET /v1.0/users HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer x.y.z\r\n\r\n"
    async with data_path(responding(ok(b"{}")), tmp_path, max_staleness=1) as proxy:
        proxy.context.synced_at = proxy.context.deadlines.now - 10
        assert (await proxy.ask(proxy.request("/v1.0/stale"))).status == 503
        assert (await proxy.ask(forged)).status == 503
        proxy.context.use(Rulebook())
        assert (await proxy.ask(proxy.request("/v1.0/no-rules"))).status == 503
        assert [(e["path"], e["orgId"], e["clientId"], e["status"], e["reason"]) for e in proxy.events()] == [
            ("/v1.0/stale", ORG_ID, CLIENT_ID, 503, "notReady"),
            ("/v1.0/no-rules", ORG_ID, CLIENT_ID, 503, "notReady"),
        ]
        assert proxy.upstream.received == []


async def test_new_rules_apply_to_an_open_connection(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/sites"))
        assert (await read_reply(reader)).status == 200
        proxy.use(RULES)
        writer.write(proxy.request("/v1.0/sites"))
        assert (await read_reply(reader)).status == 403
        writer.close()


async def test_a_response_rule_that_looks_at_the_request_s_body_has_it(tmp_path: Path) -> None:
    ruleset = """
version: 1
name: test
default: allow
rules:
  - id: no-guests
    when: response
    match: {path: ["/v1.0/invitations"]}
    conditions: [{body: kind, equals: guest}]
    verdict: block
"""
    async with data_path(responding(ok(b'{"a":1}')), tmp_path, ruleset) as proxy:
        for body, status in ((b'{"kind":"guest"}', 403), (b'{"kind":"member"}', 200), (b"nonsense", 400)):
            fields = b"Content-Length: %d\r\n" % len(body)
            reply = await proxy.ask(proxy.request("/v1.0/invitations", "POST", fields, body))
            assert reply.status == status
        assert not any(b"nonsense" in received for received in proxy.upstream.received)


async def test_a_token_that_was_just_replaced_and_is_refused_again_keeps_nobody_waiting(
    tmp_path: Path,
) -> None:
    refusal = b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"
    async with data_path(responding(refusal), tmp_path) as proxy:
        first, second = (asyncio.ensure_future(proxy.ask(proxy.request())) for _ in range(2))
        await proxy.credential_asked.wait()
        proxy.credential.renew("second", asyncio.get_running_loop().time() + 3600, 2)
        assert {(await first).status, (await second).status} == {502}
        assert (await proxy.ask(proxy.request())).status == 502
        assert proxy.asked_for_credential == [1]


@pytest.mark.parametrize("rule_reads", [False, True], ids=["held for links", "held for a rule"])
async def test_what_a_response_held_is_free_when_it_has_ended(tmp_path: Path, rule_reads: bool) -> None:
    """The proxy must free a response's memory without the garbage collector.

    If the proxy waited for the garbage collector, the bodies of finished responses would use more and more
    memory.
    """
    body = json.dumps({"value": [{"id": str(n)} for n in range(40_000)]}).encode()
    rules = "version: 1\nname: x\ndefault: allow\nrules:\n"
    if rule_reads:
        rules += "  - {id: r, when: response, match: {path: [/**]}, verdict: block,\n"
        rules += "     conditions: [{property: x, exists: true}]}\n"
    else:
        rules += "  - {id: r, match: {path: [/**]}, verdict: allow}\n"
    async with data_path(responding(ok(body)), tmp_path, rules) as proxy:
        gc.disable()
        try:
            for _ in range(3):
                assert (await proxy.ask(proxy.request())).body == body
            assert [each for each in gc.get_objects() if isinstance(each, ResponseBody | Exchange)] == []
        finally:
            gc.enable()
