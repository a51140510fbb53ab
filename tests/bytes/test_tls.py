"""Versions of TLS, between real sockets."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from proxy.config.tls import client_tls, server_tls
from tests.standins.certificates import CertificateAuthority, speak_old_tls


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
    with pytest.raises(OSError):  # noqa: PT011 - a reset, or TLS's own word: whichever side gives up first
        await _agreed(server, client)


async def _agreed(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str | None, str | None]:
    """Version and application protocol."""
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=server)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        secured = writer.get_extra_info("ssl_object")
        writer.transport.abort()
        return secured.version(), secured.selected_alpn_protocol()
