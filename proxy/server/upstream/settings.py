"""Settings of the connections to the upstream: address, TLS, time-outs and limits."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from proxy.outbound.egress import EgressProxy


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Address of the upstream, TLS settings, time limits in seconds, and limits on connections."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    connect_timeout: float
    response_timeout: float
    idle_timeout: float
    max_connections: int
    max_waiting: int  # requests that may wait while no connection is free and none may be opened
    max_header_bytes: int
    egress: EgressProxy | None = None  # None for direct connections
