"""Handlers of `urllib.request` for the command line, which send requests through the egress proxy."""

from __future__ import annotations

import ssl
from typing import Final
from urllib.request import BaseHandler, ProxyHandler, Request

from proxy.outbound.egress import Egress

_AFTER_HOST: Final = 600  # after 500, the order of the handlers that set the Host field of the target
# OpenSSL's verify codes for a self-signed certificate or an unknown issuer.
_UNKNOWN_AUTHORITY: Final = (18, 19, 20, 21)


def egress_handlers(egress: Egress) -> tuple[BaseHandler, ...]:
    """Return the egress handlers for an opener of `urllib.request`.

    Without egress handlers, urllib would read the proxy environment variables itself, and by different rules
    than Graphward.
    """
    return ProxyHandler({}), _ThroughEgress(egress)


def named_reason(egress: Egress, url: str, reason: object) -> str:
    """Return the reason why a request to a URL failed.

    If the request went through the egress proxy, the reason names that proxy without its credentials.
    """
    proxy = egress.proxy_for(url)
    return str(reason) if proxy is None else f"{proxy.masked(str(reason))} (through the egress proxy {proxy})"


class _ThroughEgress(BaseHandler):
    """Handler of `urllib.request` that chooses the route of each request, also after a redirect."""

    handler_order = _AFTER_HOST

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    def https_request(self, request: Request) -> Request:
        proxy = self._egress.proxy_for(request.full_url)
        if proxy is not None:
            if proxy.authorization:  # if the target has TLS, urllib sends this field only in CONNECT
                request.add_unredirected_header("Proxy-Authorization", proxy.authorization)
            request.set_proxy(str(proxy), "http")
        return request

    http_request = https_request


def cure_of_certificate(reason: object) -> str:
    """Return the remedy for a certificate from an unknown authority, or an empty text for another error."""
    if isinstance(reason, ssl.SSLCertVerificationError) and reason.verify_code in _UNKNOWN_AUTHORITY:
        return "; set SSL_CERT_FILE to the file of its authority, if that is a private one"
    return ""
