"""Tests of HTTP sessions through an egress proxy: direct calls, tunnels and reported failures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from proxy.agent import cures
from proxy.config.tls import client_tls
from proxy.outbound.call import CallFailed, call
from proxy.outbound.egress import Egress, egress_proxy, parse_bypass
from proxy.outbound.session import open_session
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.egress import ESTABLISHED, FakeEgress
from tests.fakes.graph import FakeGraph

HOST = "login.invalid"  # never resolves (RFC 6761): it is reachable only through the egress proxy
SAID = "secret-word"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def behind(
    egress: FakeEgress, authority: CertificateAuthority, *bypasses: str
) -> AsyncIterator[aiohttp.ClientSession]:
    proxy = egress_proxy(f"http://ada:{SAID}@127.0.0.1:{egress.port}")
    way = Egress(proxy, tuple(map(parse_bypass, bypasses)))
    async with open_session(client_tls(authority.ca_file), way) as session:
        yield session


async def test_requests_leave_by_name_with_the_tls_of_their_target(authority: CertificateAuthority) -> None:
    certificate = authority.server("named", (HOST,))
    async with (
        FakeGraph(tls=certificate) as secured,
        FakeGraph() as plain,
        FakeEgress(credentials=f"ada:{SAID}") as egress,
        behind(egress, authority) as session,
    ):
        egress.names[f"{HOST}:8443"] = ("127.0.0.1", secured.port)
        egress.names["other.invalid:443"] = ("127.0.0.1", secured.port)
        egress.names["plain.invalid:80"] = ("127.0.0.1", plain.port)
        headers = {"Authorization": "Bearer t"}
        for _ in range(2):
            status, _, _ = await call(session, "GET", f"https://{HOST}:8443/v1.0/users", b"", headers)
            assert status == 200
        status, _, _ = await call(session, "GET", "http://plain.invalid/v1.0/users", b"", headers)
        assert status == 200
        assert egress.targets == [f"{HOST}:8443", "http://plain.invalid/v1.0/users"]
        assert b"Bearer t" not in egress.heads[0]
        with pytest.raises(CallFailed, match=r"the certificate of other\.invalid is refused"):
            await call(session, "GET", "https://other.invalid/v1.0/users", b"", headers)
        for graph in (secured, plain):
            assert all("proxy-auth" not in request.head.decode().lower() for request in graph.requests)


async def test_what_is_exempt_is_reached_directly(authority: CertificateAuthority) -> None:
    async with (
        FakeGraph() as graph,
        FakeEgress() as egress,
        behind(egress, authority, "direct.invalid") as session,
    ):
        assert (await call(session, "GET", f"{graph.base_url}/v1.0/users", b"", {}))[0] == 200
        with pytest.raises(CallFailed, match=r"direct\.invalid does not resolve"):
            await call(session, "GET", "https://direct.invalid/", b"", {})
        assert egress.targets == []


@pytest.mark.parametrize(
    ("said", "text", "cure"),
    [
        (
            b"HTTP/1.1 407 Not ada:secret-word\r\n\r\n",
            "407 Not ada:******** to CONNECT",
            "refuses the user ada",
        ),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "403 Forbidden to CONNECT login.invalid:443", "let the egress"),
        (
            b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
            "503 Service Unavailable to CONNECT",
            "resolve and reach",
        ),
        (b"HTTP/1.1 504 Timeout\r\n\r\n", "504 Timeout to CONNECT", "let the egress proxy reach"),
    ],
)
async def test_a_refusal_is_told_with_its_status_and_without_credentials(
    authority: CertificateAuthority, said: bytes, text: str, cure: str
) -> None:
    async with FakeEgress() as egress, behind(egress, authority) as session:
        egress.says, egress.closes = said, True
        with pytest.raises(CallFailed) as failed:
            await call(session, "GET", f"https://{HOST}/", b"", {})
        assert str(failed.value).startswith(f"egress proxy 127.0.0.1:{egress.port}: {text}")
        assert SAID not in str(failed.value)
        assert cure in cures.of_control_plane(f"https://{HOST}", failed.value)


async def test_an_egress_proxy_that_is_away_or_is_none_is_told(authority: CertificateAuthority) -> None:
    async with FakeEgress() as egress, behind(egress, authority) as session:
        for said in (
            b"SSH-2.0-OpenSSH_9.2\r\n",
            ESTABLISHED + b"HTTP/1.1 200 OK\r\n\r\n",
        ):
            egress.says, egress.closes = said, True
            with pytest.raises(CallFailed):
                await call(session, "GET", f"https://{HOST}/", b"", {})
        await egress.stop()
        with pytest.raises(CallFailed, match=r"can't be reached: Connection refused") as failed:
            await call(session, "GET", f"https://{HOST}/", b"", {})
        assert "correct Egress.ProxyUrl" in cures.of_control_plane(f"https://{HOST}", failed.value)
    unknown = Egress(egress_proxy("http://egress.invalid:3128"), ())
    async with open_session(client_tls(authority.ca_file), unknown) as session:
        with pytest.raises(CallFailed, match=r"egress proxy egress\.invalid:3128 can't be reached: ."):
            await call(session, "GET", f"https://{HOST}/", b"", {})


async def test_a_silent_egress_proxy_ends_with_the_call(authority: CertificateAuthority) -> None:
    async with FakeEgress() as egress, behind(egress, authority) as session:
        egress.says = b""
        limits = aiohttp.ClientTimeout(total=0.2)
        with pytest.raises(CallFailed, match="timed out"):
            await call(session, "GET", f"https://{HOST}/", b"", {}, limits=limits)
