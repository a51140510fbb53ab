"""Handle one request for a token: its known facts, its rate limits, and its single response."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from enum import Enum
from typing import Final

from proxy.ipc.counters import (
    CREDENTIAL_PROBLEMS_FIRST,
    LIMIT_TOKEN_CHECKS,
    LIMIT_TOKEN_FAILURES,
    TOKENS_ISSUED,
    TOKENS_REFUSED,
    UNKNOWN_CLIENTS,
)
from proxy.rules.credentials import Credential
from proxy.server.callers.rulebook import Caller
from proxy.server.client.connection import ClientConnection
from proxy.server.client_limits import network_of
from proxy.server.context import Context
from proxy.server.errors import STOPPED, Refusal
from proxy.server.http1 import own_responses as responses
from proxy.server.http1.request_head import RequestHead
from proxy.server.record.request_record import PendingEvent
from proxy.server.token_endpoint.form import OAuthError
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS

logger = logging.getLogger(__name__)

_PROBLEMS: Final = tuple(CREDENTIAL_PROBLEMS)
_REASON_OF: Final = {
    400: "malformedRequest",
    401: "tokenRefused",
    403: "stopped",
    429: "tooManyFailures",
}
_LONGEST_LOGGED_ID: Final = 64  # characters of a client id to log; a GUID has 36
_NO_STORE: Final = b"Cache-Control: no-store\r\nPragma: no-cache\r\n"


class Access(Enum):
    """Permission of an authenticated application to get a token."""

    GRANTED = "granted"
    DISABLED = "disabled"
    STOPPED = "stopped"  # revealed only to an authenticated caller


class TokenRequest:
    """A request for a token, from the request head until the response is sent.

    The code that checks a client's proof (secret, certificate or key) calls a method of this class to end the
    request.
    """

    __slots__ = ("client_id", "connection", "context", "finished", "head", "pending")

    def __init__(self, context: Context, connection: ClientConnection, head: RequestHead) -> None:
        self.context = context
        self.connection = connection
        self.head = head
        self.finished = False
        self.client_id = ""  # client id that the request states
        context.requests += 1
        self.pending = PendingEvent(
            context.requests,
            int(time.time() * 1000),
            head.method,
            head.target,
            context.client_ip(connection.client_ip, head.fields.forwarded_for),
            head.client_request_id,
        )
        self.pending.trace = head.trace
        self.pending.evaluated = False

    # Rate limits

    def wait_of_address(self) -> int:
        """Return the seconds until the client's address may request a token again.

        Return 0 if the client's address may request a token now.
        """
        context = self.context
        return context.failures_of_address.wait(network_of(self.pending.client_ip), context.deadlines.now)

    def note_failure_of_address(self) -> None:
        context = self.context
        context.failures_of_address.add(network_of(self.pending.client_ip), context.deadlines.now)

    def take_slot(self) -> bool:
        """Reserve a slot for the check of a client's proof outside the event loop.

        If no slot is free, refuse the request and return False.
        """
        context = self.context
        if context.verifying >= context.max_verifying:
            context.counters.values[LIMIT_TOKEN_CHECKS] += 1
            self.refuse(
                Refusal("notReady", "Too many requests for tokens at once.", "notReady", retry_after=1)
            )
            return False
        context.verifying += 1
        return True

    # Responses to the client

    def access_of(self, caller: Caller) -> Access:
        if self.context.rulebook.stops.concern(caller.org_id, caller.app_id):
            return Access.STOPPED
        return Access.GRANTED if caller.enabled else Access.DISABLED

    def issue(self, caller: Caller, credential: Credential | None) -> None:
        """Respond to the request with a new proxy token.

        `credential` is None if the caller authenticated with a secret that is stored only as a hash.
        """
        context, now = self.context, time.time()
        context.counters.values[TOKENS_ISSUED] += 1
        token_id = self.pending.request_id(context)
        token = context.tokens.issue(caller, now=now, token_id=token_id, credential=credential)
        self.pending.verdict = "allow"
        self.pending.reason = "tokenIssued"
        body = {
            "token_type": "Bearer",
            "expires_in": max(0, context.tokens.lifetime(caller, now, credential) - 1),
            "access_token": token,
        }
        self._respond_with_json(200, body, _NO_STORE)

    def count_refusal(self) -> None:
        """Count a client's proof of identity that the token endpoint refused.

        If no application in the rules has the client ID, log the refusal.
        """
        values = self.context.counters.values
        if self.pending.caller is None:
            values[UNKNOWN_CLIENTS] += 1
            named = ascii(self.client_id[:_LONGEST_LOGGED_ID])
            logger.warning(
                "refused a token request of the unknown client %s from %s", named, self.pending.client_ip
            )
        else:
            values[TOKENS_REFUSED] += 1

    def count_problem(self, problem: str, credential_id: str | None) -> None:
        """Count a refused proof of identity, also in the counter for `problem`, the reason of the refusal.

        Store the problem and the credential in the pending audit event.
        """
        self.count_refusal()
        self.context.counters.values[CREDENTIAL_PROBLEMS_FIRST + _PROBLEMS.index(problem)] += 1
        self.pending.credential = credential_id, problem

    def refuse_for_failures(self, wait: int) -> None:
        self.context.counters.values[LIMIT_TOKEN_FAILURES] += 1
        message = "Too many failed attempts by this client or its address."
        self.respond_with_error(OAuthError(429, "temporarily_unavailable", message, retry_after=wait))

    def refuse_unguessable(self, description: str, reason: str = "") -> None:
        """Refuse a client that tried to prove its identity by a key, and failed.

        A client without the private key cannot guess a proof of possession.

        The failure counts only against the client's address. If the failure counted against the client ID,
        attackers could block the client's correct secrets.
        """
        wait = self.wait_of_address()
        if wait:
            self.refuse_for_failures(wait)
            return
        self.note_failure_of_address()
        self.respond_with_error(OAuthError(401, "invalid_client", description), reason)

    def refuse_access(self, access: Access, description: str) -> None:
        """Refuse an application that proved its identity by a key, but that is disabled or stopped."""
        if access is Access.STOPPED:
            self.refuse_stopped()
            return
        self.count_refusal()
        self.refuse_unguessable(description)

    def refuse_stopped(self) -> None:
        self.respond_with_error(OAuthError(403, "emergency_stop", STOPPED))

    def respond_with_error(self, error: OAuthError, reason: str = "") -> None:
        self.pending.reason = reason or _REASON_OF[error.status]
        extra = _NO_STORE
        if error.retry_after:
            extra += b"Retry-After: %d\r\n" % error.retry_after
        if error.status == 401 and self.head.fields.authorization is not None:
            extra += b'WWW-Authenticate: Basic realm="graphward"\r\n'
        body = {"error": error.error, "error_description": error.description} | responses.ids_as_entra(
            self.pending.request_id(self.context), self.pending.client_request_id_text, time.time()
        )
        self._respond_with_json(error.status, body, extra)

    def _respond_with_json(self, status: int, body: Mapping[str, object], extra: bytes) -> None:
        close = not self.connection.persists()
        own_id = self.pending.request_id(self.context)
        extra += responses.id_fields(own_id, self.pending.client_request_id_text)
        head, encoded = responses.json_response(status, body, extra=extra, close=close, now=time.time())
        self._respond(status, head, encoded, close)

    def refuse(self, refusal: Refusal) -> None:
        if self.finished:
            return
        self.pending.reason = refusal.reason
        close = refusal.close or not self.connection.persists()
        head, body = responses.refusal_response(
            refusal,
            request_id=self.pending.request_id(self.context),
            client_request_id=self.pending.client_request_id_text,
            contact=self.context.contact,
            close=close,
            now=time.time(),
        )
        self._respond(refusal.status, head, body, close)

    def _respond(self, status: int, head: bytes, body: bytes, close: bool) -> None:
        self.finished = True
        self.pending.status = status
        self.pending.response_bytes = len(body)
        self._name_bearer()
        if not self.pending.write(self.context):
            self.connection.abort()
            return
        self.connection.write(head if self.head.method == "HEAD" else head + body)
        self.connection.exchange_done(close=close)

    def end_without_response(self, reason: str, status: int) -> None:
        if not self.finished:
            self.finished = True
            self.pending.status = status
            self.pending.reason = reason
            self._name_bearer()
            self.pending.write(self.context)

    def _name_bearer(self) -> None:
        """Assign the audit event to the proxy token's owner if the form names no known application."""
        pending, context = self.pending, self.context
        if pending.caller is None and context.can_record(pending.record_bytes):
            pending.caller = context.tokens.issued_to(self.head.fields.authorization, pending.time_ms / 1000)
