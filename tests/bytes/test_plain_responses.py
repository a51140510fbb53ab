"""Tests of filtered responses with plain values: the value of a hidden property never reaches the client."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest

from tests.bytes.data_path import DataPath, Reply, UpstreamPeer, data_path, responding

SECRET = b"+47 555 90210"
EXTENSION = "extension_b7d8e648520f41d3b9c0fdeb91768a0a_jobGroup"
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


def response(body: bytes, content_type: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    kind = b"Content-Type: " + content_type + b"\r\n" if content_type else b""
    return b"HTTP/1.1 " + status + b"\r\n" + kind + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def ask(proxy: DataPath, target: str, method: str = "GET") -> Reply:
    fields = b"Content-Length: 0\r\n" if method == "POST" else b""
    return await proxy.ask(proxy.request(target, method, fields))


PASSING = [
    ("GET", "/v1.0/users/$count", response(b"42", b"text/plain;odata.metadata=minimal")),
    ("GET", "/v1.0/users/$count", response(b"\xef\xbb\xbf42", b"text/plain")),
    ("GET", "/v1.0/users/$count", response(b"42")),
    ("GET", "/v1.0/users/1/messages/$count", response(b"0", b"text/plain")),
    ("POST", "/v1.0/users/1/getMemberGroups", response(b'{"@odata.context":"c","value":["a","b"]}')),
    ("POST", "/v1.0/users/1/checkMemberGroups", response(b'{"value":[]}')),
    ("POST", "/v1.0/users/1/microsoft.graph.getMemberGroups", response(b'{"value":["a"]}')),
    ("POST", "/v1.0/users/1/revokeSignInSessions", response(b'{"@odata.context":"c","value":true}')),
    ("GET", "/v1.0/users/1/displayName", response(b'{"@odata.context":"c","value":"Kim"}')),
    ("GET", "/v1.0/users/1/displayName/$value", response(b"Kim Larsen", b"text/plain; charset=utf-8")),
    ("GET", "/v1.0/users/1/displayName/$value", response(b"Larsen, Kim", b"text/plain")),
    ("GET", "/v1.0/users/1/displayName/$value", response("山田　太郎".encode(), b"text/plain")),
    ("GET", "/v1.0/users/1/microsoft.graph.user/displayName", response(b'{"value":"Kim"}')),
    ("GET", "/v1.0/users/1", response(b"", status=b"200 OK")),
    ("GET", "/v1.0/users/1", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ("GET", "/v1.0/users/1", b"HTTP/1.1 304 Not Modified\r\n\r\n"),
    ("GET", "/v1.0/users/1", response(b"null")),
    ("GET", "/v1.0/users", response(b"[]")),
    ("GET", "/v1.0/users", response(b'{"value":[]}')),
]
PASSING_WITHOUT_A_LIST = [
    ("GET", "/v1.0/users/1/businessPhones", response(b'{"@odata.context":"c","value":["1","2"]}')),
    ("GET", "/v1.0/users/1/employeeOrgData", response(b'{"value":null}')),
    ("GET", "/v1.0/users/1/accountEnabled", response(b'{"value":true}')),
    ("GET", f"/v1.0/users/1/{EXTENSION}", response(b'{"value":"x"}')),
    ("GET", "/v1.0/users/1/employeeOrgData/division", response(b'{"value":"x"}')),
    ("GET", "/v1.0/users/1/mailboxSettings/timeZone", response(b'{"value":"UTC"}')),
    ("GET", "/v1.0/users/1/manager/displayName", response(b'{"value":"Kim"}')),
    ("GET", "/v1.0/users/1/messages/2/inferenceClassification", response(b'{"value":"focused"}')),
    ("GET", "/v1.0/users/1/isManagedAppUserBlocked()", response(b'{"value":false}')),
    ("GET", "/v1.0/users/1/microsoft.graph.isManagedAppUserBlocked()", response(b'{"value":false}')),
    ("GET", "/v1.0/users/1/photo/$value", response(PICTURE, b"image/jpeg")),
    ("GET", "/v1.0/users/1/photo/$value", response(PICTURE, b"application/octet-stream")),
    ("GET", "/v1.0/users/1/photo/$value", response(b"RIFF\x24\x00\x00\x00WEBPVP8 ", b"image/webp")),
    ("GET", "/v1.0/users/1/photos/48x48/$value", response(PICTURE, b"image/jpeg")),
]


@pytest.mark.parametrize(("method", "target", "sent"), [*PASSING, *PASSING_WITHOUT_A_LIST])
async def test_what_cannot_hold_a_hidden_property_passes_byte_for_byte(
    tmp_path: Path, method: str, target: str, sent: bytes
) -> None:
    async with data_path(responding(sent), tmp_path, rules(STRIP)) as proxy:
        reply = await ask(proxy, target, method)
        assert (reply.status, reply.body) == (int(sent[9:12]), sent.partition(b"\r\n\r\n")[2])
        (event,) = proxy.events()
        assert (event["verdict"], event["reason"]) == ("filter", "rule")


@pytest.mark.parametrize(("method", "target", "sent"), PASSING)
async def test_a_list_of_allowed_properties_lets_pass_what_is_no_property(
    tmp_path: Path, method: str, target: str, sent: bytes
) -> None:
    async with data_path(responding(sent), tmp_path, rules(ALLOW)) as proxy:
        reply = await ask(proxy, target, method)
        assert (reply.status, reply.body) == (int(sent[9:12]), sent.partition(b"\r\n\r\n")[2])


BLOCKED = [
    (STRIP, "/v1.0/users/1/mobilePhone", response(b'{"value":"%b"}' % SECRET)),
    (STRIP, "/v1.0/users/1/otherPhones", response(b'{"value":["%b"]}' % SECRET)),
    (STRIP, "/v1.0/users/1/mobilePhone/$value", response(SECRET, b"text/plain")),
    (STRIP, "/v1.0/users/$count?$filter=startswith(mobilePhone,'%2B47')", response(b"1", b"text/plain")),
    (ALLOW, "/v1.0/users/1/mobilePhone", response(b'{"value":"%b"}' % SECRET)),
    (ALLOW, "/v1.0/users/1/otherPhones", response(b'{"value":["%b"]}' % SECRET)),
    (ALLOW, "/v1.0/users/1/mobilePhone/$value", response(SECRET, b"text/plain")),
    (ALLOW, "/v1.0/users/1/photo/$value", response(PICTURE, b"image/jpeg")),
    (ALLOW, "/v1.0/users/$count?$filter=startswith(mobilePhone,'%2B47')", response(b"1", b"text/plain")),
]


@pytest.mark.parametrize(("transforms", "target", "sent"), BLOCKED)
async def test_a_path_that_names_what_is_hidden_is_blocked_by_its_rule(
    tmp_path: Path, transforms: str, target: str, sent: bytes
) -> None:
    async with data_path(responding(sent), tmp_path, rules(transforms)) as proxy:
        reply = await ask(proxy, target)
        assert (reply.status, reply.json()["error"]["code"]) == (403, "policyBlocked")
        assert reply.json()["error"]["ruleId"] == "hide"
        (event,) = proxy.events()
        assert (event["verdict"], event["ruleId"], event["reason"]) == ("block", "hide", "hiddenProperty")


CSV = b"displayName,mobilePhone\r\nKim,%b\r\n" % SECRET
OBJECT = b'{"mobilePhone":"%b"}' % SECRET
LATIN_1 = '{"displayName":"Åse","mobilePhone":"'.encode("latin-1") + SECRET + b'"}'
MAY_HOLD = [
    ("/v1.0/users/1", response(b'{"value":"%b"}' % SECRET)),
    ("/v1.0/users/1", response(b'["%b"]' % SECRET)),
    ("/v1.0/users", response(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/me", response(b'"%b"' % SECRET)),
    ("/v1.0/users/1/messages", response(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/users/1/manager", response(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/users/$count", response(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/users/$count", response(SECRET, b"text/plain")),
    ("/v1.0/users/1/getThings()", response(b'{"value":["x",{"mobilePhone":"%b"}]}' % SECRET)),
    ("/v1.0/users/1/getThings()", response(b'{"value":["%b"],"id":1}' % SECRET)),
    ("/v1.0/users/1/report", response(CSV, b"text/csv")),
    ("/v1.0/users/1/report/$value", response(CSV, b"text/plain")),
    ("/v1.0/users/1/report/$value", response(CSV, b"application/octet-stream")),
    ("/v1.0/users/1/photo/$value", response(OBJECT, b"image/jpeg")),
    ("/v1.0/users/1/photo/$value", response(OBJECT.decode().encode("utf-16"), b"image/jpeg")),
    ("/v1.0/users/1/photo/$value", response(b"<svg>%b</svg>" % SECRET, b"image/svg+xml")),
    ("/v1.0/users/1/photo/$value", response(OBJECT, b"text/plain")),
    ("/v1.0/users/1/displayName/$value", response(b"<a>%b</a>" % SECRET, b"text/plain")),
    ("/v1.0/users/1/displayName/$value", response(b"<a>%b</a>" % SECRET, b"application/xml")),
    ("/v1.0/users", response(OBJECT + b"\n" + OBJECT, b"application/x-ndjson")),
    ("/v1.0/users", response(b"--x\r\n\r\n" + OBJECT, b"multipart/mixed; boundary=x")),
    ("/v1.0/users", response(b'{"d":{"results":[%b]}}' % OBJECT, b"application/json;odata=verbose")),
    ("/v1.0/users", response(OBJECT, b"")),
    # Pictures recognised only by their type
    ("/v1.0/users/1/photo/$value", response(OBJECT + b"\xff", b"image/jpeg")),
    ("/v1.0/users/1/photo/$value", response(LATIN_1, b"image/jpeg")),
    ("/v1.0/users/1/photo/$value", response(gzip.compress(OBJECT), b"image/png")),
    ("/v1.0/users/1/photo/$value", response(LATIN_1, b"application/octet-stream")),
    # Texts with more than one value
    ("/v1.0/users/1/report/$value", response(OBJECT.decode().encode("utf-16"), b"text/plain")),
    ("/v1.0/users/1/report/$value", response(OBJECT.decode().encode("utf-16-le"), b"text/plain")),
    ("/v1.0/users/1/report/$value", response(b"mobilePhone=%b" % SECRET, b"text/plain")),
    ("/v1.0/users/1/report/$value", response(b"Kim;%b" % SECRET, b"text/plain")),
    ("/v1.0/users/1/report/$value", response(b"Kim\x0b%b" % SECRET, b"text/plain")),
    # Entities, collections and references
    ("/v1.0/me/$value", response(SECRET, b"text/plain")),
    ("/v1.0/users/$value", response(SECRET, b"text/plain")),
    ("/v1.0/users/1/manager/$value", response(SECRET, b"text/plain")),
    ("/v1.0/things/ada", response(b'{"value":"%b"}' % SECRET)),
    ("/v1.0/things/ada", response(b'["%b"]' % SECRET)),
    ("/v1.0/things/ada/$value", response(SECRET, b"text/plain")),
    ("/v1.0/users/1/things/ada", response(b'"%b"' % SECRET)),
    ("/v1.0/users/1/directReports", response(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/users/1/drive", response(b'{"value":"%b"}' % SECRET)),
    ("/v1.0/users/delta", response(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/users/delta()", response(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/users/1/microsoft.graph.user", response(b'{"value":"%b"}' % SECRET)),
    ("/v1.0/groups/1/members/microsoft.graph.user", response(b'{"value":["%b"]}' % SECRET)),
    ("/v1.0/groups/1/members/2/microsoft.graph.user", response(b'{"value":"%b"}' % SECRET)),
    ("/v1.0/users/1/manager/$ref", response(b'{"value":"%b"}' % SECRET)),
    ("/v1.0/users/$query", response(b'{"value":["%b"]}' % SECRET)),
    # Objects in places that no other service uses
    ("/v1.0/users", response(b'{"d":{"results":[%b]}}' % OBJECT)),
    ("/v1.0/users", response(b'\xef\xbb\xbf{ "d" : [%b]}' % OBJECT)),
    ("/v1.0/users/1", response(b'{"d":%b}' % OBJECT)),
    ("/v1.0/users", response(b'{"value":{"value":[%b]}}' % OBJECT)),
]


@pytest.mark.parametrize("transforms", [STRIP, ALLOW], ids=["strip", "allow"])
@pytest.mark.parametrize(("target", "sent"), MAY_HOLD)
async def test_what_may_hold_a_hidden_property_never_passes(
    tmp_path: Path, transforms: str, target: str, sent: bytes
) -> None:
    async with data_path(responding(sent), tmp_path, rules(transforms, "/v1.0/**")) as proxy:
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
        peer.send(response(b'{"responses":[%b]}' % sent.encode()))

    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    async with data_path(script, tmp_path, rules(STRIP)) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        report = {each["id"]: each for each in reply.json()["responses"]}
        assert [report[str(at)]["status"] for at in range(5)] == [each[4] for each in parts]
        assert report["0"]["body"] == "NDI="
        assert report["4"]["body"] == base64.b64encode(PICTURE).decode()


MAY_HOLD_IN_PARTS = [
    ("/users/1/photo/$value", "image/jpeg", OBJECT.decode()),
    ("/users/1/photo/$value", "image/jpeg", json.dumps(base64.b64encode(LATIN_1).decode())),
    ("/users/1/photo/$value", "text/plain", json.dumps(base64.b64encode(OBJECT).decode())),
    ("/users/1/report/$value", "text/plain", json.dumps(f"mobilePhone={SECRET.decode()}")),
    ("/me/$value", "text/plain", json.dumps(SECRET.decode())),
    ("/things/ada", "application/json", json.dumps(SECRET.decode())),
    ("/users/1/directReports", "application/json", json.dumps({"value": [SECRET.decode()]})),
    ("/users/1/microsoft.graph.user", "application/json", json.dumps({"value": SECRET.decode()})),
    ("/users", "application/json", (b'{"d":{"results":[%b]}}' % OBJECT).decode()),
    ("/users", "application/json;odata=verbose", (b'{"d":%b}' % OBJECT).decode()),
    ("/users", "application/json", (b'{"value":{"value":[%b]}}' % OBJECT).decode()),
    ("/users", "text/csv", json.dumps(CSV.decode())),
    ("/users", "application/octet-stream", OBJECT.decode()),
]


@pytest.mark.parametrize("transforms", [STRIP, ALLOW], ids=["strip", "allow"])
async def test_no_part_of_a_batch_may_hold_a_hidden_property(tmp_path: Path, transforms: str) -> None:
    responses = ",".join(
        f'{{"id":"{at}","status":200,"headers":{{"Content-Type":"{kind}"}},"body":{body}}}'
        for at, (_, kind, body) in enumerate(MAY_HOLD_IN_PARTS)
    )
    requests = [
        {"id": str(at), "method": "GET", "url": url} for at, (url, _, _) in enumerate(MAY_HOLD_IN_PARTS)
    ]
    body = json.dumps({"requests": requests}).encode()
    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)

    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        asked = await peer.body(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        kept = {each["id"] for each in json.loads(asked)["requests"]}
        left = [each for each in json.loads(f"[{responses}]") if each["id"] in kept]
        peer.send(response(json.dumps({"responses": left}).encode()))

    async with data_path(script, tmp_path, rules(transforms, "/v1.0/**")) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        report = reply.json()["responses"]
        assert len(report) == len(MAY_HOLD_IN_PARTS)
        for each in report:
            assert SECRET.decode() not in json.dumps(each)
            assert each["status"] in (403, 502) or (transforms == ALLOW and each["body"] == {})


async def test_an_action_with_the_name_of_a_hidden_property_returns_nothing(tmp_path: Path) -> None:
    """A response rule hides the property, so the proxy decides only after the response has arrived."""
    text = (
        rules(STRIP).replace("id: hide\n", "id: hide\n    when: response\n")
        + """\
    conditions: [{status: true, at_least: 200}]
"""
    )
    async with data_path(responding(response(b'{"value":"%b"}' % SECRET)), tmp_path, text) as proxy:
        reply = await ask(proxy, "/v1.0/users/1/mobilePhone", "POST")
        assert (reply.status, SECRET in reply.body) == (403, False)
