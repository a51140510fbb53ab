"""Serve the token endpoint and its aliases, and choose how each request proves its client.

docs/reference/token-endpoint.md lists the aliases and the form fields.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.rules.stops import Stops
from proxy.server.client.connection import ClientConnection
from proxy.server.client.handler import RequestHandler
from proxy.server.context import Context
from proxy.server.errors import Refusal
from proxy.server.http1.request_head import RequestHead
from proxy.server.token_endpoint.by_assertion import has_assertion, prove_by_assertion
from proxy.server.token_endpoint.by_certificate import has_certificate_alone, prove_by_certificate
from proxy.server.token_endpoint.by_secret import prove_by_secret
from proxy.server.token_endpoint.discovery import DocumentExchange, document_exchange_for
from proxy.server.token_endpoint.form import OAuthError, client_credentials_form, id_and_secret
from proxy.server.token_endpoint.token_request import TokenRequest
from proxy.wire.audit_event import STATUS_CLIENT_LEFT, STATUS_FAULT

MAX_FORM_BYTES: Final = 64 * 1024  # assertions of Microsoft's libraries take some KB

_TOKEN: Final = re.compile(r"/proxy/token|/(?!v1\.0/|beta/|proxy/)[^/?]+/oauth2/v2\.0/token")


def token_exchange_for(
    context: Context, connection: ClientConnection, head: RequestHead
) -> TokenExchange | DocumentExchange | None:
    """Return the exchange for a request that the proxy itself serves.

    Return None if the request is for the upstream.
    """
    path = head.target.partition("?")[0]
    if _TOKEN.fullmatch(path):
        return TokenExchange(context, connection, head)
    if head.method in ("GET", "HEAD"):
        return document_exchange_for(context, connection, head, path)
    return None


class TokenExchange(RequestHandler):
    """Exchange that serves one request for a proxy token (RFC 6749 §4.4)."""

    __slots__ = ("_body", "_request")

    def __init__(self, context: Context, connection: ClientConnection, head: RequestHead) -> None:
        self._request = TokenRequest(context, connection, head)
        self._body: list[bytes] = []

    @property
    def record_bytes(self) -> int:
        """Approximate number of bytes that the record of the token request will take in the spool."""
        return self._request.pending.record_bytes

    def begin(self) -> None:
        request, head = self._request, self._request.head
        why = request.context.why_not_ready(self.record_bytes)
        if why is not None:
            self.refuse(Refusal("notReady", why, "notReady", retry_after=5))
        elif head.method != "POST":
            self.refuse(
                Refusal("methodNotAllowed", "Use POST to request a token.", "malformedRequest", allow="POST")
            )
        elif head.fields.length > MAX_FORM_BYTES:
            self._refuse_large_form()
        elif head.fields.length == 0:
            self._respond_to_form(b"")
        elif head.fields.expect_continue:
            request.connection.write_continue()

    def request_body(self, chunk: bytes, last: bool) -> None:
        request = self._request
        if request.finished:
            return
        self._body.append(chunk)
        request.pending.request_bytes += len(chunk)
        if request.pending.request_bytes > MAX_FORM_BYTES:
            self._refuse_large_form()
        elif last:
            self._respond_to_form(b"".join(self._body))

    def _refuse_large_form(self) -> None:
        self.refuse(Refusal("payloadTooLarge", "The form is too large.", "payloadTooLarge", close=True))

    def _respond_to_form(self, body: bytes) -> None:
        request, fields = self._request, self._request.head.fields
        try:
            form = client_credentials_form(fields.content_type, body)
            request.client_id = form.get("client_id", "")
            if has_assertion(form):
                prove_by_assertion(request, form)
                return
            if has_certificate_alone(request, form):
                prove_by_certificate(request, form["client_id"])
                return
            client_id, secret = id_and_secret(form, fields.authorization)
            request.client_id = client_id
        except OAuthError as error:
            request.respond_with_error(error)
            return
        prove_by_secret(request, client_id, secret)

    def refuse(self, refusal: Refusal) -> None:
        self._request.refuse(refusal)

    def client_left(self) -> None:
        self._request.end_without_response("clientAborted", STATUS_CLIENT_LEFT)

    def fail(self) -> None:
        """End the exchange after a fault of the proxy.

        The client connection of the exchange is already aborted.
        """
        self._request.end_without_response("internalError", STATUS_FAULT)

    def waited_too_long(self) -> None: ...
    def pause_response(self) -> None: ...
    def resume_response(self) -> None: ...

    def stop(self, stops: Stops) -> None:
        """Ignore the emergency stop, because stops are checked again after the caller has authenticated."""
