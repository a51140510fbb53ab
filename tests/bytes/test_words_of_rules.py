"""`until`, `body_only` and `items` on the data path, through real sockets."""

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
