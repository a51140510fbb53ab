"""Authentication of callers by session or API token, and defence against cross-site requests."""

from __future__ import annotations

import asyncio
import email.policy
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.parser import BytesParser
from functools import partial
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
from aiohttp import web

from controlplane.admin.attempts import WINDOW_MS, Attempts, AttemptsInMemory, AttemptsInStore
from controlplane.admin.csrf import CSRF_FIELD, CSRF_HEADER, is_token, masked_token
from controlplane.errors import Refused
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import Operation, Request, Response
from controlplane.operations.perform import perform as perform_logged
from controlplane.requests import connection_of, read_body
from controlplane.search.query import fold
from controlplane.secrets import digest, hash_password, is_password
from controlplane.store.interface import (
    SESSION_IDLE_MS,
    SESSION_MS,
    LogBound,
    NewLogLine,
    Operator,
    StoreError,
)

_TOUCHED_EVERY_MS: Final = 60_000  # ms between writes to the disk for a session in use
_MAX_BODY_BYTES: Final = 10 * 1024 * 1024  # bytes; the largest ruleset as a string in JSON
_LARGE_BODY_BYTES: Final = 64 * 1024  # bytes; smaller bodies are limited only by the number of connections
# large bodies of one operator, which are held in the memory of the process that receives events
_LARGE_BODIES_OF_ONE: Final = 2
_LARGE_BODIES_AT_ONCE: Final = 16
_MAX_STRANGERS_BODY_BYTES: Final = 16 * 1024
_HASHES_AT_ONCE: Final = 2  # password hashes; each takes 19 MiB and a processor, which delays proxies
_MOST_HASHES_WAITING: Final = 64
# Lines for unknown names in the operator log, in a window. Further ones are only in the log, because they may
# be a flood.
_MOST_UNKNOWN_RECORDED: Final = 200
_NOBODY: Final = "unknown"  # the name in such a line
_LONGEST_PASSWORD: Final = 1024
_STALE: Final = (
    "the roles of this token's operator come from the identity provider and have ended: "
    "the token works again after the operator's next sign-in"
)
_FILES: Final = "multipart/form-data"
_FORMS: Final = ("application/x-www-form-urlencoded", _FILES)

_log = logging.getLogger(__name__)
A = TypeVar("A", bound=Response)
Q = TypeVar("Q", bound=Request)


@dataclass(frozen=True, slots=True)
class _Caller:
    """The caller that sent an HTTP request: an operator, or an unauthenticated client.

    A caller whose `actor` is None is not authenticated.
    """

    actor: Actor | None
    session_id: str | None = None  # id from the cookie, if the cookie authenticated the caller
    said: str = ""  # reason why a caller that was authenticated before no longer is


_CALLER: Final = web.RequestKey("asker", _Caller)
_BODY: Final = web.RequestKey("body", bytes)
_LARGE: Final = web.RequestKey("large", str)  # operator with a body that takes much memory


class Gate:
    def __init__(
        self,
        context: OperationContext,
        *,
        secure: bool,
        body_timeout_seconds: float,
        hosts: Collection[str] | None = None,
    ) -> None:
        """`hosts` lists the host names by which browsers reach this server, in addition to loopback names.

        If `hosts` is None, the server accepts any host name.
        """
        self.context = context
        self._hosts = hosts
        self._body_timeout_seconds = body_timeout_seconds
        self._attempts: Attempts = (
            AttemptsInStore(context.store) if context.store.is_shared else AttemptsInMemory(context.clock)
        )
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)
        self._hashes_waiting = 0
        self._large: Counter[str] = Counter()  # large bodies in progress by operator
        self._recording: set[asyncio.Task[None]] = set()
        self.secure = secure
        self._nobodys_hash = hash_password(secrets.token_urlsafe(32))

    @property
    def _cookie(self) -> str:
        # The prefix binds the cookie to this host, over TLS only (RFC 6265bis section 4.1.3).
        return "__Host-graphward" if self.secure else "graphward"

    # Callers

    async def caller(self, request: web.Request) -> _Caller:
        """Return the caller of a request.

        The caller is looked up before the request body arrives, and again after the body has arrived.

        If the caller's role or session ended while the body arrived, the look-up after the body refuses the
        request.
        """
        known = request.get(_CALLER)
        if known is None:
            known = request[_CALLER] = await self._caller(request)
            if known.actor is not None:
                connection_of(request).proved()
        return known

    async def is_still(self, request: web.Request, actor: Actor) -> bool:
        """Look up the caller of a request again, and return True if actor and roles are unchanged."""
        return (await self._caller(request)).actor == actor

    async def _caller(self, request: web.Request) -> _Caller:
        given = request.headers.getall("Authorization", ())
        if given:
            return await self._of_token(request, given[0]) if len(given) == 1 else _Caller(None)
        session_id = request.cookies.get(self._cookie)
        if not session_id:
            return _Caller(None)
        actor = await self._of_session(request, session_id)
        return _Caller(actor, session_id if actor else None)

    async def _of_token(self, request: web.Request, authorization: str) -> _Caller:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return _Caller(None)
        found, now = await self.context.store.token(digest(token.strip(" "))), self.context.clock.wall_ms()
        if found is None or found.expires_ms <= now:
            return _Caller(None)
        operator = await self.context.store.operator(found.operator_id)
        if operator is None or not operator.enabled:
            return _Caller(None)
        return _Caller(_actor_of(operator, request)) if operator.may_act(now) else _Caller(None, said=_STALE)

    async def _of_session(self, request: web.Request, session_id: str) -> Actor | None:
        key, now = digest(session_id), self.context.clock.steady_ms()
        session = await self.context.store.session(key)
        if session is None:
            return None
        if now - session.used_ms >= SESSION_IDLE_MS or now - session.created_ms >= SESSION_MS:
            return None
        actor = await self._actor(request, session.operator_id)
        if actor is not None and now - session.used_ms >= _TOUCHED_EVERY_MS:
            with suppress(StoreError):  # a full disk must not keep an operator from reading
                await self.context.store.use_session(key)
        return actor

    async def _actor(self, request: web.Request, operator_id: str) -> Actor | None:
        operator = await self.context.store.operator(operator_id)
        if operator is None or not operator.may_act(self.context.clock.wall_ms()):
            return None
        return _actor_of(operator, request)

    # Other sites

    async def keep_other_sites_out(self, request: web.Request) -> None:
        """Refuse unknown host names, and changes that another web site made the browser request.

        If another site's host name resolves to this server (DNS rebinding), browsers treat this server as
        part of that site.
        """
        if self._hosts is not None and not _is_named(request, self._hosts):
            said = "this host name is not configured: set Console.PublicBaseUrl to the browsers' address"
            raise Refused("forbidden", said)
        if request.method in ("GET", "HEAD", "OPTIONS"):
            return
        if not _is_same_origin(request):
            raise Refused("forbidden", "the request came from another site than the control plane")
        caller = await self.caller(request)
        if caller.session_id is None:
            return
        given = request.headers.get(CSRF_HEADER, "")
        if not given and request.content_type in _FORMS:
            given = (await self.form(request)).get(CSRF_FIELD, "")
        if not is_token(given, caller.session_id):
            raise Refused(
                "forbidden", f"the request lacks the CSRF token of its session in the header {CSRF_HEADER}"
            )

    # Bodies

    async def body(self, request: web.Request) -> bytes:
        """Return the complete request body. An unauthenticated caller may send only a small body.

        When the request body is complete, the caller is looked up a second time.
        """
        known = request.get(_BODY)
        if known is None:
            actor = (await self.caller(request)).actor
            cap = _MAX_STRANGERS_BODY_BYTES if actor is None else _MAX_BODY_BYTES
            too_large = partial(Refused, "payloadTooLarge", f"the body must have at most {cap} bytes")
            if actor is not None and _may_be_large(request):
                self._hold_large(request, actor.name)
            known = request[_BODY] = await read_body(request, cap, self._body_timeout_seconds, too_large)
            request[_CALLER] = await self._caller(request)
        return known

    def _hold_large(self, request: web.Request, name: str) -> None:
        if self._large[name] >= _LARGE_BODIES_OF_ONE or self._large.total() >= _LARGE_BODIES_AT_ONCE:
            raise Refused("unavailable", "too many large requests are in progress", Retry_After="5")
        self._large[name] += 1
        request[_LARGE] = name

    def let_go(self, request: web.Request) -> None:
        """Release the memory of the request body when the response has been sent."""
        name = request.pop(_LARGE, None)
        if name is not None:
            self._large[name] -= 1
            if not self._large[name]:
                del self._large[name]

    async def form(self, request: web.Request) -> Mapping[str, str]:
        """Return the fields of a submitted form.

        If the form contains uploaded files, `form` returns each file as text.

        If several form fields have the same name, the last of these fields counts.
        """
        try:
            if request.content_type == _FILES:
                kind = request.headers["Content-Type"].encode("latin-1", "strict")
                return await asyncio.to_thread(_parts, kind, await self.body(request))
            text = (await self.body(request)).decode()
            if len(text) <= _LARGE_BODY_BYTES:
                return _fields(text)
            return await asyncio.to_thread(_fields, text)  # may take seconds, so it runs in a thread
        except ValueError:
            raise Refused("invalidRequest", "the submitted form is malformed") from None

    # Sign-in

    async def sign_in(
        self, request: web.Request, response: web.StreamResponse, name: str, password: str
    ) -> Actor:
        """Begin a session of the operator, and set the session cookie in `response`.

        Raise Refused if the sign-in attempt fails.

        The Refused error has the code `unauthenticated` or `tooManyAttempts`. The response has the same text
        and takes the same time for an unknown operator name as for a known name.
        """
        with self._place_among_hashes():
            await self.begin_attempt(request, name)
            operator = await self._named(name)
            hashed = operator.password_hash if operator is not None and operator.enabled else None
            right = await self._is_password(hashed or self._nobodys_hash, password[: _LONGEST_PASSWORD + 1])
        if operator is None or hashed is None or not right:
            self.record_failure(request, operator)
            raise Refused("unauthenticated", "name or password is wrong")
        await self.forgive_attempt(request, name)
        return await self.begin_session(request, response, operator, details={"proof": "password"})

    async def begin_session(
        self,
        request: web.Request,
        response: web.StreamResponse,
        operator: Operator,
        *,
        details: Mapping[str, str] = MappingProxyType({}),
        org_ids: Sequence[str] = (),
    ) -> Actor:
        """Begin a session of the operator, and end any session that the request already belongs to.

        The operator log stores `details` in a line that operators of the organisations `org_ids` can read.
        """
        before = (await self.caller(request)).session_id
        if before is not None:
            await self.context.store.remove_session(digest(before))
        session_id = secrets.token_urlsafe(32)
        added = await self.context.store.add_session(
            digest(session_id), operator.operator_id, operator.password_hash
        )
        if not added:  # comparing takes time, and the password was replaced in that time
            self.record_failure(request, operator)
            raise Refused("unauthenticated", "name or password is wrong")
        await self._record_sign_in(operator.name, _address(request), "done", details, org_ids)
        response.set_cookie(
            self._cookie, session_id, path="/", httponly=True, secure=self.secure, samesite="Lax"
        )
        actor = _actor_of(operator, request)
        request[_CALLER] = _Caller(actor, session_id)
        return actor

    async def sign_out(self, request: web.Request, response: web.StreamResponse) -> None:
        """Delete the session from the store, and delete the session cookie in the browser."""
        caller = await self.caller(request)
        if caller.session_id is not None and caller.actor is not None:
            await self.context.store.remove_session(digest(caller.session_id))
        response.del_cookie(self._cookie, path="/", httponly=True, secure=self.secure, samesite="Lax")

    async def operators_known_as(self, names: Iterable[str]) -> list[Operator]:
        """Return the local operators whose name is in `names`.

        The caller passes only `names` that an identity provider has verified.
        """
        found = {each.operator_id: each for name in names if (each := await self._named(name)) is not None}
        return list(found.values())

    async def begin_attempt(self, request: web.Request, name: str | None) -> None:
        """Count a sign-in attempt as failed, until the attempt succeeds.

        Raise Refused with `tooManyAttempts` if the client must wait before the next attempt.
        """
        wait = await self._attempts.begin(name, _address(request))
        if wait:
            raise Refused(
                "tooManyAttempts", f"too many failed sign-ins; try again in {wait} s", Retry_After=str(wait)
            )

    async def forgive_attempt(self, request: web.Request, name: str | None) -> None:
        await self._attempts.forgive(name, _address(request))

    async def _named(self, name: str) -> Operator | None:
        """Return the local operator whose name equals `name`, in any letter case.

        A login name can't be an operator ID: at an identity provider, a person's name may look like such an
        ID.
        """
        operator = await self.context.store.operator(name)
        if operator is None or operator.provided is not None:
            return None
        return operator if fold(operator.name) == fold(name) else None

    @contextmanager
    def _place_among_hashes(self) -> Iterator[None]:
        """If too many password hashes wait to be computed, refuse a sign-in before the attempt is counted.

        A refused sign-in attempt is not counted. The control plane stores only a limited number of failed
        attempts. If refused attempts were counted, they could displace failed attempts of other clients.
        """
        if self._hashes_waiting >= _MOST_HASHES_WAITING:
            raise Refused("unavailable", "too many sign-ins are in progress", Retry_After="5")
        self._hashes_waiting += 1
        try:
            yield
        finally:
            self._hashes_waiting -= 1

    async def _is_password(self, hashed: str, password: str) -> bool:
        async with self._hashing:
            return await asyncio.to_thread(is_password, hashed, password)

    def record_failure(
        self,
        request: web.Request,
        operator: Operator | None,
        *,
        code: str = "unauthenticated",
        details: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Write a failed sign-in to the log and to the operator log.

        The response to the sign-in does not wait for the log entry, because the response time must not show
        whether the operator exists. A name that an unauthenticated client typed is not stored, because the
        client may have typed a password as the name. If an identity provider gave `details` of the failure,
        the operator log stores these details.
        """
        address = _address(request)
        _log.warning("sign-in from %s failed", address)
        name = operator.name if operator is not None else _NOBODY
        task = asyncio.create_task(self._record_sign_in(name, address, code, details))
        self._recording.add(task)
        task.add_done_callback(self._recorded)

    def _recorded(self, task: asyncio.Task[None]) -> None:
        self._recording.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("could not write a failed sign-in to the operator log: %s", error)

    async def close(self, _: web.Application) -> None:
        """Wait until the operator log contains all failed sign-ins.

        Call `close` when the server no longer accepts requests.
        """
        await asyncio.gather(*self._recording, return_exceptions=True)

    async def _record_sign_in(
        self,
        name: str,
        address: str,
        outcome: str,
        details: Mapping[str, str] = MappingProxyType({}),
        org_ids: Sequence[str] = (),
    ) -> None:
        report = msgspec.json.encode(dict(details)).decode()
        line = NewLogLine(name, address, "session.sign-in", report)
        since_ms = self.context.clock.wall_ms() - WINDOW_MS
        bound = LogBound(since_ms, _MOST_UNKNOWN_RECORDED) if name == _NOBODY else None
        await self.context.store.add_sign_in_line(line, outcome, bound, org_ids)


GATE: Final = web.AppKey("gate", Gate)


async def actor_of(request: web.Request) -> Actor:
    """Return the caller of the request, if the caller is authenticated.

    Raise Refused with `unauthenticated` if the request has no authenticated caller.
    """
    caller = await request.app[GATE].caller(request)
    if caller.actor is None:
        raise Refused("unauthenticated", caller.said, WWW_Authenticate="Bearer")
    return caller.actor


async def csrf_token(request: web.Request) -> str:
    """Return the CSRF token of the caller's session, or an empty text if the caller has no session.

    Each request that makes a change in a session must send the CSRF token in the header or in the form.
    """
    session_id = (await request.app[GATE].caller(request)).session_id
    return "" if session_id is None else masked_token(session_id)


async def perform(request: web.Request, operation: Operation[Q, A], asked: Q) -> A:
    """Perform an operation with the permissions of the caller that sent the HTTP request."""
    return await perform_logged(operation, request.app[GATE].context, await actor_of(request), asked)


@web.middleware
async def gate_keeper(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    gate = request.app[GATE]
    try:
        await gate.keep_other_sites_out(request)
        return await handler(request)
    finally:
        gate.let_go(request)


def _parts(kind: bytes, body: bytes) -> dict[str, str]:
    """Return the fields of a form in multipart format.

    Raise ValueError if the form has a field without a name, or if the form is not UTF-8.

    If an uploaded file has bytes that are not UTF-8, these bytes are replaced, so that the console page can
    show the mistake.
    """
    message = BytesParser(policy=email.policy.HTTP).parsebytes(b"Content-Type: %b\r\n\r\n%b" % (kind, body))
    found = {}
    for part in message.iter_parts():
        name, value = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise ValueError(name)
        found[name] = value.decode(errors="strict" if part.get_filename() is None else "replace")
    return found


def _fields(text: str) -> dict[str, str]:
    return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=1000, errors="strict"))


def _may_be_large(request: web.Request) -> bool:
    length = request.content_length
    return request.can_read_body and (length is None or length > _LARGE_BODY_BYTES)


def _actor_of(operator: Operator, request: web.Request) -> Actor:
    return Actor(operator.name, operator.roles, _address(request))


def _address(request: web.Request) -> str:
    return request.remote or "unknown"


def _is_named(request: web.Request, hosts: Collection[str]) -> bool:
    try:
        name = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
    except ValueError:
        return False
    if (name and name in hosts) or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _is_same_origin(request: web.Request) -> bool:
    """Return True if header fields that no web page can forge show that the request came from this site.

    Browsers send them. A client that is not a browser sends neither `Sec-Fetch-Site` nor `Origin`.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("Origin")
    if origin is None:
        return True
    try:
        host = urlsplit(origin).netloc
    except ValueError:  # not from a browser
        return False
    return host.lower() == request.headers.get("Host", "").lower() != ""
