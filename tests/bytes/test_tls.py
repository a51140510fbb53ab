"""Tests of TLS between real sockets: the TLS versions, and handshakes that count against the limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from proxy.config.tls import client_tls, server_tls
from proxy.ipc import counters
from proxy.server.client.tls_listener import TlsListener
from proxy.server.router import handler_for
from proxy.startup.certificates import without_system_authorities
from tests.bytes.data_path import DataPath, Reply, data_path, ok, read_reply, responding, until
from tests.fakes.certificates import CertificateAuthority, speak_old_tls


@pytest.mark.parametrize("ours", ["server", "client"])
async def test_versions_before_1_2_are_refused_though_the_machine_allows_them(
    tmp_path: Path, ours: str
) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate = authority.server()
    server = server_tls(certificate.cert_file, certificate.key_file)
    client = client_tls(authority.ca_file)
    assert await _agreed(server, client) == ("TLSv1.3", "http/1.1")
    lax, other = (server, client) if ours == "server" else (client, server)
    lax.set_ciphers("ALL:@SECLEVEL=0")
    speak_old_tls(other)
    with pytest.raises(OSError):  # noqa: PT011 - a reset or a TLS alert: whichever side gives up first
        await _agreed(server, client)


async def test_without_the_systems_authorities_a_context_trusts_nobody_and_later_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate = authority.server()
    server = server_tls(certificate.cert_file, certificate.key_file)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    with without_system_authorities():
        distrustful = ssl.create_default_context()
    with pytest.raises(ssl.SSLCertVerificationError):
        await _agreed(server, distrustful)
    assert os.environ["SSL_CERT_FILE"] == str(authority.ca_file)
    assert "SSL_CERT_DIR" not in os.environ
    assert await _agreed(server, client_tls(None)) == ("TLSv1.3", "http/1.1")


async def _agreed(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str | None, str | None]:
    """Return the TLS version and the application protocol that client and proxy agreed on."""
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=server)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        secured = writer.get_extra_info("ssl_object")
        writer.transport.abort()
        return secured.version(), secured.selected_alpn_protocol()


class Listener:
    """A TLS listener of the data path, and the test clients that connect to it."""

    def __init__(self, proxy: DataPath, authority: CertificateAuthority, *, handshake_timeout: float) -> None:
        certificate = authority.server()
        tls = server_tls(certificate.cert_file, certificate.key_file)
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._proxy = proxy
        self._port = listening.getsockname()[1]
        self._client = client_tls(authority.ca_file)
        self._silent: list[asyncio.StreamWriter] = []
        self._served = TlsListener(proxy.context, handler_for, listening, tls, handshake_timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *of: object) -> None:
        self._served.close()
        for writer in self._silent:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def ask(self) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._client)
        try:
            writer.write(self._proxy.request())
            return await read_reply(reader)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def silent(self) -> asyncio.StreamReader:
        """Open a client connection that never begins the TLS handshake."""
        before = self._proxy.context.handshakes
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._silent.append(writer)
        await until(lambda: self._proxy.context.handshakes != before or reader.at_eof())
        return reader

    def say(self, data: bytes) -> None:
        """Send bytes on the client connection that `silent` opened last."""
        self._silent[-1].write(data)


@pytest.mark.parametrize(
    ("limits", "counter"),
    [
        ({"max_connections_per_address": 3}, counters.LIMIT_ADDRESS_CONNECTIONS),
        ({"max_connections": 3}, counters.LIMIT_CONNECTIONS),
    ],
)
async def test_a_handshake_counts_as_the_connection_that_it_begins(
    tmp_path: Path, limits: dict[str, int], counter: int
) -> None:
    authority = CertificateAuthority(tmp_path / "certificates")
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        proxy.context.limits = replace(proxy.context.limits, **limits)
        async with Listener(proxy, authority, handshake_timeout=1) as listener:
            assert (await listener.ask()).status == 200
            await until(lambda: not proxy.context.connections)
            silent = [await listener.silent() for _ in range(3)]
            reply = await listener.ask()
            assert (reply.status, reply.value("retry-after") is not None) == (503, True)
            assert proxy.context.counters.values[counter] == 1
            # Further silent clients are closed without a handshake.
            more = [await listener.silent() for _ in range(40)]
            assert proxy.context.handshakes <= 3 + 16
            for each in (*more, *silent):
                assert await each.read() == b""  # the end comes at once, or after its time
            await until(lambda: not proxy.context.handshakes)
            assert (await listener.ask()).status == 200
        await until(lambda: not proxy.context.addresses)


async def test_a_handshake_that_fails_counts_no_longer(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "certificates")
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        proxy.context.limits = replace(proxy.context.limits, max_connections_per_address=2)
        async with Listener(proxy, authority, handshake_timeout=5) as listener:
            for _ in range(5):
                reader = await listener.silent()
                listener.say(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                await until(lambda: not proxy.context.handshakes and not proxy.context.connections)
                assert (await listener.ask()).status == 200
