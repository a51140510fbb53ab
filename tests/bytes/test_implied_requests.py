"""Tests, on real sockets, of requests that another request implies, for example by `$expand`.

The tests check the removed properties, the refused requests, the bodies that the proxy reads, and the audit
events.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bytes.data_path import UpstreamPeer, data_path, ok, responding

RULES = """
version: 1
name: test
default: block
rules:
  - {id: users, match: {path: ["/v1.0/users", "/v1.0/users/{id}"]}, verdict: allow}
  - id: managers
    match: {methods: [GET], path: ["/v1.0/users/{id}/manager"]}
    verdict: filter
    transforms: {strip_properties: [mobilePhone]}
  - {id: no-members, match: {path: ["/v1.0/groups/{id}/members/**"]}, verdict: block}
  - {id: groups, match: {path: ["/v1.0/groups/**"]}, verdict: allow}
  - {id: hooks, match: {methods: [POST], path: [/v1.0/subscriptions]}, verdict: allow}
"""
JSON = b"Content-Type: application/json\r\n"


def sent(body: bytes, fields: bytes = JSON) -> bytes:
    return fields + b"Content-Length: %d\r\n" % len(body)


async def test_what_is_hidden_of_an_expanded_object_is_cut_out_and_nothing_else(tmp_path: Path) -> None:
    body = (
        b'{"value": [ {"id":1.50,"mobilePhone":"a","manager" : {"id":"m", "mobilePhone":"b"} },'
        b' {"manager":null}]}'
    )
    kept = body.replace(b', "mobilePhone":"b"', b"")
    async with data_path(responding(ok(body)), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users?$expand=manager"))
        assert (reply.status, reply.body) == (200, kept)
        [event] = proxy.events()
        assert (event["verdict"], event["ruleId"], event["reason"]) == (
            "filter",
            "managers",
            "impliedRequest",
        )
        assert event["ruleIds"] == ["users", "managers"]
        assert event["transforms"] == ["strip:manager.mobilePhone"]
        assert event["impliedRequest"] == "$expand: GET /v1.0/users/{any}/manager"


async def test_a_refusal_for_an_implied_request_reaches_no_upstream(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users/u?$expand=memberOf"))
        assert (reply.status, reply.json()["error"]["code"]) == (403, "policyBlocked")
        bind = b'{"displayName":"x","members@odata.bind":["u"]}'
        reply = await proxy.ask(proxy.request("/v1.0/groups", "POST", sent(bind), bind))
        assert reply.status == 403
        subscription = b'{"resource":"groups/g/members"}'
        reply = await proxy.ask(
            proxy.request("/v1.0/subscriptions", "POST", sent(subscription), subscription)
        )
        assert reply.status == 403
        events = [
            (event["ruleId"], event["upstreamStatus"], event["impliedRequest"]) for event in proxy.events()
        ]
        assert events == [
            ("default", None, "$expand: GET /v1.0/users/u/memberof"),
            ("no-members", None, "members@odata.bind: POST /v1.0/groups/{any}/members/$ref"),
            ("no-members", None, "resource: GET /v1.0/groups/g/members"),
        ]


async def test_an_event_without_an_implied_request_names_none(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        await proxy.ask(proxy.request("/v1.0/users?$top=1"))
        assert "impliedRequest" not in proxy.events()[0]


@pytest.mark.parametrize(
    ("fields", "status"),
    [(b"Content-Type: image/png\r\n", 200), (JSON, 413), (b"", 413)],
)
async def test_bytes_pass_unread_and_json_is_read_within_the_limit(
    tmp_path: Path, fields: bytes, status: int
) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        await peer.body(300_000)
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, RULES, max_buffered_body=1000) as proxy:
        body = b"x" * 300_000
        head = proxy.request("/v1.0/groups/g", "PUT", sent(body, fields))
        reply = await proxy.ask(head + body if status == 200 else head)
        assert reply.status == status


async def test_a_body_that_was_read_arrives_unchanged(tmp_path: Path) -> None:
    received: list[bytes] = []
    body = b'{ "displayName" : "x",  "n":1.00 }'

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        received.append(await peer.body(len(body)))
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/groups", "POST", sent(body), body))
        assert (reply.status, received) == (200, [body])


async def test_each_part_of_a_batch_implies_its_own(tmp_path: Path) -> None:
    parts = [
        {"id": "1", "method": "GET", "url": "/users?$expand=manager"},
        {"id": "2", "method": "GET", "url": "/users?$expand=memberOf"},
        {
            "id": "3",
            "method": "PATCH",
            "url": "/groups/g",
            "headers": {"Content-Type": "application/json"},
            "body": {"members@odata.bind": ["u"]},
        },
    ]
    body = json.dumps({"requests": parts}).encode()
    first = {"value": [{"manager": {"id": "m", "mobilePhone": "b"}}]}
    response = {"responses": [{"id": "1", "status": 200, "headers": {}, "body": first}]}
    async with data_path(responding(ok(json.dumps(response).encode())), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", sent(body), body))
        by_id = {each["id"]: each for each in reply.json()["responses"]}
        assert by_id["1"]["body"] == {"value": [{"manager": {"id": "m"}}]}
        assert (by_id["2"]["status"], by_id["3"]["status"]) == (403, 403)
