"""Tests that an audit event describes the response that was sent, not the response that was planned."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.rules.stops import Stops
from tests.bytes.data_path import DataPath, UpstreamPeer, data_path, ok, responding, until
from tests.bytes.test_batches import FIELDS, batch, part, upstream_batches
from tests.bytes.test_shadow import try_out

RULES = """
version: 1
name: test
default: block
rules:
  - {id: watch, match: {path: ["/v1.0/**"]}, verdict: log_only}
  - id: phones
    match: {path: ["/v1.0/users", "/v1.0/users/{id}"]}
    verdict: filter
    transforms: {strip_properties: [mobilePhone, manager.mail, photo]}
  - id: listed
    match: {path: ["/v1.0/groups/**"]}
    verdict: filter
    transforms: {allow_properties: [id, displayName]}
  - {id: sites, match: {path: ["/v1.0/sites/**"]}, verdict: allow}
  - id: mails
    when: response
    match: {path: ["/v1.0/users/{id}"]}
    conditions: [{response_header: X-Class, equals: internal}]
    verdict: filter
    transforms: {strip_properties: [mail]}
  - id: no-secrets
    when: response
    match: {path: ["/v1.0/**"]}
    conditions: [{response_header: X-Class, equals: secret}]
    verdict: block
  - id: sites-phones
    when: response
    match: {path: ["/v1.0/sites/{id}"]}
    verdict: filter
    transforms: {strip_properties: [phone]}
"""

PHONE = b'{"id":"1","mobilePhone":"+47"}'


def response(status: str, body: bytes, *fields: bytes) -> bytes:
    return ok(body, *fields).replace(b"200 OK", status.encode())


async def event_of(proxy: DataPath, target: str, method: str = "GET") -> dict[str, Any]:
    if method == "HEAD":
        await proxy.raw(proxy.request(target, method, b"Connection: close\r\n"))
    else:
        await proxy.ask(proxy.request(target, method))
    return proxy.events()[-1]


@pytest.mark.parametrize(
    ("given", "removed"),
    [
        (ok(PHONE), ["strip:mobilePhone"]),
        (ok(b'{"photo@odata.mediaReadLink":"x","id":1}'), ["strip:photo"]),
        (ok(b'{"value":[{"id":1},{"manager":{"mail":2},"mobilePhone":3}]}'),
         ["strip:mobilePhone", "strip:manager.mail"]),
        (ok(gzip.compress(PHONE), b"Content-Encoding: gzip"), ["strip:mobilePhone"]),
        (ok(b'{"id":"1"}'), []),
        (ok(b'{"value":[]}'), []),
        (response("404 Not Found", PHONE), []),
        (response("500 Broken", PHONE), []),
        (response("503 Busy", PHONE), []),
        (response("304 Not Modified", b"").replace(b"Content-Length: 0\r\n", b""), []),
        (b"HTTP/1.1 204 No Content\r\n\r\n", []),
        (ok(PHONE, b"X-Class: secret"), []),  # a blocked response
        (ok(PHONE + b"}"), []),  # a withheld response
        (ok(PHONE).replace(b"Content-Length: ", b"Content-Length: 9"), []),  # a truncated response
    ],
)  # fmt: skip
async def test_transforms_name_what_was_removed(tmp_path: Path, given: bytes, removed: list[str]) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(given)
        peer.writer.close()

    async with data_path(script, tmp_path, RULES) as proxy:
        event = await event_of(proxy, "/v1.0/users/ada")
        assert event["transforms"] == removed
        assert event["ruleIds"][0] == "phones"


async def test_a_head_request_had_nothing_removed(tmp_path: Path) -> None:
    async with data_path(responding(ok(PHONE).partition(b"{")[0]), tmp_path, RULES) as proxy:
        event = await event_of(proxy, "/v1.0/users/ada", "HEAD")
        assert (event["status"], event["verdict"], event["transforms"]) == (200, "filter", [])


async def test_an_allow_list_is_named_if_it_removed_something(tmp_path: Path) -> None:
    more, exact = ok(b'{"id":1,"displayName":2,"mail":3}'), ok(b'{"id":1,"displayName":2}')
    async with data_path(responding(more), tmp_path, RULES) as proxy:
        event = await event_of(proxy, "/v1.0/groups/1")
        assert event["transforms"] == ["allow:id", "allow:displayName"]
    (tmp_path / "exact").mkdir()
    async with data_path(responding(exact), tmp_path / "exact", RULES) as proxy:
        event = await event_of(proxy, "/v1.0/groups/1")
        assert (event["verdict"], event["transforms"]) == ("filter", [])


async def test_a_client_that_left_was_given_nothing(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(ok(PHONE)[:-1])
        asked.set()
        await peer.reader.read()

    async with data_path(script, tmp_path, RULES) as proxy:
        _, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/users/ada"))
        await asked.wait()
        writer.transport.abort()
        await until(proxy.events)
        (event,) = proxy.events()
        assert (event["reason"], event["status"], event["transforms"]) == ("clientAborted", 499, [])
        assert event["responseBytes"] == 0


@pytest.mark.parametrize(
    ("target", "given", "rules"),
    [
        ("/v1.0/users/ada", ok(PHONE), ["phones"]),
        ("/v1.0/users/ada", ok(PHONE, b"X-Class: internal"), ["phones", "mails"]),
        ("/v1.0/users/ada", ok(PHONE, b"X-Class: secret"), ["phones", "no-secrets"]),
        ("/v1.0/sites/1/lists", ok(b"{}", b"X-Class: secret"), ["sites", "no-secrets"]),
        ("/v1.0/sites/1", ok(b"{}"), ["sites", "sites-phones"]),
        ("/v1.0/sites/1/lists", response("502 Bad", b"{}", b"X-Class: secret"), ["sites", "no-secrets"]),
        # Hidden properties that the path or the query names
        ("/v1.0/users/ada/mobilePhone", ok(b"{}"), ["phones"]),
        ("/v1.0/users?$filter=mobilePhone%20eq%20'1'", ok(b"{}"), ["phones"]),
        ("/v1.0/sites/1/phone", ok(b"{}"), ["sites", "sites-phones"]),
        ("/v1.0/teams", ok(b"{}"), ["default"]),
    ],
)
async def test_rule_ids_name_every_rule_that_took_part(
    tmp_path: Path, target: str, given: bytes, rules: list[str]
) -> None:
    async with data_path(responding(given), tmp_path, RULES) as proxy:
        event = await event_of(proxy, target)
        assert event["ruleIds"] == rules
        assert event["ruleId"] == rules[-1]
        assert event["loggedRuleIds"] == ["watch"]


async def test_where_only_the_log_matched_its_rule_is_the_one(tmp_path: Path) -> None:
    rules = "version: 1\nname: test\ndefault: allow\nrules:\n"
    rules += '  - {id: watch, match: {path: ["/**"]}, verdict: log_only}\n'
    async with data_path(responding(ok(b"{}")), tmp_path, rules) as proxy:
        event = await event_of(proxy, "/v1.0/users")
        assert (event["verdict"], event["ruleId"], event["ruleIds"]) == ("log_only", "watch", ["watch"])


async def test_a_request_that_no_rule_evaluated_names_none(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        event = await event_of(proxy, "/v1.0/users/%00")
        assert (event["ruleId"], event["ruleIds"]) == (None, [])


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("fields", "trace"),
    [
        (f"traceparent: 00-{TRACE}-{PARENT}-01\r\n", TRACE),
        (f"Traceparent:  00-{TRACE}-{PARENT}-00 \r\n", TRACE),
        (f"traceparent: 00-{TRACE}-{PARENT}-01\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n", None),
        (f"traceparent: 00-{TRACE.upper()}-{PARENT}-01\r\n", None),
        ("", None),
    ],
)
async def test_the_event_has_the_trace_that_the_request_belongs_to(
    tmp_path: Path, fields: str, trace: str | None
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        await proxy.ask(proxy.request("/v1.0/users", fields=fields.encode()))
        (event,) = proxy.events()
        assert event["traceId"] == trace
        assert b"raceparent" in proxy.upstream.heads[0] or not fields


async def test_a_request_that_is_refused_by_its_head_keeps_its_trace(tmp_path: Path) -> None:
    trace = f"traceparent: 00-{TRACE}-{PARENT}-01\r\n".encode()
    for fields, wanted in ((trace, TRACE), (trace * 2, None)):
        (tmp_path / str(len(fields))).mkdir()
        async with data_path(responding(ok(b"{}")), tmp_path / str(len(fields)), RULES) as proxy:
            assert (await proxy.ask(proxy.request("/v1.0/users", "BREW", fields))).status == 400
            (event,) = proxy.events()
            assert (event["traceId"], event["ruleIds"], event["transforms"]) == (wanted, [], [])


# Sub-requests of a batch


async def events_of_batch(proxy: DataPath, *parts: dict[str, Any], fields: bytes = b"") -> list[Any]:
    body = batch(*parts)
    await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields + FIELDS % len(body), body))
    return [event for event in proxy.events() if event["parentRequestId"]]


async def test_each_part_of_a_batch_names_what_was_removed_from_it(tmp_path: Path) -> None:
    responses: dict[str, dict[str, Any]] = {
        "1": {"status": 200, "body": {"id": "u", "mobilePhone": "1"}},
        "2": {"status": 404, "body": {"mobilePhone": "1"}},
        "3": {"status": 200, "body": {"id": "u"}},
        "4": {"status": 200, "body": {"id": "u", "mobilePhone": "1"}, "headers": {"X-Class": "secret"}},
    }
    trace = f"00-{TRACE}-{PARENT}-01"
    own = {"traceparent": trace.replace("4736", "4737")}
    async with data_path(upstream_batches(responses, []), tmp_path, RULES) as proxy:
        parts = [part(each, "/users/ada", headers=own if each == "2" else {}) for each in responses]
        events = await events_of_batch(proxy, *parts, fields=f"traceparent: {trace}\r\n".encode())
        assert [event["transforms"] for event in events] == [["strip:mobilePhone"], [], [], []]
        assert [event["ruleIds"] for event in events] == [["phones"]] * 3 + [["phones", "no-secrets"]]
        assert [event["traceId"] for event in events] == [TRACE, TRACE[:-1] + "7", TRACE, TRACE]


async def test_parts_of_a_batch_that_was_withheld_had_nothing_removed(tmp_path: Path) -> None:
    responses = [
        {"id": "1", "status": 200, "body": {"mobilePhone": "1"}},
        {"id": "2", "status": 404, "body": {}},
        {"id": "not-asked-for", "status": 200},
    ]
    given = ok(json.dumps({"responses": responses}).encode())
    async with data_path(responding(given), tmp_path, RULES) as proxy:
        names = ("1", "2", "3")
        events = await events_of_batch(proxy, *[part(each, "/users/ada") for each in names])
        assert [event["transforms"] for event in events] == [[], [], []]
        assert [event["status"] for event in events] == [502, 502, 502]
        # what the upstream responded to each; the last one got no response
        assert [event["upstreamStatus"] for event in events] == [200, 404, None]


async def test_parts_that_an_operator_stopped_are_blocked_by_no_rule(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        asked.set()
        await peer.reader.read()

    async with data_path(script, tmp_path, RULES) as proxy:
        body = batch(part("1", "/users/ada"), part("2", "/teams"))
        _, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        await asked.wait()
        for connection in proxy.connections:
            connection.stop(Stops(everything=True))
        await until(proxy.events)
        events = [event for event in proxy.events() if event["parentRequestId"]]
        assert [(event["verdict"], event["ruleIds"]) for event in events] == [
            ("block", []),
            ("block", ["default"]),
        ]
        writer.close()


# Facts of the upstream's response


async def test_a_response_that_was_not_taken_is_not_the_upstream_s_response(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        if peer.number == 1:
            peer.send(b"HTTP/1.1 401 No\r\nrequest-id: first\r\nContent-Length: 0\r\n\r\n")
        peer.writer.close()

    async with data_path(script, tmp_path, RULES) as proxy:
        request = asyncio.create_task(proxy.ask(proxy.request("/v1.0/users")))
        await proxy.credential_asked.wait()
        proxy.credential.renew("second", asyncio.get_running_loop().time() + 3600, 2)
        assert (await request).status == 502
        (event,) = proxy.events()
        assert event["reason"] == "upstreamUnreachable"
        assert (event["upstreamStatus"], event["upstreamRequestId"]) == (None, None)


SHADOW = """
version: 1
name: next
default: allow
rules:
  - {id: no-faults, when: response, match: {path: ["/**"]}, conditions: [{status: true, at_least: 500}],
     verdict: block}
"""


async def test_a_shadow_evaluates_a_response_that_becomes_a_502_too(tmp_path: Path) -> None:
    async with data_path(responding(response("500 Broken", b"{}")), tmp_path, RULES) as proxy:
        try_out(proxy, SHADOW)
        event = await event_of(proxy, "/v1.0/sites/1/lists")
        assert (event["status"], event["upstreamStatus"]) == (502, 500)
        assert (event["shadowVerdict"], event["shadowRuleId"]) == ("block", "no-faults")
