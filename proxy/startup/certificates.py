"""TLS certificates that the proxy loads once from the settings and shares among all its processes."""

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
    """TLS contexts that are loaded once and inherited by all processes of the proxy.

    An operator may change the certificate files before the supervisor replaces a process. A process started
    as a replacement still uses the TLS contexts that were checked at the start or the reload.
    """

    # None without TLS
    listener: ssl.SSLContext | None
    upstream: ssl.SSLContext | None
    control_plane: ssl.SSLContext
    identity_provider: ssl.SSLContext  # also used for the vault
    traces: ssl.SSLContext | None  # None if no spans are sent
    issuers: ssl.SSLContext  # trust for the issuers of federated credentials


def certificates(settings: Settings) -> Certificates:
    """Load all TLS certificates whose files the settings name.

    Raise OSError, which includes ssl.SSLError, if a certificate or key can't be loaded.
    """
    proxy, upstream = settings.proxy, settings.upstream
    secure = urlsplit(upstream.base_url).scheme == "https"
    trusting = functools.cache(client_tls)  # reading the system's authorities takes 25 to 50 ms
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
    """While aiohttp is imported, hide the system's TLS authorities from aiohttp.

    While aiohttp is imported, it reads the TLS authorities twice. The two reads of the TLS authorities take a
    sixth of the program's start time. The program gives aiohttp a TLS context for each connection. A
    connection without such a TLS context would trust no TLS authority.
    """
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
