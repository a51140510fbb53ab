"""Tests of the data path behind an egress proxy: tunnels to the upstream, and faulty egress proxies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.config.tls import client_tls
from proxy.outbound.egress import EgressProxy, egress_proxy
from tests.bytes.data_path import UPSTREAM_TOKEN, DataPath, data_path, ok, responding
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.egress import ESTABLISHED, FakeEgress

HOST = "graph.invalid"  # has no address (RFC 6761), so it is reachable only through the egress proxy
NAME = f"{HOST}:443"


@asynccontextmanager
async def behind(
    egress: FakeEgress, directory: Path, *, credentials: str = "", connect_timeout: float = 5.0
) -> AsyncIterator[DataPath]:
    """Start a data path whose upstream is reachable only through the egress proxy."""
    async with data_path(responding(ok(b"{}")), directory) as proxy:
        egress.names[NAME] = ("127.0.0.1", proxy.upstream.port)
        lead(proxy, egress_proxy(f"http://{credentials}127.0.0.1:{egress.port}"), connect_timeout)
        yield proxy


def lead(proxy: DataPath, through: EgressProxy, connect_timeout: float = 5.0) -> None:
    pool = proxy.context.pool
    pool.settings = replace(
        pool.settings, host=HOST, port=443, egress=through, connect_timeout=connect_timeout
    )


async def test_requests_share_a_tunnel_and_the_egress_credentials_stay_there(tmp_path: Path) -> None:
    async with (
        FakeEgress(credentials="ada:pass word") as egress,
        behind(egress, tmp_path, credentials="ada:pass%20word@") as proxy,
    ):
        replies = [await proxy.ask(proxy.request()) for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 200]
        assert egress.targets == [NAME]
        assert egress.heads[0].startswith(b"CONNECT graph.invalid:443 HTTP/1.1\r\nHost: graph.invalid:443")
        assert UPSTREAM_TOKEN.encode() not in b"".join(egress.heads)
        (received,) = proxy.upstream.received
        assert received.count(b"GET /v1.0/users HTTP/1.1\r\n") == 3
        assert b"Proxy-Authorization" not in received


async def test_tls_within_the_tunnel_is_the_upstreams(tmp_path: Path) -> None:
    """The egress proxy can't read any byte of a request.

    The proxy refuses an upstream if the upstream's certificate does not have the host name of the upstream.
    """
    authority = CertificateAuthority(tmp_path / "certificates")
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(ok(b"{}"))
        await reader.read()
        writer.close()

    right, wrong = authority.server("right", (HOST,)), authority.server("wrong", ("other.invalid",))
    async with FakeEgress() as egress, behind(egress, tmp_path) as proxy:
        pool = proxy.context.pool
        pool.settings = replace(pool.settings, tls=client_tls(authority.ca_file))
        for certificate, status in ((wrong, 502), (right, 200)):
            server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificate.server_context())
            egress.names[NAME] = server.sockets[0].getsockname()
            reply = await proxy.ask(proxy.request())
            assert reply.status == status
            if status == 502:
                assert "its certificate was not accepted" in reply.json()["error"]["message"]
            server.close()
        assert len(seen) == 1
        assert b"Authorization: Bearer " in seen[0]
        assert b"Authorization" not in egress.tunnelled
        assert egress.targets == [NAME, NAME]


RESPONSES = [
    (b"HTTP/1.1 407 Who are you, pass-word?\r\n\r\n", 502, "refuses the proxy's credentials", "407 Who are"),
    (
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
        502,
        "refuses to connect",
        "403 Forbidden",
    ),
    (b"HTTP/1.1 302 Found\r\nLocation: http://login/\r\n\r\n", 502, "refuses to connect", "302 Found"),
    (b"HTTP/1.1 502 \x1b[2J\xe9 no\r\n\r\n", 502, "can't reach it", "502 [2J no to CONNECT"),
    (b"HTTP/1.0 503\r\n\r\n", 502, "can't reach it", "503 to CONNECT"),
    (b"HTTP/1.1 504 Gateway Timeout\r\n\r\n", 504, "no connection in time", "504 Gateway Timeout"),
    (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", 502, "did not respond as one", "is not HTTP/1.1"),
    (b"HTTP/1.1 200 OK\r\nA: b\r\n", 502, "did not respond as one", "closed the connection"),
    (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 40000, 502, "did not respond as one", "larger than 16384"),
    (b"HTTP/1.1 100 Continue\r\n\r\n" * 2000, 502, "did not respond as one", "larger than 16384"),
    (ESTABLISHED + ok(b'{"forged": 1}'), 502, "did not respond as one", "bytes after its response"),
]


@pytest.mark.parametrize(("said", "status", "told", "logged"), RESPONSES)
async def test_what_an_egress_proxy_responds_instead_of_a_tunnel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: bytes, status: int, told: str, logged: str
) -> None:
    async with (
        FakeEgress() as egress,
        behind(egress, tmp_path, credentials="ada:pass-word@") as proxy,
    ):
        egress.says, egress.closes = said, True
        with caplog.at_level(logging.WARNING):
            reply = await proxy.ask(proxy.request())
            again = await proxy.ask(proxy.request())
        assert (reply.status, again.status) == (status, status)
        message = reply.json()["error"]["message"]
        assert told in message
        assert reply.json()["error"]["code"] == (
            "upstreamTimeout" if status == 504 else "upstreamUnreachable"
        )
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 1  # logged once, and not for each request
        for line in lines:
            assert logged in line
            assert f"egress proxy 127.0.0.1:{egress.port}: " in line
            assert line.isprintable()
        assert "pass-word" not in message + "".join(lines)
        assert [event["status"] for event in proxy.events()] == [status, status]
        assert proxy.upstream.received == []
        assert proxy.context.pool.open_connections == 0


async def test_interim_responses_and_a_response_in_pieces_are_waited_for(tmp_path: Path) -> None:
    async with FakeEgress() as egress, behind(egress, tmp_path) as proxy:
        egress.preface = b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
        assert (await proxy.ask(proxy.request())).status == 200


async def test_each_new_cause_is_logged_at_once_and_known_ones_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeEgress() as egress, behind(egress, tmp_path, connect_timeout=1.0) as proxy:
        said = [b"HTTP/1.1 403 No\r\n\r\n", b"HTTP/1.1 407 Who\r\n\r\n", b""]
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                for each in said:
                    egress.says, egress.closes = each, bool(each)
                    reply = await proxy.ask(proxy.request())
            for number in range(100):  # the egress proxy gives a new reason each time
                egress.says, egress.closes = b"HTTP/1.1 403 No %d\r\n\r\n" % number, True
                await proxy.ask(proxy.request())
        assert reply.json()["error"]["message"].endswith(
            "Connecting to the upstream through the egress proxy took too long."
        )
        lines = [record.getMessage() for record in caplog.records]
        for line, text in zip(lines, ("403 No to", "407 Who to", "no connection to graph.inv"), strict=False):
            assert text in line
        assert len(lines) == 16


async def test_a_silent_or_slow_egress_proxy_takes_no_longer_than_connecting_may(tmp_path: Path) -> None:
    async with FakeEgress() as egress, behind(egress, tmp_path, connect_timeout=1.0) as proxy:
        for said in (b"", b"HTTP/1.1 200 OK\r\n"):
            egress.says = said
            reply = await proxy.ask(proxy.request())
            assert (reply.status, reply.json()["error"]["code"]) == (504, "upstreamTimeout")
        egress.says = None  # the next connection succeeds
        assert (await proxy.ask(proxy.request())).status == 200


async def test_an_egress_proxy_that_is_away_is_told_from_an_upstream_that_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeEgress() as egress, behind(egress, tmp_path) as proxy:
        egress.names.clear()
        beyond = await proxy.ask(proxy.request())
        await egress.stop()
        away = await proxy.ask(proxy.request())
        lead(proxy, egress_proxy("http://egress.invalid:3128"))
        unknown = await proxy.ask(proxy.request())
        for reply, text in (
            (beyond, "the egress proxy can't reach it"),
            (away, "the egress proxy can't be reached"),
            (unknown, "the egress proxy can't be reached"),
        ):
            assert reply.status == 502
            assert reply.json()["error"]["message"] == f"Graphward: The upstream can't be reached: {text}."


async def test_a_tunnel_that_ends_at_once_is_a_lost_upstream(tmp_path: Path) -> None:
    async with FakeEgress() as egress, behind(egress, tmp_path) as proxy:
        egress.says, egress.closes = ESTABLISHED, True
        assert (await proxy.ask(proxy.request())).status == 502
        egress.says = None
        assert (await proxy.ask(proxy.request())).status == 200
