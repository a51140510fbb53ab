"""Tests that an attacker on the network or with a stolen key can't change messages or block other proxies."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controlplane import connections
from controlplane.connections import Connection
from controlplane.index_writer import IndexWriter
from controlplane.search import open_index
from controlplane.search.interface import SearchQuery
from controlplane.search.query import parse_filter
from controlplane.store.registry import RegistryTables
from proxy.agent.control_plane import ControlPlane, Identity
from proxy.agent.sync import Sync
from proxy.config.tls import client_tls
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from tests.controlplane.plane import (
    AUDIT,
    HEARTBEAT,
    METRICS,
    SYNC,
    FakeClock,
    Plane,
    ProxyClient,
    batch,
    event,
)
from tests.controlplane.processes import ROOT, cli, facts
from tests.patience import PATIENCE_SECONDS


class Between:
    """An attacker on the network path who reads and changes messages, as if TLS did not protect them."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self.if_none_match: str | None = None  # replaces the header that the proxy sent
        self.drops: set[str] = set()

    async def relay(self, request: web.Request) -> web.Response:
        headers = request.headers.copy()
        if self.if_none_match is not None:
            headers["If-None-Match"] = self.if_none_match
        async with self._plane.session.get(self._plane.base_url + SYNC, headers=headers) as response:
            kept = {name: value for name, value in response.headers.items() if name not in self.drops}
            return web.Response(status=response.status, headers=kept, body=await response.read() or None)


@pytest.mark.parametrize("drops", [set(), {"X-Unchanged-Signature"}, {"ETag", "X-Unchanged-Signature"}])
async def test_nobody_between_can_keep_a_proxy_on_withdrawn_rules(
    plane: Plane, proxy: ProxyClient, tmp_path: Path, drops: set[str]
) -> None:
    """An attacker changes a request's ETag, to get a signed 304 for rules that the proxy does not have."""
    await plane.ruleset("acme", "rules")
    await plane.inventory.add_app("payroll", "acme", "rules")
    between = Between(plane)
    app = web.Application()
    app.router.add_get(SYNC, between.relay)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ((host, port),) = runner.addresses
    async with open_session(client_tls(None), DIRECT) as session:
        identity = Identity(proxy.api_key, proxy.hmac_secret.encode())
        sync = Sync(
            ControlPlane(session, lambda: identity, clock=lambda: plane.clock.wall_ms() / 1000),
            url=f"http://{host}:{port}{SYNC}",
            cache_path=tmp_path / "snapshot",
            interval=30.0,
            require_signed=True,
            announce=lambda snapshot, is_new: None,
        )
        assert await sync.once()
        assert await sync.once()  # the honest 304
        await plane.inventory.set_app_enabled("payroll", None, False)
        between.if_none_match, between.drops = (await proxy.sync()).headers["ETag"], drops
        assert not await sync.once()
        assert sync.check().status == "degraded"
        between.if_none_match = None
        assert await sync.once()
        assert sync.snapshot is not None
        assert [app.enabled for app in sync.snapshot.apps] == [False]
    await runner.cleanup()


# Unauthenticated clients

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connected(plane: Plane, sent: bytes = b"") -> Streams:
    host, port = plane.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    return reader, writer


async def _closed(streams: Streams) -> bytes:
    """Return the bytes that arrived before the server closed the connection."""
    reader, writer = streams
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def _head(proxy: ProxyClient, method: str, path: str, *lines: str, signed: bytes = b"") -> bytes:
    fields = [f"{name}: {value}" for name, value in proxy.headers(signed).items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *fields, *lines, "", ""]).encode()


NO_HTTP = {
    "noise": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a version of its own": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "a length and chunks": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a signed length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n{",
    "a coding that isn't chunked": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
    "a field without end": b"GET / HTTP/1.1\r\nX-A: " + b"b" * 100_000 + b"\r\n\r\n",
    "fields without end": b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 1000 + b"\r\n",
    "a target without end": b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a NUL in a field": b"GET / HTTP/1.1\r\nHost: x\x00\r\n\r\n",
}


@pytest.mark.parametrize("name", NO_HTTP)
async def test_what_is_no_http_gets_the_json_400_and_a_close(plane: Plane, name: str) -> None:
    response = await _closed(await _connected(plane, NO_HTTP[name]))
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert b"aiohttp" not in head
    assert json.loads(body)["error"]["code"] == "badRequest"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_FIRST_HEAD_SECONDS", 0.3)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: "])
async def test_who_connects_and_asks_nothing_is_cut(plane: Plane, hasty: None, sent: bytes) -> None:
    _, writer = streams = await _connected(plane, sent)

    async def drip() -> None:
        while sent and not writer.is_closing():
            writer.write(b"a")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    assert await _closed(streams) == b""
    await asyncio.gather(dripping, return_exceptions=True)


async def test_who_has_asked_in_time_keeps_the_connection(
    plane: Plane, proxy: ProxyClient, hasty: None
) -> None:
    reader, writer = await _connected(plane, _head(proxy, "GET", SYNC))
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    assert await _closed(await _connected(plane)) == b""  # a later connection was closed to make room
    writer.write(_head(proxy, "GET", SYNC, "Connection: close"))
    assert (await reader.read()).count(b"HTTP/1.1 200 OK\r\n") == 1
    writer.close()


async def test_a_flood_of_connections_shuts_no_proxy_out(
    plane: Plane, proxy: ProxyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server closes the oldest unauthenticated connection, but keeps authenticated connections open."""
    monkeypatch.setattr(connections, "_MOST_UNPROVED", 20)
    known, to_known = await _connected(plane, _head(proxy, "GET", SYNC))
    assert await known.readline() == b"HTTP/1.1 200 OK\r\n"
    strangers = [await _connected(plane, b"GET /") for _ in range(20)]
    asking = await _connected(plane, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await asking[0].readline() == b"HTTP/1.1 200 OK\r\n"
    assert await _closed(strangers[0]) == b""
    assert (await proxy.send(SYNC)).status == 200
    to_known.write(_head(proxy, "GET", SYNC, "Connection: close"))
    assert (await known.read()).count(b"HTTP/1.1 200 OK\r\n") == 1
    for _, writer in (*strangers, asking, (known, to_known)):
        writer.close()


async def test_who_takes_no_response_is_cut(
    plane: Plane, proxy: ProxyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plane.ruleset("acme", "rules", "#" * 15_000_000)
    monkeypatch.setattr(connections, "_RESPONSE_SECONDS", 0.3)
    cut = asyncio.Event()
    abort = Connection.abort

    def watched(connection: Connection) -> None:
        abort(connection)
        cut.set()

    monkeypatch.setattr(Connection, "abort", watched)
    reader, writer = await _connected(plane)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(_head(proxy, "GET", SYNC))
    await asyncio.wait_for(cut.wait(), PATIENCE_SECONDS)
    writer.transport.abort()
    assert reader.exception() is None


# A stolen API key, or a recorded body


async def test_bodies_that_never_come_keep_no_other_concern_waiting(plane: Plane, proxy: ProxyClient) -> None:
    """Eight uploads arrive slowly, or come from a client that has the API key but not the HMAC secret."""
    stuck = [
        await _connected(plane, _head(proxy, "POST", AUDIT, "Content-Length: 9", "Expect: 100-continue"))
        for _ in range(8)
    ]
    for reader, _ in stuck:
        assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await proxy.send(SYNC)).status == 200
        assert (await proxy.send(HEARTBEAT, b'{"version": "1"}')).status == 200
    for _, writer in stuck:
        writer.close()


async def test_a_body_begun_before_its_key_was_taken_back_is_not_taken_after(
    plane: Plane, proxy: ProxyClient, clock: FakeClock
) -> None:
    body = json.dumps(batch("b1", proxy.org_ids[0], [1])).encode()
    expected = f"Content-Length: {len(body)}", "Expect: 100-continue"
    reader, writer = await _connected(plane, _head(proxy, "POST", AUDIT, *expected, signed=body))
    assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
    await plane.inventory.revoke("edge-1", "acme")
    clock.advance(seconds=2)
    writer.write(body)
    await reader.readline()
    assert await reader.readline() == b"HTTP/1.1 403 Forbidden\r\n"
    assert await plane.stored() == []
    writer.close()


HEARTBEAT_BODY = b'{"version": "1", "uptimeSeconds": 1, "checks": {}}'
METRICS_BODY = b'{"windowStart": "2026-11-21T12:00:00.000Z", "evaluated": 1}'


async def test_a_recorded_body_does_at_no_other_endpoint(plane: Plane, proxy: ProxyClient) -> None:
    """A signature does not cover the path, so a signed body must be invalid at all other endpoints."""
    batch_body = json.dumps(batch("b1", proxy.org_ids[0], [1])).encode()
    for path, body in (
        (HEARTBEAT, METRICS_BODY),
        (HEARTBEAT, batch_body),
        (METRICS, HEARTBEAT_BODY),
        (METRICS, batch_body),
        (AUDIT, HEARTBEAT_BODY),
        (AUDIT, METRICS_BODY),
        (SYNC, batch_body),
        (HEARTBEAT, b""),
        (METRICS, b""),
        (AUDIT, b""),
    ):
        response = await proxy.send(path, body)
        assert (response.status, response.code) == (400, "invalidPayload"), (path, body)
    assert await plane.store.heartbeats(proxy.proxy_id, 1) == []
    assert await plane.store.metrics(proxy.proxy_id, 1) == []


async def test_events_are_the_signer_s_whomever_they_name(plane: Plane, proxy: ProxyClient) -> None:
    """A search for a proxy's events must not find an event that was sent with another proxy's stolen key."""
    (org,) = proxy.org_ids
    other = await plane.proxy("edge-2", "acme")
    own, forged, odd = (
        event(org, number, proxyId=named, unknown=1.5)
        for number, named in enumerate((proxy.proxy_id, other.proxy_id, {"$ne": 1}))
    )
    assert (await proxy.audit({"batchId": "b1", "events": [own, forged, odd]})).json["accepted"] == 3
    assert [body for _, body in await plane.stored()] == [
        own,
        forged | {"proxyId": proxy.proxy_id, "claimedProxyId": other.proxy_id},
        odd | {"proxyId": proxy.proxy_id, "claimedProxyId": {"$ne": 1}},
    ]
    deep = json.dumps(event(org, 9)).replace('"proxyId"', '"was"').rstrip("}")
    deep += ',"proxyId":' + "[" * 400 + "]" * 400 + "}"
    response = await proxy.send(AUDIT, ('{"batchId":"b2","events":[' + deep + "]}").encode())
    assert (response.status, response.code) == (400, "invalidPayload")


async def test_no_key_takes_every_place_in_the_store_s_queue(
    plane: Plane, proxy: ProxyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync without an ETag needs a write to the store, as each heartbeat and each batch does."""
    running, most = 0, 0
    sync_content = RegistryTables.sync_content

    async def counted(self: RegistryTables, *arguments: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await sync_content(self, *arguments)
        finally:
            running -= 1

    monkeypatch.setattr(RegistryTables, "sync_content", counted)
    responses = await asyncio.gather(*(proxy.send(SYNC) for _ in range(60)))
    assert {response.status for response in responses} == {200}
    assert most == 8


async def test_a_response_s_signature_is_none_of_a_request(proxy: ProxyClient) -> None:
    response = await proxy.sync()
    reflected = proxy.headers(b"")
    for timestamp in (f"response.{reflected['X-Hmac-Signature']}", reflected["X-Timestamp"]):
        headers = reflected.copy()
        headers["X-Timestamp"], headers["X-Hmac-Signature"] = timestamp, response.headers["X-Hmac-Signature"]
        assert (await proxy.send(HEARTBEAT, response.body, headers=headers)).status == 401


async def test_a_report_sent_again_counts_once(plane: Plane, proxy: ProxyClient) -> None:
    """The control plane recognises the repeated report of a killed agent by the report's window start."""
    for evaluated in (1, 7):
        body = METRICS_BODY.replace(b"1}", b"%d}" % evaluated)
        assert (await proxy.send(METRICS, body)).status == 200
    (report,) = await plane.store.metrics(proxy.proxy_id, 10)
    assert json.loads(report.body)["evaluated"] == 7


# Events that are made to break their readers

ODD_VALUES = [
    b"18446744073709551616",
    b"-9223372036854775809",
    b"9" * 400,
    b"-" + b"9" * 300,
    b"1e308",
    b"1e-999",
    b"[[[]]]",
    b'{"a": {"a": null}}',
    b'["\\u0000", 1, null]',
    b'"\\u0000\\u2028\\ud83d\\ude00"',
    b'"\' OR 1=1; DROP TABLE events; -- \\" ) } ] *:* AND _exists_:x"',
    b'"0001-01-01T00:00:00Z"',
    b'"9999-12-31T23:59:59.999Z"',
]
MEMBERS = (
    "id", "time", "method", "path", "seq", "proxyId", "query", "ruleId", "loggedRuleIds", "transforms",
    "durationMs", "requestBytes", "upstreamStatus", "rulesetVersion", "unheardOf",
)  # fmt: skip


async def test_no_event_of_one_tenant_keeps_another_s_from_being_found(
    plane: Plane, proxy: ProxyClient
) -> None:
    """The control plane refuses an event with extreme values, or stores, finds and purges it normally.

    An event with extreme values never stops the index writer.
    """
    (org,), other = proxy.org_ids, await plane.org("other")
    stranger = await plane.proxy("edge-2", "other")
    made = itertools.count(1)
    for member, value in itertools.product(MEMBERS, ODD_VALUES):
        plane.clock.advance(seconds=2)
        fields = {name: json.dumps(each).encode() for name, each in event(org, next(made)).items()}
        fields[member] = value
        text = b",".join(b'"%b": %b' % (name.encode(), each) for name, each in fields.items())
        body = b'{"batchId": "b%d", "events": [{%b}]}' % (next(made), text)
        assert (await proxy.send(AUDIT, body)).status in (202, 400), (member, value)
    assert (await stranger.audit(batch("b", other, [1]))).status == 202
    stored = [body["id"] for _, body in await plane.stored()]
    assert len(stored) > 100
    index = await open_index(plane.settings.search_index, plane.store, plane.settings.store.path)
    await IndexWriter(plane.store, index).drain()
    found = await index.search(SearchQuery(None, parse_filter(""), None, None, 1000, None))
    assert sorted(json.loads(each)["id"] for each in found.events) == sorted(stored)
    assert await index.purge(org, 2**53, 1000) == len(stored) - 1
    await index.close()


# Display to an operator


@pytest.mark.parametrize("path", [HEARTBEAT, METRICS])
@pytest.mark.parametrize("nested", [b"[" * 33 + b"]" * 33, b'{"a":' * 33 + b"1" + b"}" * 33])
async def test_a_report_is_only_nested_as_deep_as_every_reader_stands(
    plane: Plane, proxy: ProxyClient, path: str, nested: bytes
) -> None:
    response = await proxy.send(path, b'{"x": ' + nested + b"}")
    assert (response.status, response.code) == (400, "invalidPayload")
    assert (await proxy.send(path, b'{"x": ' + b"[" * 31 + b"]" * 31 + b"}")).status == 200


TERMINAL = "\x9b31m\u202e\u061c\u2028\x7f"


@pytest.mark.process
async def test_nothing_that_a_proxy_sent_drives_an_operator_s_terminal(
    plane: Plane, proxy: ProxyClient, tmp_path: Path
) -> None:
    config = tmp_path / "controlplane.toml"
    (org,) = proxy.org_ids
    assert (await proxy.send(HEARTBEAT, f'{{"version": "{TERMINAL}"}}'.encode())).status == 200
    odd = batch("b1", org, [1])
    odd["events"][0] |= {"path": TERMINAL, "ruleId": "\x1b]0;owned\x07\r\n"}
    assert (await proxy.send(AUDIT, json.dumps(odd, ensure_ascii=False).encode())).status == 202
    for command in (["proxy", "show", "edge-1"], ["audit", "search"]):
        for style in ([], ["--json"]):
            shown = await asyncio.to_thread(_on_a_terminal, config, *command, *style)
            assert "\\u0" in shown
            assert not set(shown) & set("\x9b\u202e\u061c\u2028\x7f\x1b\x07")
        in_a_pipe = await asyncio.to_thread(cli, config, *command, "--json")
        assert TERMINAL in in_a_pipe.stdout
    assert (await asyncio.to_thread(facts, config, "proxy", "show", "edge-1"))["heartbeat"] == {
        "version": TERMINAL
    }


@pytest.mark.process
async def test_nothing_that_an_editor_wrote_hides_a_rule_on_a_terminal(plane: Plane, tmp_path: Path) -> None:
    config = tmp_path / "controlplane.toml"
    await plane.org("acme")
    text = "version: 1\nname: hr  # \u202eturned\r\nrules: []  # all\rnone \n"
    await plane.ruleset("acme", "hr", text)
    shown = await asyncio.to_thread(_on_a_terminal, config, "ruleset", "show", "hr")
    lines = ["version: 1", "name: hr  # \\u202eturned", "rules: []  # all\\u000dnone ", ""]
    assert shown.split("\r\n") == lines  # the terminal ends lines in this way
    in_a_pipe = await asyncio.to_thread(_bytes_of, config, "ruleset", "show", "hr")
    assert in_a_pipe == text.encode()


def _bytes_of(config: Path, *arguments: str) -> bytes:
    command = [sys.executable, "-m", "controlplane", "--config", str(config), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout


def _on_a_terminal(config: Path, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "controlplane", "--config", str(config), *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "dumb"}):
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # the other end closed the connection
                os.close(ours)
                return shown.decode()
