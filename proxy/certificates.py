"""The certificates of one reading of the settings, for every process of it, whenever it starts."""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from proxy.config.tls import client_tls, server_tls
from proxy.settings import Settings


@dataclass(frozen=True, slots=True)
class Certificates:
    """Loaded once and inherited: the files may have changed by the time that a process is replaced, and what
    is in force is what was found good."""

    # None: without TLS
    listener: ssl.SSLContext | None
    upstream: ssl.SSLContext | None
    control_plane: ssl.SSLContext
    identity_provider: ssl.SSLContext  # the vault's, too


def certificates(settings: Settings) -> Certificates:
    """Raises OSError, of which ssl.SSLError is one."""
    proxy, upstream = settings.proxy, settings.upstream
    secure = urlsplit(upstream.base_url).scheme == "https"
    trusting = functools.cache(client_tls)  # the system's authorities take 25 ms to read
    return Certificates(
        listener=None if proxy.cert_file is None else server_tls(proxy.cert_file, proxy.key_file),
        upstream=trusting(upstream.ca_file) if secure else None,
        control_plane=trusting(settings.agent.ca_file),
        identity_provider=trusting(settings.identity_ca_file),
    )
