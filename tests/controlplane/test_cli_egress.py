"""Tests of the command line on a host that reaches the network only through an egress proxy."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.cli import main
from controlplane.cli.failure import CommandFailed
from controlplane.cli.metadata_source import read_source
from controlplane.doctor.egress import egress as examine_egress
from controlplane.settings import read_settings
from proxy.outbound.egress import Egress, egress_proxy
from tests.controlplane.plane import write_settings
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.egress import FakeEgress
from tests.fakes.graph import SCHEMA, FakeGraph
from tests.fakes.server import Response

HOST = "console.invalid"  # never resolves (RFC 6761): it is reachable only through the egress proxy
PASSWORD = "pass-of-the-egress"
_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY")


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeGraph]:
    """Start a TLS server without an admin API.

    The test process trusts the certificate authority of the server.
    """
    authority = CertificateAuthority(tmp_path / "certificates")
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
    (tmp_path / "token").write_text("gwt_token-of-an-operator")
    async with FakeGraph(tls=authority.server("console", (HOST,))) as server:
        yield server


@pytest.fixture
async def egress(server: FakeGraph) -> AsyncIterator[FakeEgress]:
    names = {f"{HOST}:443": ("127.0.0.1", server.port), "other.invalid:443": ("127.0.0.1", server.port)}
    async with FakeEgress(names, credentials=f"ada:{PASSWORD}") as egress:
        yield egress


async def listed(tmp_path: Path, host: str = HOST) -> int:
    arguments = ["--url", f"https://{host}", "--token-file", str(tmp_path / "token"), "org", "list"]
    return await asyncio.to_thread(main, arguments)


async def test_a_command_at_a_server_leaves_by_the_variables(
    server: FakeGraph,
    egress: FakeEgress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://ada:{PASSWORD}@127.0.0.1:{egress.port}")
    assert await listed(tmp_path) == 1
    assert "Resource '/admin/v1/orgs' does not exist" in capsys.readouterr().err
    (request,) = server.requests
    assert request.target.startswith("/admin/v1/orgs")
    assert request.value("Host") == HOST
    assert request.value("Authorization") == "Bearer gwt_token-of-an-operator"
    assert b"proxy-" not in request.head.lower()
    assert egress.targets == [f"{HOST}:443"]
    assert b"gwt_" not in b"".join(egress.heads)

    assert await listed(tmp_path, "other.invalid") == 1  # the certificate is for another name
    assert "certificate" in capsys.readouterr().err
    assert len(server.requests) == 1

    egress.says, egress.closes = f"HTTP/1.1 403 No {PASSWORD}\r\n\r\n".encode(), True
    assert await listed(tmp_path) == 1
    line = capsys.readouterr().err
    assert f"403 No ******** (through the egress proxy 127.0.0.1:{egress.port})" in line

    monkeypatch.setenv("NO_PROXY", ".invalid")
    assert await listed(tmp_path) == 1
    assert "through the egress proxy" not in capsys.readouterr().err
    assert len(egress.targets) == 3

    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTPS_PROXY", f"socks5://ada:{PASSWORD}@127.0.0.1:1080")
    assert await listed(tmp_path) == 2
    line = capsys.readouterr().err
    assert "environment: HTTPS_PROXY: the value must be http://host:port" in line
    assert PASSWORD not in line


async def test_a_schema_is_read_through_the_egress_proxy_and_so_is_where_it_redirects(
    server: FakeGraph, egress: FakeEgress
) -> None:
    moved = Response(302, (("Location", f"https://{HOST}/beta/$metadata"),))
    server.first_responses["/v1.0/$metadata"] = deque([moved])
    chosen = Egress(egress_proxy(f"http://ada:{PASSWORD}@127.0.0.1:{egress.port}"), ())
    read = await asyncio.to_thread(read_source, f"https://{HOST}/v1.0", None, chosen)
    assert read.document.encode() == SCHEMA
    assert egress.targets == [f"{HOST}:443"] * 2
    with pytest.raises(CommandFailed, match=r".") as failed:
        await asyncio.to_thread(read_source, "https://gone.invalid/v1.0", None, chosen)
    (line,) = failed.value.lines
    assert "503 Service Unavailable (through the egress proxy " in line


async def test_check_and_doctor_of_a_control_plane_show_the_way_to_its_identity_provider(
    egress: FakeEgress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy = f'ProxyUrl = "http://ada:{PASSWORD}@127.0.0.1:{egress.port}"'
    console = (
        f'OidcIssuer = "https://{HOST}"\nOidcClientId = "console"\nOidcClientSecret = "secret-of-it"\n'
        'PublicBaseUrl = "https://graphward.invalid"'
    )
    path = write_settings(tmp_path, Egress=proxy, Console=console)
    assert await asyncio.to_thread(main, ["--config", str(path), "--check"]) == 0
    printed = capsys.readouterr().out
    way = f"through the egress proxy 127.0.0.1:{egress.port} (Egress.ProxyUrl)"
    assert f"# way to Console.OidcIssuer: {way}\n" in printed
    assert PASSWORD not in printed
    (finding,) = await asyncio.to_thread(examine_egress, read_settings(path, {}))
    assert (finding.status, finding.found) == ("ok", f"{HOST}:443 is reached {way}")
    egress.names.clear()
    (finding,) = await asyncio.to_thread(examine_egress, read_settings(path, {}))
    assert finding.status == "fail"
    assert f"503 Service Unavailable to CONNECT {HOST}:443" in finding.found
    assert "let the egress proxy resolve and reach" in finding.fix
    path = write_settings(tmp_path, Console=console)
    found = await asyncio.to_thread(examine_egress, read_settings(path, {"ALL_PROXY": "http://e:1"}))
    assert [each.status for each in found] == ["warn"]
