"""Serve the discovery documents that identity libraries request before they request a token.

docs/reference/token-endpoint.md lists their addresses.
"""

from __future__ import annotations

import re
import time
from typing import Final

from proxy.rules.stops import Stops
from proxy.server.assertions.assertion import ALGORITHMS
from proxy.server.client.connection import ClientConnection
from proxy.server.client.handler import RequestHandler
from proxy.server.context import Context
from proxy.server.errors import Refusal
from proxy.server.http1 import own_responses as responses
from proxy.server.http1.request_head import RequestHead

_DISCOVERY: Final = re.compile(
    r"(/(?!v1\.0/|beta/|proxy/)[^/?]+)(?:/v2\.0)?/\.well-known/openid-configuration"
)
_KEYS: Final = re.compile(r"/(?!v1\.0/|beta/|proxy/)[^/?]+/discovery/v2\.0/keys")

_AUTH_METHODS: Final = ["client_secret_post", "client_secret_basic", "private_key_jwt"]


def document_exchange_for(
    context: Context, connection: ClientConnection, head: RequestHead, path: str
) -> DocumentExchange | None:
    """Return the exchange for a GET or HEAD request of a discovery document.

    Return None if `path` is not the path of a discovery document.
    """
    discovery = _DISCOVERY.fullmatch(path)
    if discovery:
        base = context.own_base(connection.scheme, connection.host_for(head))
        return DocumentExchange(connection, head, _discovery(base.decode("latin-1"), discovery[1], context))
    if _KEYS.fullmatch(path):
        # Proxy tokens are opaque to applications, so no public key is published.
        return DocumentExchange(connection, head, {"keys": []})
    return None


def _discovery(base: str, tenant: str, context: Context) -> dict[str, object]:
    root = base + tenant
    document: dict[str, object] = {
        "issuer": f"{root}/v2.0" if tenant != "/adfs" else root,
        "token_endpoint": f"{root}/oauth2/v2.0/token",
        "authorization_endpoint": f"{root}/oauth2/v2.0/authorize",
        "jwks_uri": f"{root}/discovery/v2.0/keys",
        "response_types_supported": ["token"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "grant_types_supported": ["client_credentials"],
        "token_endpoint_auth_methods_supported": _AUTH_METHODS,
        "token_endpoint_auth_signing_alg_values_supported": sorted(ALGORITHMS),
    }
    if context.client_certificates.are_asked_for:
        document["token_endpoint_auth_methods_supported"] = [*_AUTH_METHODS, "self_signed_tls_client_auth"]
        document["tls_client_certificate_bound_access_tokens"] = True  # RFC 8705 §3.3
    return document


class DocumentExchange(RequestHandler):
    """Exchange that serves a public document of the proxy."""

    __slots__ = ("_connection", "_document", "_head")

    def __init__(self, connection: ClientConnection, head: RequestHead, document: dict[str, object]) -> None:
        self._connection = connection
        self._head = head
        self._document = document

    def begin(self) -> None:
        close = not self._connection.persists()
        head, body = responses.json_response(200, self._document, close=close, now=time.time())
        self._connection.write(head if self._head.method == "HEAD" else head + body)
        self._connection.exchange_done(close=close)

    def request_body(self, chunk: bytes, last: bool) -> None:
        """Do nothing: the response is sent before a body is read, so no body reaches this method."""

    def refuse(self, refusal: Refusal) -> None:
        self._connection.abort()

    @property
    def record_bytes(self) -> int:
        return 0  # it has no audit event

    def client_left(self) -> None: ...
    def fail(self) -> None: ...
    def waited_too_long(self) -> None: ...
    def pause_response(self) -> None: ...
    def resume_response(self) -> None: ...
    def stop(self, stops: Stops) -> None: ...
