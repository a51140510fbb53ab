"""The certificates of one reading of the settings, for every process of it, whenever it starts; no others."""

from __future__ import annotations

import contextlib
import functools
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from proxy.config.tls import client_tls, server_tls
from proxy.startup.settings import ProxySettings, Settings

_NOWHERE: Final = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}


@dataclass(frozen=True, slots=True)
class Certificates:
    """Loaded once and inherited: the files may have changed by the time that a process is replaced, and what
    is active is what was found good."""

    # None: without TLS
    listener: ssl.SSLContext | None
    upstream: ssl.SSLContext | None
    control_plane: ssl.SSLContext
    identity_provider: ssl.SSLContext  # the vault's, too
    traces: ssl.SSLContext | None  # None: no spans are sent
    issuers: ssl.SSLContext  # issuers of federated credentials


def certificates(settings: Settings) -> Certificates:
    """Raises OSError, of which ssl.SSLError is one."""
    proxy, upstream = settings.proxy, settings.upstream
    secure = urlsplit(upstream.base_url).scheme == "https"
    trusting = functools.cache(client_tls)  # the system's authorities take 25 to 50 ms to read
    return Certificates(
        listener=_listener(proxy),
        upstream=trusting(upstream.ca_file) if secure else None,
        control_plane=trusting(settings.agent.ca_file),
        identity_provider=trusting(settings.identity_ca_file),
        traces=trusting(settings.traces.ca_file) if settings.traces.otlp_url else None,
        issuers=trusting(settings.callers.issuer_ca_file),
    )


def _listener(proxy: ProxySettings) -> ssl.SSLContext | None:
    if proxy.cert_file is None:
        return None
    return server_tls(
        proxy.cert_file, proxy.key_file, ask_for_certificate=proxy.client_certificates == "optional"
    )


@contextlib.contextmanager
def without_system_authorities() -> Iterator[None]:
    """For the import of aiohttp, which reads them twice, a sixth of all the time that a start takes, for
    connections without a context of their own. Ours have one each, and any other trusts nobody then."""
    before = {name: os.environ.get(name) for name in _NOWHERE}
    os.environ.update(_NOWHERE)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
