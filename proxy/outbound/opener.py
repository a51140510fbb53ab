"""Handlers of `urllib.request` whose connections leave through the egress proxy, for the command line."""

from __future__ import annotations

import ssl
from typing import Final
from urllib.request import BaseHandler, ProxyHandler, Request

from proxy.outbound.egress import Egress

_AFTER_HOST: Final = 600  # the handlers that set the Host field of the target have 500
_UNKNOWN_AUTHORITY: Final = (18, 19, 20, 21)  # verify codes of OpenSSL: self-signed, or no issuer found


def egress_handlers(egress: Egress) -> tuple[BaseHandler, ...]:
    """Return the handlers for an opener. Without them, urllib reads the variables in its own way."""
    return ProxyHandler({}), _ThroughEgress(egress)


def named_reason(egress: Egress, url: str, reason: object) -> str:
    """Return why a call failed, with the egress proxy that it took and without its credentials."""
    proxy = egress.proxy_for(url)
    return str(reason) if proxy is None else f"{proxy.masked(str(reason))} (through the egress proxy {proxy})"


class _ThroughEgress(BaseHandler):
    """Chooses the way of each request, of a redirected one too."""

    handler_order = _AFTER_HOST

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    def https_request(self, request: Request) -> Request:
        proxy = self._egress.proxy_for(request.full_url)
        if proxy is not None:
            if proxy.authorization:  # urllib sends it in CONNECT alone if the target has TLS
                request.add_unredirected_header("Proxy-Authorization", proxy.authorization)
            request.set_proxy(str(proxy), "http")
        return request

    http_request = https_request


def cure_of_certificate(reason: object) -> str:
    """Return what to do about the certificate of an unknown authority, to be appended; empty for all else."""
    if isinstance(reason, ssl.SSLCertVerificationError) and reason.verify_code in _UNKNOWN_AUTHORITY:
        return "; set SSL_CERT_FILE to the file of its authority, if that is a private one"
    return ""
