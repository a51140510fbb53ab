"""Tests of `until`, `body_only` and `items` on the data path, through real sockets."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.bytes.data_path import data_path, ok, responding
from tests.bytes.test_batches import batch, part, upstream_batches

GRANTS = """
version: 1
name: test
rules:
  - id: ended
    match: {path: [/v1.0/drives]}
    until: 2020-01-31T00:00:00Z
    verdict: allow
  - id: lasting
    match: {path: [/v1.0/sites]}
    until: 2998-01-31T00:00:00+01:00
    verdict: allow
"""


async def test_a_grant_that_has_ended_lets_nothing_through(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, GRANTS) as proxy:
        assert (await proxy.ask(proxy.request("/v1.0/drives"))).status == 403
        assert (await proxy.ask(proxy.request("/v1.0/sites"))).status == 200
    assert [(event["verdict"], event["ruleId"]) for event in proxy.events()] == [
        ("block", "default"),
        ("allow", "lasting"),
    ]


TITLES = """
version: 1
name: test
rules:
  - id: no-other
    match: {methods: [PATCH], path: ["/v1.0/groups/{id}"]}
    body_only: [description]
    verdict: block
  - id: groups
    match: {path: ["/v1.0/groups/{id}"]}
    verdict: allow
  - id: titles
    match: {methods: [PATCH], path: ["/v1.0/users/{id}"]}
    body_only: [jobTitle, department]
    verdict: allow
"""
JSON = b"Content-Type: application/json\r\nContent-Length: %d\r\n"
TYPE = {"Content-Type": "application/json"}
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [
        ("/v1.0/users/ada", b'{"jobTitle": "Captain", "DEPARTMENT": "Navy"}', 204),
        ("/v1.0/users/ada", b'{"jobTitle": "Captain", "accountEnabled": false}', 403),
        ("/v1.0/users/ada", b'{"jobTitle": "Captain", "account\\u0045nabled": false}', 403),
        ("/v1.0/users/ada", b"jobTitle=Captain", 400),
        ("/v1.0/users/ada", b"", 204),
        ("/v1.0/groups/g", b'{"description": "x"}', 204),
        ("/v1.0/groups/g", b'{"description": "x", "visibility": "Public"}', 403),
        ("/v1.0/groups/g", b'[{"visibility": "Public"}]', 403),
    ],
)
async def test_a_write_may_carry_the_listed_members_and_no_others(
    tmp_path: Path, target: str, body: bytes, status: int
) -> None:
    async with data_path(responding(NO_CONTENT), tmp_path, TITLES) as proxy:
        reply = await proxy.ask(proxy.request(target, "PATCH", JSON % len(body)), body[:9], body[9:])
        assert reply.status == status
        if status == 204:
            assert bytes(proxy.upstream.received[0]).endswith(b"\r\n\r\n" + body)
        else:
            assert proxy.upstream.received == []


async def test_a_body_that_is_too_large_to_look_into_is_refused(tmp_path: Path) -> None:
    async with data_path(responding(NO_CONTENT), tmp_path, TITLES, max_buffered_body=10) as proxy:
        head = proxy.request("/v1.0/users/ada", "PATCH", b"Transfer-Encoding: chunked\r\n")
        assert (await proxy.ask(head, b'b\r\n{"jobTitle"\r\n')).status == 413
        assert proxy.upstream.received == []


async def test_a_part_of_a_batch_may_carry_the_listed_members_and_no_others(tmp_path: Path) -> None:
    parts = [
        part("1", "/users/ada", "PATCH", headers=TYPE, body={"jobTitle": "Captain"}),
        part("2", "/users/ada", "PATCH", headers=TYPE, body={"jobTitle": "Captain", "mail": "x"}),
        part("3", "/users/ada", "PATCH", headers=TYPE, body=base64.b64encode(b'{"mail": "x"}').decode()),
        part("4", "/groups/g", "PATCH", headers=TYPE, body={"visibility": "Public"}),
    ]
    seen: list[Any] = []
    async with data_path(upstream_batches({"1": {"status": 204}}, seen), tmp_path, TITLES) as proxy:
        body = batch(*parts)
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", JSON % len(body)), body)
    assert {each["id"]: each["status"] for each in reply.json()["responses"]} == {
        "1": 204,
        "2": 403,
        "3": 403,
        "4": 403,
    }
    assert [each["id"] for each in seen[0]] == ["1"]


GUESTS = """
version: 1
name: test
rules:
  - id: guests
    match: {methods: [GET, PATCH], path: ["/v1.0/users", "/v1.0/users/delta", "/v1.0/users/{id}"]}
    verdict: filter
    transforms:
      strip_properties: [mail]
      items: {keep: [{property: userType, equals: Guest}]}
"""
NEXT = "https://graph.microsoft.com/v1.0/users?$skiptoken=x"
PAGE = (
    b'{"@odata.count":3,"@odata.nextLink":"%b","value":[{"id":"1","userType":"Member","mail":"m"},'
    b'{"id":"2", "userType":"Guest","mail":"g"},{"id":"3","@removed":{"reason":"deleted"}}]}' % NEXT.encode()
)
KEPT = b'{"@odata.nextLink":"%b","value":[{"id":"2", "userType":"Guest"}]}' % NEXT.encode()
MEMBER = b'{"id":"1","userType":"Member","mail":"m"}'
GUEST = b'{"id":"2","userType":"Guest"}'


async def test_only_items_that_are_kept_arrive_and_their_bytes_do_not_change(tmp_path: Path) -> None:
    async with data_path(responding(*[ok(PAGE)] * 4), tmp_path, GUESTS) as proxy:
        for target in ("/v1.0/users?$count=true", "/v1.0/users/delta", "/v1.0/users", "/v1.0/users"):
            reply = await proxy.ask(proxy.request(target))
            assert (reply.status, reply.body) == (200, KEPT)
        assert b"/v1.0/users?$count=true HTTP/1.1\r\n" in bytes(proxy.upstream.received[0])
    assert [event["transforms"] for event in proxy.events()] == [["strip:mail", "items"]] * 4


async def test_an_object_that_is_not_kept_is_not_found(tmp_path: Path) -> None:
    async with data_path(responding(ok(MEMBER), ok(GUEST)), tmp_path, GUESTS) as proxy:
        hidden = await proxy.ask(proxy.request("/v1.0/users/1"))
        shown = await proxy.ask(proxy.request("/v1.0/users/2"))
    assert hidden.status == 404
    error = hidden.json()["error"]
    assert (error["code"], set(error)) == ("itemNotFound", {"code", "message", "innerError"})
    assert b"Member" not in hidden.body
    assert (shown.status, shown.body) == (200, GUEST)
    found = proxy.events()[0]
    assert (found["status"], found["upstreamStatus"], found["verdict"]) == (404, 200, "filter")
    assert (found["ruleId"], found["reason"], found["transforms"]) == ("guests", "rule", ["items"])


async def test_a_write_that_has_been_done_shows_no_property_of_the_object(tmp_path: Path) -> None:
    async with data_path(responding(ok(MEMBER), NO_CONTENT), tmp_path, GUESTS) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users/1", "PATCH", JSON % 2), b"{}")
        assert (reply.status, reply.body) == (200, b"{}")
        reply = await proxy.ask(proxy.request("/v1.0/users/1", "PATCH", JSON % 2), b"{}")
        assert (reply.status, reply.body) == (204, b"")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1.0/users/$count"),
        ("HEAD", "/v1.0/users/1"),
        ("GET", "/v1.0/users/1/$value"),
        ("GET", "/v1.0/users/1/mail"),
    ],
)
async def test_what_tells_of_other_items_does_not_reach_the_upstream(
    tmp_path: Path, method: str, target: str
) -> None:
    async with data_path(
        responding(ok(b"3")),
        tmp_path,
        GUESTS.replace("rules:", "default: allow\nrules:").replace("methods: [GET, PATCH], ", ""),
    ) as proxy:
        response = await proxy.raw(proxy.request(target, method, b"Connection: close\r\n"))
        assert response.startswith(b"HTTP/1.1 403 ")
        assert proxy.upstream.received == []


async def test_a_condition_on_changes_does_not_reach_the_upstream_with_a_read(tmp_path: Path) -> None:
    """A 304 of the upstream would reveal that an object exists, although the filter hides the object."""
    unchanged = b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\n\r\n'
    fields = b'If-None-Match: "1"\r\nAccept: a/b\r\nIf-Modified-Since: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
    async with data_path(responding(ok(GUEST), NO_CONTENT, unchanged), tmp_path, GUESTS) as proxy:
        assert (await proxy.ask(proxy.request("/v1.0/users/2", "GET", fields))).status == 200
        write = proxy.request("/v1.0/users/2", "PATCH", b"If-None-Match: *\r\n" + JSON % 2)
        assert (await proxy.ask(write, b"{}")).status == 204
        reply = await proxy.ask(proxy.request("/v1.0/users/1"))
        assert (reply.status, reply.json()["error"]["code"]) == (502, "filterFailed")
        sent = b"".join(bytes(received) for received in proxy.upstream.received)
    read, written = sent.split(b"PATCH ")
    assert b"\r\nIf-" not in read
    assert b"\r\nAccept: a/b\r\n" in read
    assert b"\r\nIf-None-Match: *\r\n" in written


async def test_items_of_the_responses_within_a_batch(tmp_path: Path) -> None:
    seen: list[Any] = []
    users = [{"userType": "Member"}, {"userType": "Guest"}]
    responses: dict[str, dict[str, Any]] = {
        "1": {"status": 200, "body": {"@odata.count": 2, "value": users}},
        "2": {"status": 200, "body": {"id": "1", "userType": "Member"}},
        "3": {"status": 200, "body": {"id": "2", "userType": "Guest"}},
        "4": {"status": 304},
    }
    parts = batch(part("1", "/users"), part("2", "/users/1"), part("3", "/users/2"), part("4", "/users/3"))
    async with data_path(upstream_batches(responses, seen), tmp_path, GUESTS) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", JSON % len(parts)), parts)
    found = {each["id"]: (each["status"], each.get("body")) for each in reply.json()["responses"]}
    assert found["1"] == (200, {"value": [{"userType": "Guest"}]})
    assert (found["2"][0], found["2"][1]["error"]["code"]) == (404, "itemNotFound")
    assert found["3"] == (200, {"id": "2", "userType": "Guest"})
    assert found["4"][0] == 502
    events = {event["path"]: event for event in proxy.events()}
    assert events["/v1.0/users/1"]["transforms"] == ["items"]
    assert (events["/v1.0/users/1"]["status"], events["/v1.0/users/1"]["verdict"]) == (404, "filter")
