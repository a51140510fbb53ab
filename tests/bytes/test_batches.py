"""Tests of `$batch` through real sockets: a batch cannot bypass a ruleset."""

import asyncio
import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import brotli
import pytest

from proxy.ipc.counters import BYTES_IN, BYTES_OUT
from tests.bytes.data_path import Script, UpstreamPeer, data_path, ok, responding

RULES = """
version: 1
name: test
default: block
rules:
  - {id: no-mail, match: {path: ["/v1.0/users/{id}/messages/**"]}, verdict: block}
  - id: no-phones
    match: {path: ["/v1.0/users/{id}"]}
    verdict: filter
    transforms: {strip_properties: [mobilePhone]}
  - {id: groups, match: {path: ["/v1.0/groups/**"]}, verdict: allow}
"""


def part(number: str, url: str, method: str = "GET", **more: Any) -> dict[str, Any]:
    return {"id": number, "method": method, "url": url, **more}


def batch(*parts: dict[str, Any]) -> bytes:
    return json.dumps({"requests": parts}).encode()


async def parts_of_batch(peer: UpstreamPeer) -> list[dict[str, Any]]:
    """Wait for the next batch at the upstream, and return its sub-requests."""
    head = await peer.head()
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await peer.body(length)
    if b"gzip" in head.lower().split(b"content-encoding: ")[-1][:6]:
        body = gzip.decompress(body)
    parts: list[dict[str, Any]] = json.loads(body)["requests"]
    return parts


def upstream_batches(of_parts: dict[str, dict[str, Any]], seen: list[Any]) -> Script:
    """Start an upstream that responds to the sub-requests in reverse order, as the real upstream may."""

    async def script(peer: UpstreamPeer) -> None:
        while True:
            asked = await parts_of_batch(peer)
            seen.append(asked)
            responses = [{"id": each["id"], **of_parts[each["id"]]} for each in reversed(asked)]
            peer.send(ok(json.dumps({"responses": responses}).encode()))

    return script


FIELDS = b"Content-Type: application/json\r\nContent-Length: %d\r\n"


async def test_each_part_is_evaluated_as_if_it_came_alone(tmp_path: Path) -> None:
    seen: list[Any] = []
    responses = {
        "2": {"status": 200, "body": {"id": "u", "mobilePhone": "+47 1"}},
        "4": {"status": 404, "body": {"error": {"code": "x"}}},
    }
    body = batch(
        part("1", "/users/ada/messages"),
        part("2", "/users/ada"),
        part("3", "/sites"),
        part("4", "/groups/9"),
        part("5", "/groups/8", dependsOn=["3"]),
    )
    async with data_path(upstream_batches(responses, seen), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        assert reply.status == 200
        assert [each["id"] for each in seen[0]] == ["2", "4"]
        parts = {each["id"]: each for each in reply.json()["responses"]}
        assert {key: value["status"] for key, value in parts.items()} == {
            "1": 403, "2": 200, "3": 403, "4": 404, "5": 424,
        }  # fmt: skip
        assert parts["1"]["body"]["error"]["ruleId"] == "no-mail"
        assert parts["2"]["body"] == {"id": "u"}
        assert b"+47" not in reply.body
        events = {(e["path"], e["status"], e["verdict"], e["ruleId"]): e for e in proxy.events()}
        envelope = events.pop(("/v1.0/$batch", 200, "allow", "default"))
        assert set(events) == {
            ("/v1.0/users/ada/messages", 403, "block", "no-mail"),
            ("/v1.0/users/ada", 200, "filter", "no-phones"),
            ("/v1.0/sites", 403, "block", "default"),
            ("/v1.0/groups/9", 404, "allow", "groups"),
            ("/v1.0/groups/8", 424, "block", None),
        }
        assert {e["parentRequestId"] for e in events.values()} == {envelope["requestId"]}
        assert len({e["id"] for e in events.values()}) == 5


async def test_the_response_of_a_batch_is_evaluated_by_what_names_the_batch(tmp_path: Path) -> None:
    rules = """
    version: 1
    name: responses
    default: allow
    rules:
      - id: noted
        when: response
        match: {path: ["/v1.0/$batch"]}
        conditions: [{status: true, equals: 200}]
        verdict: log_only
      - id: secret
        when: response
        match: {path: ["/v1.0/$batch"]}
        conditions: [{response_header: X-Class, equals: secret}]
        verdict: block
      - id: everywhere
        when: response
        match: {path: ["/v1.0/**"]}
        verdict: filter
        transforms: {strip_properties: [responses]}
    """
    body = batch(part("1", "/users/ada"))
    response = json.dumps({"responses": [{"id": "1", "status": 200, "body": {"id": "u"}}]}).encode()
    script = responding(ok(response), ok(response, b"X-Class: secret"))
    async with data_path(script, tmp_path, rules) as proxy:
        request = proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body)
        passed, blocked = await proxy.ask(request), await proxy.ask(request)
        assert (passed.status, passed.body) == (200, response)
        assert (blocked.status, blocked.json()["error"]["ruleId"]) == (403, "secret")
        first, second = [event for event in proxy.events() if event["parentRequestId"] is None]
        # Filters apply to the sub-requests: nothing was removed from the outer response.
        assert (first["verdict"], first["loggedRuleIds"], first["transforms"]) == ("allow", ["noted"], [])
        assert (second["verdict"], second["ruleId"], second["status"]) == ("block", "secret", 403)


async def test_a_part_s_event_says_what_became_of_it(tmp_path: Path) -> None:
    responses = {
        "1": {"status": 200, "body": {"id": "u", "mobilePhone": "1"}, "headers": {"request-id": "of-1"}},
        "2": {"status": 404, "body": {}},
    }
    parts = [
        part("1", "/users/ada", headers={"client-request-id": "mine"}),
        part("2", "/users/alan"),
    ]
    body = batch(*parts)
    async with data_path(upstream_batches(responses, []), tmp_path, RULES) as proxy:
        await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        filtered, missing = [event for event in proxy.events() if event["parentRequestId"]]
        assert (filtered["clientRequestId"], filtered["upstreamRequestId"]) == ("mine", "of-1")
        assert (filtered["status"], missing["status"]) == (200, 404)
        assert missing["upstreamRequestId"] is None
        values = proxy.context.counters.values
        (envelope,) = [event for event in proxy.events() if not event["parentRequestId"]]
        assert (values[BYTES_IN], values[BYTES_OUT]) == (len(body), envelope["responseBytes"])


async def test_a_part_that_was_asked_for_in_vain_says_so(tmp_path: Path) -> None:
    body = batch(part("1", "/users/ada"), part("2", "/groups/1"))
    response = b"HTTP/1.1 429 Slow\r\nrequest-id: of-all\r\nContent-Length: 2\r\n\r\n{}"
    async with data_path(responding(response), tmp_path, RULES) as proxy:
        assert (
            await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        ).status == 429
        for event, rule in zip(proxy.events()[:2], ("no-phones", "groups"), strict=True):
            assert (event["status"], event["upstreamStatus"], event["reason"]) == (429, 429, "rule")
            assert (event["ruleId"], event["upstreamRequestId"]) == (rule, "of-all")


async def test_a_smaller_batch_has_no_digest_of_the_whole_one(tmp_path: Path) -> None:
    body = batch(part("1", "/groups/1"), part("2", "/sites"))
    digests = b"Content-MD5: Q2hlY2s=\r\nDigest: x\r\nContent-Digest: y\r\n"
    async with data_path(responding(ok(b'{"responses":[]}')), tmp_path, RULES) as proxy:
        await proxy.ask(proxy.request("/v1.0/$batch", "POST", digests + FIELDS % len(body), body))
        assert b"igest" not in proxy.upstream.heads[0]
        assert b"MD5" not in proxy.upstream.heads[0]


async def test_a_body_in_base64_hides_nothing_from_the_rules(tmp_path: Path) -> None:
    rules = """
    version: 1
    name: bodies
    default: allow
    rules:
      - id: no-admins
        match: {methods: [POST], path: ["/v1.0/users"]}
        conditions: [{body: admin, equals: true}]
        verdict: block
      - id: nothing-secret
        when: response
        match: {path: ["/v1.0/files/*"]}
        conditions: [{property: secret, equals: true}]
        verdict: block
    """

    def post(number: str, body: Any, kind: str = "application/json") -> dict[str, Any]:
        return part(number, "/users", "POST", headers={"Content-Type": kind}, body=body)

    def coded(text: bytes) -> str:
        return base64.urlsafe_b64encode(text).decode()

    seen: list[Any] = []
    responses = {
        "good": {"status": 201, "body": coded(b"any")},
        "f": {"status": 200, "body": coded(b'{"secret":true}')},
        "g": {"status": 200, "body": coded(b"no JSON")},
        "h": {"status": 200, "body": coded(b'{"secret":false}')},
    }
    body = batch(
        post("1", {"admin": True}),
        post("2", coded(b'{"admin":true}')),
        post("3", coded(b'{"admin":true}').rstrip("="), "text/plain"),
        post("4", base64.b64encode(b'{"\xc3\xbf\xc3\xbf?":">>>","admin":true }').decode()),
        post("5", '{"admin":true}'),
        post("6", coded(b"no JSON"), "text/plain"),
        post("7", coded(gzip.compress(b"{}"))),
        post("good", coded(b'{"admin":false}')),
        *(part(each, f"/files/{each}") for each in ("f", "g", "h")),
    )
    async with data_path(upstream_batches(responses, seen), tmp_path, rules) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        assert [each["id"] for each in seen[0]] == ["good", "f", "g", "h"]
        assert {each["id"]: each["status"] for each in reply.json()["responses"]} == {
            "1": 403, "2": 403, "3": 403, "4": 403, "5": 403, "6": 400, "7": 400, "good": 201,
            "f": 403, "g": 403, "h": 200,
        }  # fmt: skip
        reasons = [event["reason"] for event in proxy.events() if event["status"] == 400]
        assert reasons == ["malformedRequest"] * 2  # the same reason as for a request that arrives alone


async def test_a_part_has_no_more_headers_than_a_request_may(tmp_path: Path) -> None:
    parts = [part("1", "/groups/1", headers={"a": "x" * 70_000}), part("2", "/groups/2", headers={"a": "x"})]
    body = batch(*parts)
    async with data_path(upstream_batches({"2": {"status": 200}}, []), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        assert {each["id"]: each["status"] for each in reply.json()["responses"]} == {"1": 431, "2": 200}


async def test_a_part_of_which_rules_see_a_part_only_is_withheld(tmp_path: Path) -> None:
    responses = {
        "1": {"status": 206, "body": {"mobilePhone": "+47 1"}},
        "2": {"status": 206, "body": {"a": "whatever it is"}},
    }
    body = batch(
        part("1", "/users/ada", headers={"Range": "bytes=5-30"}),
        part("2", "/groups/2"),
        part("3", "/groups/3", headers={"Content-Type": "application/json; charset=utf-7"}, body={"a": 1}),
    )
    async with data_path(upstream_batches(responses, []), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        statuses = {each["id"]: each["status"] for each in reply.json()["responses"]}
        assert statuses == {"1": 502, "2": 206, "3": 400}


async def test_a_batch_of_which_nothing_is_left_never_reaches_the_upstream(tmp_path: Path) -> None:
    body = batch(part("1", "/users/ada/messages"), part("2", "/SITES"))
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        assert [each["status"] for each in reply.json()["responses"]] == [403, 403]
        assert proxy.upstream.received == []
        assert len(proxy.events()) == 3


@pytest.mark.parametrize("coded", [False, True])
async def test_a_batch_that_is_wholly_allowed_goes_up_byte_for_byte(tmp_path: Path, coded: bool) -> None:
    seen: list[Any] = []
    text = b'{ "requests":\n[{"url":"/groups/1","id":"a","method":"GET"}] }'
    body = gzip.compress(text) if coded else text
    fields = FIELDS % len(body) + (b"Content-Encoding: gzip\r\n" if coded else b"")
    async with data_path(upstream_batches({"a": {"status": 204}}, seen), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        assert reply.json() == {"responses": [{"id": "a", "status": 204}]}
        assert bytes(proxy.upstream.received[0]).endswith(body)


@pytest.mark.parametrize("target", ["/v1.0/$batch", "/V1.0/%24batch", "/v1.0//$BATCH", "/v1.0/$batch/"])
async def test_no_spelling_of_the_batch_s_own_path_walks_round_the_rules(tmp_path: Path, target: str) -> None:
    body = batch(part("1", "/users/ada/messages"))
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request(target, "POST", FIELDS % len(body), body))
        assert reply.status in (200, 403)
        assert proxy.upstream.received == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"requests":{}}',
        batch(*(part(str(n), "/groups/1") for n in range(21))),
        batch(part("1", "/groups/1"), part("1", "/groups/2")),
        batch(part("1", "/groups/1", dependsOn=["9"])),
        batch(part("1", "https://elsewhere.example/v1.0/groups/1")),
        batch(part("1", "/$batch", "POST")),
        b'{"requests":[{"id":"1","method":"GET","url":"/groups/1","url":"/users/ada/messages"}]}',
    ],
)
async def test_a_malformed_batch_is_400(tmp_path: Path, body: bytes) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        assert reply.status == 400
        assert proxy.upstream.received == []
        assert [e["reason"] for e in proxy.events()] == ["malformedBatch"]


@pytest.mark.parametrize(
    "response",
    [
        b"{}",
        b"[]",
        b'{"responses":[{"id":"2","status":200,"body":{"mobilePhone":"+47"}}]}',
        b'{"responses":[{"id":"1","status":200,"body":{"mobilePhone":"+47"}',
        b'{"responses":[{"id":"1","status":200,"body":{"mobilePhone":"+47"}},{"id":"1","status":200}]}',
    ],
)
async def test_a_response_that_cannot_be_read_is_never_passed(tmp_path: Path, response: bytes) -> None:
    body = batch(part("1", "/users/ada"))
    async with data_path(responding(ok(response)), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        assert reply.status == 502
        assert b"+47" not in reply.body
        assert {e["status"] for e in proxy.events()} == {502}


async def test_links_in_the_parts_lead_back_to_the_proxy(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        base = b"http://" + head.split(b"Host: ")[1].split(b"\r\n")[0]
        peer.send(
            ok(
                b'{"responses":[{"id":"1","status":200,"body":{"@odata.nextLink":"%b/v1.0/groups?p=2"}}]}'
                % base
            )
        )
        await asyncio.sleep(0)

    body = batch(part("1", "/groups/1"))
    async with data_path(script, tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        link = reply.json()["responses"][0]["body"]["@odata.nextLink"]
        assert link == "http://proxy.example/v1.0/groups?p=2"


async def test_locations_in_the_parts_lead_back_to_the_proxy(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        head = await peer.head()
        base = b"http://" + head.split(b"Host: ")[1].split(b"\r\n")[0]
        headers = b'{"Location":"%b/v1.0/groups/2","Link":"<%b/v1.0/>; rel=next","X":"%b/v1.0/"}'
        headers %= (base, base, base)
        peer.send(ok(b'{"responses":[{"id":"1","status":302,"headers":%b}], "more":1.0}' % headers))
        await asyncio.sleep(0)

    body = batch(part("1", "/groups/1"))
    async with data_path(script, tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        base = f"http://127.0.0.1:{proxy.upstream.port}"
        assert reply.body == (
            b'{"responses":[{"id":"1","status":302,"headers":{"Location":"http://proxy.example/v1.0/groups/2",'
            b'"Link":"<http://proxy.example/v1.0/>; rel=next","X":"%b/v1.0/"}}], "more":1.0}' % base.encode()
        )


@pytest.mark.parametrize("coded", [False, True])
async def test_a_response_in_which_nothing_had_to_change_keeps_every_byte(
    tmp_path: Path, coded: bool
) -> None:
    text = b'{"x" : 1.0,"responses":[ {"status":200,"id":"1","body":{"n":1e5}} ]}\n'
    wire = gzip.compress(text) if coded else text
    response = ok(wire, b"Content-Encoding: gzip") if coded else ok(wire)
    body = batch(part("1", "/groups/1"))

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        await peer.body(len(body))
        peer.send(response)
        await peer.head()

    async with data_path(script, tmp_path, RULES) as proxy:
        fields = FIELDS % len(body) + b"Accept-Encoding: gzip\r\n"
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        assert reply.body == wire
        assert reply.value("content-encoding") == ("gzip" if coded else None)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
async def test_a_compressed_batch_that_loses_a_part_goes_up_uncompressed(tmp_path: Path, coding: str) -> None:
    seen: list[Any] = []
    text = batch(part("1", "/users/ada/messages"), part("2", "/groups/2"))
    compress = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress}[coding]
    body = compress(text)
    fields = FIELDS % len(body) + f"Content-Encoding: {coding}\r\n".encode()
    async with data_path(upstream_batches({"2": {"status": 204}}, seen), tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", fields, body))
        assert {each["id"]: each["status"] for each in reply.json()["responses"]} == {"1": 403, "2": 204}
        assert [each["id"] for each in seen[0]] == ["2"]
        assert b"content-encoding" not in proxy.upstream.heads[0].lower()


async def test_where_the_whole_response_is_withheld_no_part_s_event_claims_a_status(
    tmp_path: Path,
) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        responses = [
            {"id": "1", "status": 200, "body": {}},
            {"id": "not asked for", "status": 200, "body": {}},
        ]
        peer.send(ok(json.dumps({"responses": responses}).encode()))

    body = batch(part("1", "/users/ada"), part("2", "/users/bob"), part("3", "/sites"))
    async with data_path(script, tmp_path, RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        assert reply.status == 502
        report = {event["path"]: (event["status"], event["reason"]) for event in proxy.events()}
    withheld = (502, "filterFailed")
    assert report.pop("/v1.0/sites")[0] == 403  # it was never requested
    assert report == dict.fromkeys(("/v1.0/users/ada", "/v1.0/users/bob", "/v1.0/$batch"), withheld)


async def test_a_batch_begins_only_where_all_its_parts_can_be_recorded(tmp_path: Path) -> None:
    """Each sub-request of the batch has its own audit event, and a long URL makes the event large."""
    go_on = asyncio.Event()
    sent = 0

    async def script(peer: UpstreamPeer) -> None:
        nonlocal sent
        while True:
            asked = await parts_of_batch(peer)
            sent += 1
            await go_on.wait()
            responses = [{"id": each["id"], "status": 200, "body": {}} for each in asked]
            peer.send(ok(json.dumps({"responses": responses}).encode()))

    body = batch(*(part(str(at), f"/groups/{'x' * 14_000}") for at in range(20)))
    async with data_path(script, tmp_path, RULES, max_connections=64) as proxy:
        spool = proxy.context.spool
        spool._max_bytes = 2 << 20
        proxy.context.reserve_records()
        spool.maintain()
        request = proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body)
        asked = [asyncio.create_task(proxy.ask(request)) for _ in range(10)]
        refused, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        go_on.set()
        statuses = [reply.status for reply in await asyncio.gather(*asked)]
        assert refused
        assert set(statuses) == {200, 503}
        assert statuses.count(200) == sent
        events = proxy.events()
    assert len([each for each in events if each["path"] == "/v1.0/$batch"]) == 10
    assert len(events) == 10 + 20 * sent


async def test_a_request_begins_only_where_its_event_has_room_however_much_it_writes_into_it(
    tmp_path: Path,
) -> None:
    go_on = asyncio.Event()
    sent = 0

    async def script(peer: UpstreamPeer) -> None:
        nonlocal sent
        await peer.head()
        sent += 1
        await go_on.wait()
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, RULES, max_connections=400) as proxy:
        spool = proxy.context.spool
        spool._max_bytes = 2 << 20
        proxy.context.reserve_records()
        spool.maintain()
        request = proxy.request("/v1.0/groups", fields=b"client-request-id: %b\r\n" % (b"c" * 13_000))
        asked = [asyncio.create_task(proxy.ask(request)) for _ in range(300)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        go_on.set()
        statuses = [reply.status for reply in await asyncio.gather(*asked)]
        assert set(statuses) == {200, 503}
        assert statuses.count(200) == sent
        assert len([each for each in proxy.events() if each["status"] == 200]) == sent


@pytest.mark.parametrize(
    "response", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"]
)
async def test_an_empty_response_to_a_batch_is_no_response_to_its_parts(
    tmp_path: Path, response: bytes
) -> None:
    async with data_path(responding(response), tmp_path) as proxy:
        body = batch(part("1", "/users"))
        reply = await proxy.ask(proxy.request("/v1.0/$batch", "POST", FIELDS % len(body), body))
        assert (reply.status, reply.json()["error"]["code"]) == (502, "filterFailed")
        (event,) = [each for each in proxy.events() if each["path"] == "/v1.0/users"]
        assert (event["status"], event["reason"]) == (502, "filterFailed")
