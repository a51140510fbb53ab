"""The token endpoint, its aliases and the discovery documents that identity libraries ask for
(docs/clients.md).

A secret is compared with its argon2 hash off the event loop; one that was right is remembered, as a keyed
digest, so that an application that asks often costs little. Who has failed too often, a client or an
address, is told to wait, and costs no comparison until then.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import time
from asyncio import Future
from typing import Final
from urllib.parse import parse_qsl, unquote_plus

import argon2

from proxy.ipc.counters import (
    LIMIT_TOKEN_CHECKS,
    LIMIT_TOKEN_FAILURES,
    TOKENS_ISSUED,
    TOKENS_REFUSED,
    UNKNOWN_CLIENTS,
)
from proxy.rules.stops import Stops
from proxy.server.callers.rulebook import Caller
from proxy.server.callers.token_keeper import STOPPED
from proxy.server.client.connection import ClientConnection
from proxy.server.client.handler import RequestHandler
from proxy.server.client_limits import network_of
from proxy.server.context import Context
from proxy.server.errors import Refusal
from proxy.server.http1 import own_responses as responses
from proxy.server.http1.request_head import RequestHead
from proxy.server.record.request_record import PendingEvent
from proxy.wire.audit_event import STATUS_CLIENT_LEFT, STATUS_FAULT

logger = logging.getLogger(__name__)

MAX_FORM_BYTES: Final = 64 * 1024  # Microsoft's libraries send assertions of some KB
MAX_FORM_FIELDS: Final = 64

_TOKEN: Final = re.compile(r"/proxy/token|/(?!v1\.0/|beta/|proxy/)[^/?]+/oauth2/v2\.0/token")
_DISCOVERY: Final = re.compile(
    r"(/(?!v1\.0/|beta/|proxy/)[^/?]+)(?:/v2\.0)?/\.well-known/openid-configuration"
)
_KEYS: Final = re.compile(r"/(?!v1\.0/|beta/|proxy/)[^/?]+/discovery/v2\.0/keys")

_FORM: Final = b"application/x-www-form-urlencoded"
_REASON_OF: Final = {
    400: "malformedRequest",
    401: "tokenRefused",
    403: "stopped",
    429: "tooManyFailures",
}
_NO_STORE: Final = b"Cache-Control: no-store\r\nPragma: no-cache\r\n"


def token_exchange_for(
    context: Context, connection: ClientConnection, head: RequestHead
) -> TokenExchange | DocumentExchange | None:
    """The exchange for a target that is the proxy's own, or None where the request is for the upstream."""
    path = head.target.partition("?")[0]
    if _TOKEN.fullmatch(path):
        return TokenExchange(context, connection, head)
    if head.method in ("GET", "HEAD"):
        discovery = _DISCOVERY.fullmatch(path)
        if discovery:
            base = context.own_base(connection.scheme, connection.host_for(head))
            return DocumentExchange(
                context, connection, head, _discovery(base.decode("latin-1"), discovery[1])
            )
        if _KEYS.fullmatch(path):
            # Our tokens are opaque to applications: there is no public key to hand out.
            return DocumentExchange(context, connection, head, {"keys": []})
    return None


def _discovery(base: str, tenant: str) -> dict[str, object]:
    root = base + tenant
    return {
        "issuer": f"{root}/v2.0" if tenant != "/adfs" else root,
        "token_endpoint": f"{root}/oauth2/v2.0/token",
        "authorization_endpoint": f"{root}/oauth2/v2.0/authorize",
        "jwks_uri": f"{root}/discovery/v2.0/keys",
        "response_types_supported": ["token"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "grant_types_supported": ["client_credentials"],
        "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
    }


class DocumentExchange(RequestHandler):
    """A public document of the proxy's own."""

    __slots__ = ("_connection", "_document", "_head")

    def __init__(
        self, context: Context, connection: ClientConnection, head: RequestHead, document: dict[str, object]
    ) -> None:
        self._connection = connection
        self._head = head
        self._document = document

    def begin(self) -> None:
        close = not self._connection.persists()
        head, body = responses.json_response(200, self._document, close=close, now=time.time())
        self._connection.write(head if self._head.method == "HEAD" else head + body)
        self._connection.exchange_done(close=close)

    def request_body(self, chunk: bytes, last: bool) -> None:
        """Not reached: the response is given before a body is read."""

    def refuse(self, refusal: Refusal) -> None:
        self._connection.abort()

    @property
    def record_bytes(self) -> int:
        return 0  # it leaves no event

    def client_left(self) -> None: ...
    def fail(self) -> None: ...
    def waited_too_long(self) -> None: ...
    def pause_response(self) -> None: ...
    def resume_response(self) -> None: ...
    def stop(self, stops: Stops) -> None: ...


class _OAuthError(Exception):
    """An error of RFC 6749 §5.2."""

    def __init__(self, status: int, error: str, description: str, *, retry_after: int = 0) -> None:
        super().__init__(description)
        self.retry_after = retry_after
        self.status = status
        self.error = error
        self.description = description


class TokenExchange(RequestHandler):
    """One request for a proxy token (RFC 6749 §4.4)."""

    __slots__ = ("_body", "_connection", "_context", "_finished", "_head", "_pending")

    def __init__(self, context: Context, connection: ClientConnection, head: RequestHead) -> None:
        self._context = context
        self._connection = connection
        self._head = head
        self._body: list[bytes] = []
        self._finished = False
        context.requests += 1
        self._pending = PendingEvent(
            context.requests,
            int(time.time() * 1000),
            head.method,
            head.target,
            context.client_ip(connection.client_ip, head.fields.forwarded_for),
            head.client_request_id,
        )
        self._pending.trace_id = head.trace_id
        self._pending.evaluated = False

    @property
    def record_bytes(self) -> int:
        """About what its record will take of the spool."""
        return self._pending.record_bytes

    def begin(self) -> None:
        head = self._head
        why = self._context.why_not_ready(self.record_bytes)
        if why is not None:
            self.refuse(Refusal("notReady", why, "notReady", retry_after=5))
        elif head.method != "POST":
            self.refuse(
                Refusal(
                    "methodNotAllowed", "A token is asked for with POST.", "malformedRequest", allow="POST"
                )
            )
        elif head.fields.length > MAX_FORM_BYTES:
            self.refuse(Refusal("payloadTooLarge", "The form is too large.", "payloadTooLarge", close=True))
        elif head.fields.length == 0:
            self._respond_to_form(b"")
        elif head.fields.expect_continue:
            self._connection.write_continue()

    def request_body(self, chunk: bytes, last: bool) -> None:
        if self._finished:
            return
        self._body.append(chunk)
        self._pending.request_bytes += len(chunk)
        if self._pending.request_bytes > MAX_FORM_BYTES:
            self.refuse(Refusal("payloadTooLarge", "The form is too large.", "payloadTooLarge", close=True))
        elif last:
            self._respond_to_form(b"".join(self._body))

    def _respond_to_form(self, body: bytes) -> None:
        try:
            client_id, secret = self._credentials(body)
        except _OAuthError as error:
            self._respond_with_error(error)
            return
        caller = self._context.rulebook.callers.get(client_id)
        self._pending.caller = caller
        known = self._context.known_secrets
        digest = known.digest(client_id, secret)
        if caller is not None and known.knows(digest, caller):
            self._verified(caller, digest)
            return
        wait = self._wait(client_id)
        if wait:
            self._context.counters.values[LIMIT_TOKEN_FAILURES] += 1
            message = "The client or its address has failed too often."
            self._respond_with_error(_OAuthError(429, "temporarily_unavailable", message, retry_after=wait))
            return
        if self._context.verifying >= self._context.max_verifying:
            self._context.counters.values[LIMIT_TOKEN_CHECKS] += 1
            self.refuse(
                Refusal("notReady", "Too many tokens are asked for at once.", "notReady", retry_after=1)
            )
            return
        self._context.verifying += 1
        hashes = caller.secret_hashes if caller is not None else (NOBODYS_HASH,)
        job = self._context.loop.run_in_executor(self._context.executor, _matching, hashes, secret)
        job.add_done_callback(lambda done: self._compared(done, client_id, digest, caller))

    def _wait(self, client_id: str) -> int:
        """Seconds until a comparison may be had; 0 if it may now. What was right before needs none."""
        context = self._context
        now = context.deadlines.now
        address = network_of(self._pending.client_ip)
        return max(
            context.failures_of_address.wait(address, now), context.failures_of_client.wait(client_id, now)
        )

    def _credentials(self, body: bytes) -> tuple[str, str]:
        form = _parse_form(self._head.fields.content_type, body)
        grant = form.get("grant_type")
        if grant is None:
            raise _OAuthError(400, "invalid_request", "The form has no grant_type.")
        if grant != "client_credentials":
            raise _OAuthError(400, "unsupported_grant_type", "The only grant served is client_credentials.")
        authorization = self._head.fields.authorization
        if authorization is not None and authorization[:6].lower() == b"basic ":
            if "client_secret" in form:
                raise _OAuthError(
                    400, "invalid_request", "Credentials are given twice, as Basic and in the form."
                )
            return _parse_basic(authorization[6:])
        client_id, secret = form.get("client_id"), form.get("client_secret")
        if not client_id or not secret:
            raise _OAuthError(401, "invalid_client", "The form has no client_id or no client_secret.")
        return client_id, secret

    def _compared(
        self, done: Future[str | None], client_id: str, digest: bytes, caller: Caller | None
    ) -> None:
        context = self._context
        context.verifying -= 1
        if done.cancelled():  # the worker stops
            return
        matching = done.result()
        if matching is None or caller is None:  # also of those who don't wait for the response
            now = context.deadlines.now
            context.failures_of_address.add(network_of(self._pending.client_ip), now)
            if caller is not None:
                context.failures_of_client.add(client_id, now)
        if self._finished:
            return
        # The active rules may be others by now, and the application's secrets too.
        current = context.rulebook.callers.get(client_id)
        if current is not None and caller is not None and matching in current.secret_hashes:
            self._pending.caller = current
            self._verified(current, digest)
        else:
            self._refuse_secret(caller)

    def _refuse_secret(self, caller: Caller | None) -> None:
        context = self._context
        if caller is None:
            context.counters.values[UNKNOWN_CLIENTS] += 1
            logger.warning("token asked for by an unknown client from %s", self._pending.client_ip)
        else:
            context.counters.values[TOKENS_REFUSED] += 1
        self._respond_with_error(_OAuthError(401, "invalid_client", "The client id or secret is not valid."))

    def _verified(self, caller: Caller, digest: bytes) -> None:
        """The secret is that of `caller`, who is one of the rulebook in force."""
        context = self._context
        if context.rulebook.stops.concern(caller.org_id, caller.app_id):
            # Said to nobody else than to who has the secret.
            self._respond_with_error(_OAuthError(403, "emergency_stop", STOPPED))
            return
        if not caller.enabled:
            self._refuse_secret(caller)
            return
        context.known_secrets.remember(digest, caller)
        context.counters.values[TOKENS_ISSUED] += 1
        token = context.tokens.issue(caller, now=time.time(), token_id=self._pending.request_id(context))
        self._pending.verdict = "allow"
        self._pending.reason = "tokenIssued"
        body = {
            "token_type": "Bearer",
            "expires_in": context.limits.token_lifetime - 1,
            "access_token": token,
        }
        self._response(200, body, _NO_STORE)

    def _respond_with_error(self, error: _OAuthError) -> None:
        self._pending.reason = _REASON_OF[error.status]
        extra = _NO_STORE
        if error.retry_after:
            extra += b"Retry-After: %d\r\n" % error.retry_after
        if error.status == 401 and self._head.fields.authorization is not None:
            extra += b'WWW-Authenticate: Basic realm="graphward"\r\n'
        self._response(error.status, {"error": error.error, "error_description": error.description}, extra)

    def _response(self, status: int, body: dict[str, object], extra: bytes) -> None:
        close = not self._connection.persists()
        head, encoded = responses.json_response(status, body, extra=extra, close=close, now=time.time())
        self._respond(status, head, encoded, close)

    def refuse(self, refusal: Refusal) -> None:
        if self._finished:
            return
        self._pending.reason = refusal.reason
        close = refusal.close or not self._connection.persists()
        head, body = responses.refusal_response(
            refusal,
            request_id=self._pending.request_id(self._context),
            client_request_id=self._pending.client_request_id_text,
            close=close,
            now=time.time(),
        )
        self._respond(refusal.status, head, body, close)

    def _respond(self, status: int, head: bytes, body: bytes, close: bool) -> None:
        self._finished = True
        self._pending.status = status
        self._pending.response_bytes = len(body)
        self._name_bearer()
        if not self._pending.write(self._context):
            self._connection.abort()
            return
        self._connection.write(head if self._head.method == "HEAD" else head + body)
        self._connection.exchange_done(close=close)

    def client_left(self) -> None:
        self._end_without_response("clientAborted", STATUS_CLIENT_LEFT)

    def fail(self) -> None:
        """Ends the exchange for a fault of the proxy; its connection is cut already."""
        self._end_without_response("internalError", STATUS_FAULT)

    def _end_without_response(self, reason: str, status: int) -> None:
        if not self._finished:
            self._finished = True
            self._pending.status = status
            self._pending.reason = reason
            self._name_bearer()
            self._pending.write(self._context)

    def _name_bearer(self) -> None:
        """Give the event to the bearer of a proxy token, if the form named no known application."""
        pending, context = self._pending, self._context
        if pending.caller is None and context.can_record(self.record_bytes):
            pending.caller = context.tokens.issued_to(self._head.fields.authorization, pending.time_ms / 1000)

    def waited_too_long(self) -> None: ...
    def pause_response(self) -> None: ...
    def resume_response(self) -> None: ...

    def stop(self, stops: Stops) -> None:
        """Not needed: once the secret is compared, it is looked at again."""


def _parse_form(content_type: bytes | None, body: bytes) -> dict[str, str]:
    if content_type is None or content_type.partition(b";")[0].strip(b" \t").lower() != _FORM:
        raise _OAuthError(400, "invalid_request", "The body must be application/x-www-form-urlencoded.")
    if body.count(b"&") >= MAX_FORM_FIELDS:
        raise _OAuthError(400, "invalid_request", f"The form has more than {MAX_FORM_FIELDS} fields.")
    try:
        fields = parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise _OAuthError(400, "invalid_request", "The form is not text in UTF-8.") from None
    form = dict(fields)
    if len(form) != len(fields):
        raise _OAuthError(400, "invalid_request", "A form field is given more than once.")
    return form


def _parse_basic(encoded: bytes) -> tuple[str, str]:
    """RFC 7617, with both halves form-encoded as RFC 6749 §2.3.1 asks."""
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode("utf-8")
        user, mark, password = text.partition(":")
        if not mark:
            raise ValueError
        return unquote_plus(user, errors="strict"), unquote_plus(password, errors="strict")
    except (binascii.Error, ValueError):
        raise _OAuthError(401, "invalid_client", "The Basic credentials are malformed.") from None


_hasher: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

# What the secret of an unknown client is compared with, so that the time tells nothing of who is known. Salt
# and digest are random bytes, so that it is no secret's; to hash one would take 50 ms of each start.
NOBODYS_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$h+8w8hiIeAz7m5nvq7QcrA$Sjbc/5lnolFFPP8bCYRyJ4iIHP/HF4NRpVXfDlSy5Hg"
)


def _matching(hashes: tuple[str, ...], secret: str) -> str | None:
    """The hash that is the secret's. Runs in a thread: argon2 takes tens of milliseconds by design and
    releases the interpreter."""
    for each in hashes:
        try:
            if _hasher.verify(each, secret):
                return each
        except argon2.exceptions.VerifyMismatchError:
            continue
        except argon2.exceptions.Argon2Error as error:
            logger.error("a stored secret hash can't be used: %s", type(error).__name__)
        except argon2.exceptions.InvalidHashError:
            logger.error("a stored secret hash can't be used: it is not an argon2 hash")
    return None
