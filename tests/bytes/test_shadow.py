"""Tests of a shadow ruleset, which is evaluated in addition to the active ruleset.

The audit event contains the verdict of the shadow ruleset. The shadow ruleset has no effect on the request or
its response.
"""

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.policy.canonical import Target
from proxy.policy.compile import CompiledRuleset, compile_ruleset
from proxy.policy.decision import Plan
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.server.callers.shadow import ShadowRules
from tests.bytes.data_path import (
    CLIENT_ID,
    DataPath,
    Reply,
    UpstreamPeer,
    data_path,
    ok,
    read_reply,
    responding,
)
from tests.bytes.test_batches import FIELDS, batch, part, upstream_batches

LIVE = """
version: 1
name: live
default: allow
rules:
  - {id: no-mail, match: {path: ["/v1.0/users/{id}/messages"]}, verdict: block}
"""
SHADOW = """
version: 1
name: next
default: block
rules:
  - {id: mail, match: {path: ["/v1.0/users/{id}/messages"]}, verdict: allow}
  - id: users
    match: {path: ["/v1.0/users"]}
    verdict: filter
    transforms: {strip_properties: [mobilePhone]}
  - {id: watched, match: {path: ["/v1.0/groups"]}, verdict: log_only}
  - {id: groups, match: {path: ["/v1.0/groups"]}, verdict: allow}
  - id: big-invitations
    match: {methods: [POST], path: ["/v1.0/invitations"]}
    conditions: [{body: invitedUserType, equals: Guest}]
    verdict: block
  - {id: invitations, match: {path: ["/v1.0/invitations"]}, verdict: allow}
  - {id: sites, match: {path: ["/v1.0/sites", "/v1.0/drives"]}, verdict: allow}
  - id: no-teapots
    when: response
    match: {path: ["/v1.0/sites"]}
    conditions: [{response_header: X-Kind, equals: teapot}]
    verdict: block
  - id: no-secret-drives
    when: response
    match: {path: ["/v1.0/drives"]}
    conditions: [{property: secret, equals: true}]
    verdict: block
"""


def try_out(proxy: DataPath, ruleset: str | None = SHADOW, rules: CompiledRuleset | None = None) -> None:
    """Give the application a shadow ruleset with version 9."""
    rules = rules or (compile_ruleset(parse_ruleset(ruleset)) if ruleset else None)
    book = proxy.context.rulebook
    shadow = None if rules is None else ShadowRules(rules, 9)
    caller = replace(book.callers[CLIENT_ID], shadow=shadow)
    proxy.context.use(replace(book, callers={CLIENT_ID: caller}))


def shadow_of(event: dict[str, Any]) -> tuple[Any, Any, Any]:
    return event["shadowVerdict"], event["shadowRuleId"], event["shadowRulesetVersion"]


async def asked(proxy: DataPath, *request: Any) -> tuple[Reply, dict[str, Any]]:
    reply = await proxy.ask(proxy.request(*request))
    return reply, proxy.events()[-1]


PHONE = b'{"value":[{"mobilePhone":"1"}]}'


async def test_the_event_says_what_the_shadow_would_have_said_and_the_response_does_not(
    tmp_path: Path,
) -> None:
    async with data_path(responding(ok(PHONE)), tmp_path, LIVE) as proxy:
        try_out(proxy)
        reply, event = await asked(proxy, "/v1.0/users")
        assert (reply.status, reply.body) == (200, PHONE)  # not filtered
        assert (event["verdict"], event["ruleId"], event["transforms"]) == ("allow", "default", [])
        assert shadow_of(event) == ("filter", "users", 9)
        reply, event = await asked(proxy, "/v1.0/teams")
        assert (reply.status, event["verdict"]) == (200, "allow")
        assert shadow_of(event) == ("block", "default", 9)  # what a switch to the shadow ruleset would block
        reply, event = await asked(proxy, "/v1.0/users/ada/messages")
        assert (reply.status, event["verdict"], event["ruleId"]) == (403, "block", "no-mail")
        assert shadow_of(event) == ("allow", "mail", 9)  # what it would allow
        _, event = await asked(proxy, "/v1.0/groups")
        assert shadow_of(event) == ("allow", "groups", 9)
        assert event["loggedRuleIds"] == []


async def test_without_a_shadow_the_event_says_nothing_of_one(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, LIVE) as proxy:
        _, event = await asked(proxy, "/v1.0/users")
        assert not {name for name in event if name.startswith("shadow")}
        try_out(proxy)
        _, event = await asked(proxy, "/v1.0/users")
        assert "shadowVerdict" in event
        try_out(proxy, None)
        _, event = await asked(proxy, "/v1.0/users")
        assert "shadowVerdict" not in event


INVITATION = json.dumps({"invitedUserType": "Guest"}).encode()
READS_BODY = """
version: 1
name: live
default: allow
rules:
  - id: no-nobody
    match: {path: ["/v1.0/invitations"]}
    conditions: [{body: invitedUserType, equals: Nobody}]
    verdict: block
"""


@pytest.mark.parametrize(
    ("live", "body", "expected"),
    [
        (LIVE, INVITATION, ("unknown", None, 9)),  # the body streams, and continues to
        (READS_BODY, INVITATION, ("block", "big-invitations", 9)),  # an active rule reads it in any case
        (LIVE, b"", ("allow", "invitations", 9)),
    ],
)
async def test_a_request_body_is_not_held_for_the_shadow(
    tmp_path: Path, live: str, body: bytes, expected: tuple[Any, ...]
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, live) as proxy:
        try_out(proxy)
        length = b"Content-Length: %d\r\n" % len(body)
        reply, event = await asked(proxy, "/v1.0/invitations", "POST", length, body)
        assert reply.status == 200
        assert shadow_of(event) == expected


@pytest.mark.parametrize(
    ("kind", "verdict", "rule"), [("pot", "allow", "sites"), ("teapot", "block", "no-teapots")]
)
async def test_response_rules_evaluate_status_and_headers(
    tmp_path: Path, kind: str, verdict: str, rule: str
) -> None:
    response = ok(b"{}", b"X-Kind: " + kind.encode())
    async with data_path(responding(response), tmp_path, LIVE) as proxy:
        try_out(proxy)
        reply, event = await asked(proxy, "/v1.0/sites")
        assert (reply.status, reply.body) == (200, b"{}")
        assert shadow_of(event) == (verdict, rule, 9)


async def test_a_response_is_not_held_for_the_shadow(tmp_path: Path) -> None:
    """The client receives the response's head and first bytes before the upstream has sent the rest."""
    rest = asyncio.Event()

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nabc")
        await rest.wait()
        peer.send(b"def")

    async with data_path(script, tmp_path, LIVE) as proxy:
        try_out(proxy)
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/drives"))
        assert (await reader.readuntil(b"abc")).startswith(b"HTTP/1.1 200 OK\r\n")
        rest.set()
        assert await reader.readexactly(3) == b"def"
        writer.close()
        assert shadow_of(proxy.events()[-1]) == ("unknown", None, 9)


async def test_parts_of_a_batch_are_tried_with_their_bodies_and_responses(tmp_path: Path) -> None:
    responses = {
        "1": {"status": 200, "body": {"secret": True}},
        "2": {"status": 200, "body": {"secret": False}},
        "3": {"status": 200, "body": {}},
    }
    seen: list[Any] = []
    json_type = {"Content-Type": "application/json"}
    body = batch(
        part("1", "/drives"),
        part("2", "/drives"),
        part("3", "/invitations", "POST", headers=json_type, body={"invitedUserType": "Guest"}),
        part("4", "/users/ada/messages"),
    )
    async with data_path(upstream_batches(responses, seen), tmp_path, LIVE) as proxy:
        try_out(proxy)
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        assert {each["id"]: each["status"] for each in reply.json()["responses"]} == {
            "1": 200, "2": 200, "3": 200, "4": 403,
        }  # fmt: skip
        events = proxy.events()
    (envelope,) = [event for event in events if event["parentRequestId"] is None]
    assert shadow_of(envelope) == ("allow", "default", 9)
    assert [shadow_of(event)[:2] for event in events if event is not envelope] == [
        ("block", "no-secret-drives"),
        ("allow", "sites"),
        ("block", "big-invitations"),
        ("allow", "mail"),
    ]


class Broken:
    def plan(self, method: str, target: Target) -> Plan:
        raise ZeroDivisionError("a fault of ours")


async def test_a_fault_in_the_shadow_is_told_once_and_never_felt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, LIVE) as proxy:
        try_out(proxy, rules=cast(CompiledRuleset, Broken()))
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                reply, event = await asked(proxy, "/v1.0/users")
                assert reply.status == 200
                assert shadow_of(event) == ("unknown", None, 9)
        assert len([record for record in caplog.records if "shadow ruleset" in record.message]) == 1


async def test_a_target_that_only_the_shadow_finds_ambiguous_is_a_block_of_its_own(tmp_path: Path) -> None:
    """An encoded slash makes the shadow ruleset block a request that the active ruleset allows."""
    rules = """
version: 1
name: next
default: allow
rules:
  - {id: no-keys, match: {path: ["/v1.0/drives/{id}/keys"]}, verdict: block}
"""
    async with data_path(responding(ok(b"{}")), tmp_path, LIVE) as proxy:
        try_out(proxy, rules)
        reply, event = await asked(proxy, "/v1.0/drives/a%2Fkeys")
        assert (reply.status, event["verdict"]) == (200, "allow")
        assert shadow_of(event) == ("block", None, 9)


async def test_many_requests_of_one_connection_keep_their_shadows_apart(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, LIVE) as proxy:
        try_out(proxy)
        reader, writer = await proxy.connect()
        paths = ["/v1.0/users", "/v1.0/teams", "/v1.0/groups"] * 3
        for path in paths:
            writer.write(proxy.request(path))
            assert (await read_reply(reader)).status == 200
        writer.close()
        report = [(event["path"], event["shadowVerdict"]) for event in proxy.events()]
    expected = {"/v1.0/users": "filter", "/v1.0/teams": "block", "/v1.0/groups": "allow"}
    assert report == [(path, expected[path]) for path in paths]
