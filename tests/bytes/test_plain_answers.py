"""Responses without named properties under a filter: what can hold none of the hidden ones passes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.bytes.data_path import DataPath, Reply, UpstreamPeer, answering, data_path

SECRET = b"+47 555 90210"
PICTURE = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + bytes(range(256))


def rules(transforms: str, path: str = "/v1.0/users/**") -> str:
    return f"""\
version: 1
name: hide
default: allow
rules:
  - id: hide
    match: {{path: ["{path}"]}}
    verdict: filter
    transforms: {{{transforms}}}
    guard_queries: true
"""


STRIP = "strip_properties: [mobilePhone, otherPhones]"
ALLOW = "allow_properties: [id, displayName]"


def answer(body: bytes, content_type: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    kind = b"Content-Type: " + content_type + b"\r\n" if content_type else b""
    return b"HTTP/1.1 " + status + b"\r\n" + kind + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def ask(proxy: DataPath, target: str, method: str = "GET") -> Reply:
    fields = b"Content-Length: 0\r\n" if method == "POST" else b""
    return await proxy.ask(proxy.request(target, method, fields))


PASSING = [
    ("GET", "/v1.0/users/$count", answer(b"42", b"text/plain;odata.metadata=minimal")),
    ("GET", "/v1.0/users/$count", answer(b"\xef\xbb\xbf42", b"text/plain")),
    ("GET", "/v1.0/users/$count", answer(b"42")),
    ("GET", "/v1.0/users/1/messages/$count", answer(b"0", b"text/plain")),
    ("POST", "/v1.0/users/1/getMemberGroups", answer(b'{"@odata.context":"c","value":["a","b"]}')),
    ("POST", "/v1.0/users/1/checkMemberGroups", answer(b'{"value":[]}')),
    ("POST", "/v1.0/users/1/microsoft.graph.getMemberGroups", answer(b'{"value":["a"]}')),
    ("POST", "/v1.0/users/1/revokeSignInSessions", answer(b'{"@odata.context":"c","value":true}')),
    ("GET", "/v1.0/users/1/displayName", answer(b'{"@odata.context":"c","value":"Kim"}')),
    ("GET", "/v1.0/users/1/displayName/$value", answer(b"Kim Larsen", b"text/plain; charset=utf-8")),
    ("GET", "/v1.0/users/1", answer(b"", status=b"200 OK")),
    ("GET", "/v1.0/users/1", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ("GET", "/v1.0/users/1", b"HTTP/1.1 304 Not Modified\r\n\r\n"),
    ("GET", "/v1.0/users/1", answer(b"null")),
    ("GET", "/v1.0/users", answer(b"[]")),
    ("GET", "/v1.0/users", answer(b'{"value":[]}')),
]
PASSING_WITHOUT_A_LIST = [
    ("GET", "/v1.0/users/1/businessPhones", answer(b'{"@odata.context":"c","value":["1","2"]}')),
    ("GET", "/v1.0/users/1/employeeOrgData", answer(b'{"value":null}')),
    ("GET", "/v1.0/users/1/accountEnabled", answer(b'{"value":true}')),
    ("GET", "/v1.0/users/1/photo/$value", answer(PICTURE, b"image/jpeg")),
    ("GET", "/v1.0/users/1/photos/48x48/$value", answer(PICTURE, b"image/jpeg")),
]


@pytest.mark.parametrize(("method", "target", "sent"), [*PASSING, *PASSING_WITHOUT_A_LIST])
async def test_what_cannot_hold_a_hidden_property_passes_byte_for_byte(
    tmp_path: Path, method: str, target: str, sent: bytes
) -> None:
    async with data_path(answering(sent), tmp_path, rules(STRIP)) as proxy:
        reply = await ask(proxy, target, method)
        assert (reply.status, reply.body) == (int(sent[9:12]), sent.partition(b"\r\n\r\n")[2])
        (event,) = proxy.events()
        assert (event["verdict"], event["reason"]) == ("filter", "rule")


@pytest.mark.parametrize(("method", "target", "sent"), PASSING)
async def test_a_list_of_allowed_properties_lets_pass_what_is_no_property(
    tmp_path: Path, method: str, target: str, sent: bytes
) -> None:
    async with data_path(answering(sent), tmp_path, rules(ALLOW)) as proxy:
        reply = await ask(proxy, target, method)
        assert (reply.status, reply.body) == (int(sent[9:12]), sent.partition(b"\r\n\r\n")[2])


BLOCKED = [
    (STRIP, "/v1.0/users/1/mobilePhone", answer(b'{"value":"%b"}' % SECRET)),
    (STRIP, "/v1.0/users/1/otherPhones", answer(b'{"value":["%b"]}' % SECRET)),
    (STRIP, "/v1.0/users/1/mobilePhone/$value", answer(SECRET, b"text/plain")),
    (STRIP, "/v1.0/users/$count?$filter=startswith(mobilePhone,'%2B47')", answer(b"1", b"text/plain")),
    (ALLOW, "/v1.0/users/1/mobilePhone", answer(b'{"value":"%b"}' % SECRET)),
    (ALLOW, "/v1.0/users/1/otherPhones", answer(b'{"value":["%b"]}' % SECRET)),
    (ALLOW, "/v1.0/users/1/mobilePhone/$value", answer(SECRET, b"text/plain")),
    (ALLOW, "/v1.0/users/1/photo/$value", answer(PICTURE, b"image/jpeg")),
    (ALLOW, "/v1.0/users/$count?$filter=startswith(mobilePhone,'%2B47')", answer(b"1", b"text/plain")),
]


@pytest.mark.parametrize(("transforms", "target", "sent"), BLOCKED)
async def test_a_path_that_names_what_is_hidden_is_blocked_by_its_rule(
    tmp_path: Path, transforms: str, target: str, sent: bytes
) -> None:
    async with data_path(answering(sent), tmp_path, rules(transforms)) as proxy:
        reply = await ask(proxy, target)
        assert (reply.status, reply.json()["error"]["code"]) == (403, "policyBlocked")
        assert reply.json()["error"]["ruleId"] == "hide"
        (event,) = proxy.events()
        assert (event["verdict"], event["ruleId"], event["reason"]) == ("block", "hide", "hiddenProperty")


CSV = b"displayName,mobilePhone\r\nKim,%b\r\n" % SECRET
OBJECT = b'{"mobilePhone":"%b"}' % SECRET
MAY_HOLD = [
    ("/v1.0/users/1", answer(b'{"value":"%b"}' % SECRET)),
    ("/v1.0/users/1", answer(b'["%b"]' % SECRET)),
    ("/v1.0/users", answer(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/me", answer(b'"%b"' % SECRET)),
    ("/v1.0/users/1/messages", answer(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/users/1/manager", answer(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/users/$count", answer(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/users/$count", answer(SECRET, b"text/plain")),
    ("/v1.0/users/1/getThings()", answer(b'{"value":["x",{"mobilePhone":"%b"}]}' % SECRET)),
    ("/v1.0/users/1/getThings()", answer(b'{"value":["%b"],"id":1}' % SECRET)),
    ("/v1.0/users/1/report", answer(CSV, b"text/csv")),
    ("/v1.0/users/1/report/$value", answer(CSV, b"text/plain")),
    ("/v1.0/users/1/report/$value", answer(CSV, b"application/octet-stream")),
    ("/v1.0/users/1/photo/$value", answer(OBJECT, b"image/jpeg")),
    ("/v1.0/users/1/photo/$value", answer(OBJECT.decode().encode("utf-16"), b"image/jpeg")),
    ("/v1.0/users/1/photo/$value", answer(b"<svg>%b</svg>" % SECRET, b"image/svg+xml")),
    ("/v1.0/users/1/photo/$value", answer(OBJECT, b"text/plain")),
    ("/v1.0/users/1/displayName/$value", answer(b"<a>%b</a>" % SECRET, b"text/plain")),
    ("/v1.0/users/1/displayName/$value", answer(b"<a>%b</a>" % SECRET, b"application/xml")),
    ("/v1.0/users", answer(OBJECT + b"\n" + OBJECT, b"application/x-ndjson")),
    ("/v1.0/users", answer(b"--x\r\n\r\n" + OBJECT, b"multipart/mixed; boundary=x")),
    ("/v1.0/users", answer(b'{"d":{"results":[%b]}}' % OBJECT, b"application/json;odata=verbose")),
    ("/v1.0/users", answer(OBJECT, b"")),
]


@pytest.mark.parametrize("transforms", [STRIP, ALLOW], ids=["strip", "allow"])
@pytest.mark.parametrize(("target", "sent"), MAY_HOLD)
async def test_what_may_hold_a_hidden_property_never_passes(
    tmp_path: Path, transforms: str, target: str, sent: bytes
) -> None:
    async with data_path(answering(sent), tmp_path, rules(transforms, "/v1.0/**")) as proxy:
        reply = await ask(proxy, target)
        assert SECRET not in reply.body
        assert b"mobilePhone" not in reply.body
        assert reply.status in (403, 502) or (transforms == ALLOW and reply.json() == {})


async def test_parts_of_a_batch_are_filtered_as_if_they_came_alone(tmp_path: Path) -> None:
    parts = [
        ("GET", "/users/$count", "text/plain", '"NDI="', 200),
        ("POST", "/users/1/getMemberGroups", "application/json", '{"value":["a"]}', 200),
        ("GET", "/users/1", "application/json", '{"value":["secret"]}', 502),
        ("GET", "/users/1/mobilePhone", "application/json", '{"value":"secret"}', 403),
        ("GET", "/users/1/photo/$value", "image/jpeg", f'"{base64.b64encode(PICTURE).decode()}"', 200),
    ]
    sent = ",".join(
        f'{{"id":"{at}","status":200,"headers":{{"Content-Type":"{kind}"}},"body":{body}}}'
        for at, (_, _, kind, body, status) in enumerate(parts)
        if status != 403
    )
    requests = [{"id": str(at), "method": each[0], "url": each[1]} for at, each in enumerate(parts)]
    body = json.dumps({"requests": requests}).encode()

    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await peer.body(size)
        peer.send(answer(b'{"responses":[%b]}' % sent.encode()))

    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    async with data_path(script, tmp_path, rules(STRIP)) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        told = {each["id"]: each for each in reply.json()["responses"]}
        assert [told[str(at)]["status"] for at in range(5)] == [each[4] for each in parts]
        assert told["0"]["body"] == "NDI="
        assert told["4"]["body"] == base64.b64encode(PICTURE).decode()
