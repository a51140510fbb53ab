"""The certificates of one reading of the settings, for every worker of it, whenever it starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from proxy.config.tls import client_tls, server_tls
from proxy.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerTls:
    """Loaded once and inherited: the files may have changed by the time that a worker is replaced, and what
    is in force is what was found good."""

    listener: ssl.SSLContext | None  # None: without TLS
    upstream: ssl.SSLContext | None


def worker_tls(settings: Settings) -> WorkerTls:
    """Raises OSError, of which ssl.SSLError is one."""
    proxy, upstream = settings.proxy, settings.upstream
    secure = urlsplit(upstream.base_url).scheme == "https"
    return WorkerTls(
        listener=None if proxy.cert_file is None else server_tls(proxy.cert_file, proxy.key_file),
        upstream=client_tls(upstream.ca_file) if secure else None,
    )
