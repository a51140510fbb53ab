"""Sign-in at an identity provider.

The provider's redirect back is bound to the browser that began the sign-in.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from controlplane.admin.claims import Claims, what_came
from controlplane.admin.gate import GATE, Gate
from controlplane.admin.linked_operators import LinkedOperators
from controlplane.admin.oidc import Proof, Provider, Secrets
from controlplane.admin.provided_operators import Identified, ProvidedOperators
from controlplane.admin.provided_roles import subject_of
from controlplane.admin.sign_in_failure import Cause, SignInFailed, refused_by_provider
from controlplane.errors import Refused
from controlplane.secrets import MasterKeyError
from controlplane.settings import ConsoleSettings
from controlplane.store.interface import Operator
from proxy.outbound.egress import Egress

BEGIN_PATH: Final = "/login/single-sign-on"
_CALLBACK_PATH: Final = f"{BEGIN_PATH}/callback"
_SEALED_FOR: Final = "single sign-on"
_LIFETIME_MS: Final = 10 * 60_000
_LOCAL: Final = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")
_LONGEST: Final = 2048  # characters of a path to continue to, and of a code

_SAID_AS: Final = {
    "claims": "claims that came:",
    "lookedFor": "looked for:",
    "counted": "claims that counted:",
    "notCounted": "not counted:",
}

_log = logging.getLogger(__name__)


class _Begun(msgspec.Struct):
    """A sign-in that a browser began and has not finished.

    The state of the sign-in is sealed in a cookie, so unauthenticated clients can't fill any storage.
    """

    state: str
    nonce: str
    verifier: str
    wanted: str
    began_ms: int


class SingleSignOn:
    def __init__(self, settings: ConsoleSettings, gate: Gate, egress: Egress) -> None:
        self._provider = Provider(settings, gate.context.clock, egress)
        self._egress = egress
        self._redirect_uri = redirect_uri(settings)
        self._settings = settings
        self._gate = gate
        self._linked = LinkedOperators(gate.context)
        self._provided = ProvidedOperators(gate.context)
        self._looking: asyncio.Task[None] | None = None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(BEGIN_PATH, self._begin, allow_head=False),
            web.get(_CALLBACK_PATH, self._finish, allow_head=False),
        ]

    async def start(self, _: web.Application) -> None:
        """Check the provider in a separate task, because other sign-ins must not wait for the check."""
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Log an error of the identity provider or its settings at startup.

        The startup check stores no result, because the provider's error may be fixed before the next sign-in.
        """
        provider = Provider(self._settings, self._gate.context.clock, self._egress)
        try:
            await provider.discover()
        except SignInFailed as failed:
            level = logging.WARNING if failed.cause is Cause.UNREACHABLE else logging.ERROR
            _log.log(level, "single sign-on does not work: %s", failed)
        finally:
            await provider.close()

    async def close(self, _: web.Application) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._provider.close()

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        wanted = request.query.get("next", "/")
        if not _LOCAL.fullmatch(wanted) or len(wanted) > _LONGEST:
            wanted = "/"
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = _Begun(state, nonce, verifier, wanted, self._now_ms)
        try:
            address = await self._provider.address(self._redirect_uri, _secrets_of(begun))
        except SignInFailed as failed:
            _log.warning("single sign-on from %s failed: %s", request.remote, failed)
            raise Refused(failed.cause.code, failed.sentence) from None
        response = _redirect(address)
        response.set_cookie(
            self._cookie,
            await self._sealed(begun),
            max_age=_LIFETIME_MS // 1000,
            path="/",
            httponly=True,
            secure=self._gate.secure,
            samesite="Lax",  # the way back is a navigation from another site
        )
        return response

    async def _finish(self, request: web.Request) -> web.StreamResponse:
        begun = await self._begun(request)
        await self._gate.begin_attempt(request, None)
        try:
            found = await self._person(await self._proof(request, begun))
        except SignInFailed as failed:
            # Only the visitor's own failures count. Sign-in with a password must still work if a registration
            # is wrong or the provider is unreachable, and one address may serve many people.
            if not failed.cause.counts:
                await self._gate.forgive_attempt(request, None)
            raise self._refused(request, failed) from None
        await self._gate.forgive_attempt(request, None)
        response = _redirect(begun.wanted)
        await self._gate.begin_session(
            request, response, found.operator, details=found.details, org_ids=found.org_ids
        )
        response.del_cookie(self._cookie, path="/", httponly=True, secure=self._gate.secure, samesite="Lax")
        return response

    async def _proof(self, request: web.Request, begun: _Begun) -> Proof:
        error = request.query.get("error")
        if error is not None:
            description = request.query.get("error_description")
            raise refused_by_provider("the provider returned an error", error, description)
        await self._provider.check_came_from_here(request.query.get("iss"))
        code = request.query.get("code", "")
        if not code or len(code) > _LONGEST:
            raise SignInFailed(Cause.CODE, "the provider returned no valid authorization code")
        return await self._provider.proof(code, self._redirect_uri, _secrets_of(begun))

    async def _person(self, proof: Proof) -> Identified:
        """Return the operator who signs in. The operator is found by a stored link or by the person's groups.

        Only the first sign-in of a person finds a local operator by name, and links the person to this
        operator. An operator with a password is never linked by name. If the ID token names no operator, the
        control plane also requests the person's userinfo from the provider. Userinfo is not requested if the
        ID token contains a name of the person and gives the person a role.
        """
        found = [proof.claims]
        subject = subject_of(self._settings.oidc_issuer, proof.claims.members)
        if (linked := await self._linked.of_subject(subject, found)) is not None:
            return linked
        operators = await self._gate.operators_known_as(proof.claims.names)
        if not operators and not (proof.claims.names and self._provided.has_role(found)):
            found.append(await self._provider.userinfo(proof))
            operators = await self._gate.operators_known_as(name for each in found for name in each.names)
        if len(operators) == 1:
            return await self._named(operators[0], subject, found)
        if not operators and self._provided.is_configured:
            return await self._provided.signed_in(found)
        raise self._nobody(found, operators)

    async def _named(self, operator: Operator, subject: str, found: Sequence[Claims]) -> Identified:
        """Return the operator for a person, if a local operator has the same name as the person.

        If no link leads from the person to the local operator, the person's groups may still give roles under
        another operator name.
        """
        newly_linked = await self._linked.first_sign_in(operator, subject, found)
        if newly_linked is not None:
            return newly_linked
        unlinked = self._linked.unlinked(operator, subject, found)
        if not self._provided.is_configured:
            raise unlinked
        try:
            provided = await self._provided.signed_in(found)
        except SignInFailed as failed:
            if failed.cause is not Cause.ROLELESS:
                raise
            unlinked.details |= failed.details
            raise unlinked from None
        return replace(provided, details={**provided.details, "notLinkedTo": operator.name})

    def _nobody(self, found: Sequence[Claims], operators: Sequence[Operator]) -> SignInFailed:
        details = what_came(found)
        report = "; ".join(f"{_SAID_AS[name]} {value}" for name, value in details.items())
        if len(operators) > 1:
            text = f"the names are those of {len(operators)} operators: {report}"
            return SignInFailed(Cause.NOBODY, text, details)
        cause = Cause.NOBODY if any(each.names for each in found) else Cause.NAMELESS
        return SignInFailed(cause, f"no operator has such a name: {report}", details)

    def _refused(self, request: web.Request, failed: SignInFailed) -> Refused:
        _log.warning("single sign-on from %s failed: %s", request.remote, failed)
        cause = failed.cause
        details = {"singleSignOn": cause.word, **failed.details}
        self._gate.record_failure(request, failed.operator, code=cause.code, details=details)
        return Refused(cause.code, failed.sentence)

    async def _begun(self, request: web.Request) -> _Begun:
        """Return the sign-in that the browser of this request began in the last 10 minutes."""
        begun = await self._opened(request.cookies.get(self._cookie, ""))
        state = request.query.get("state", "")
        if (
            begun is None
            or not hmac.compare_digest(state.encode("utf-8", "replace"), begun.state.encode())
            or not 0 <= self._now_ms - begun.began_ms < _LIFETIME_MS
        ):
            _tell_unbidden(request)
            said = "this sign-in was not started in this browser, or more than 10 minutes ago: sign in again"
            raise Refused("unauthenticated", said)
        return begun

    async def _sealed(self, begun: _Begun) -> str:
        vault = await self._gate.context.vault()
        sealed = vault.seal(_SEALED_FOR, msgspec.json.encode(begun).decode())
        return base64.urlsafe_b64encode(sealed).decode()

    async def _opened(self, cookie: str) -> _Begun | None:
        vault = await self._gate.context.vault()
        try:
            text = vault.open(_SEALED_FOR, base64.urlsafe_b64decode(cookie))
        except (MasterKeyError, ValueError):
            return None
        return msgspec.json.decode(text, type=_Begun)

    @property
    def _cookie(self) -> str:
        return "__Host-graphward-sign-in" if self._gate.secure else "graphward-sign-in"

    @property
    def _now_ms(self) -> int:
        return self._gate.context.clock.steady_ms()


SINGLE_SIGN_ON: Final = web.AppKey("single_sign_on", SingleSignOn)


def redirect_uri(settings: ConsoleSettings) -> str:
    """Return the redirect address that must be registered at the identity provider."""
    return f"{settings.public_base_url}{_CALLBACK_PATH}"


def is_offered(request: web.Request) -> bool:
    return SINGLE_SIGN_ON in request.app


def link_to_begin(wanted: str) -> str:
    return f"{BEGIN_PATH}?{urlencode({'next': wanted})}"


def add_single_sign_on(app: web.Application, settings: ConsoleSettings, egress: Egress) -> None:
    if settings.oidc_issuer:
        single_sign_on = app[SINGLE_SIGN_ON] = SingleSignOn(settings, app[GATE], egress)
        app.add_routes(single_sign_on.routes())
        app.on_startup.append(single_sign_on.start)
        app.on_cleanup.append(single_sign_on.close)


def _secrets_of(begun: _Begun) -> Secrets:
    return Secrets(begun.state, begun.nonce, begun.verifier)


def _tell_unbidden(request: web.Request) -> None:
    """Log a response from the identity provider if it has no `state` of a sign-in in progress.

    A response without this `state` does not prove an attack, because any web page can make a browser send
    one.
    """
    if "error" in request.query:
        description = request.query.get("error_description")
        where = "received an error without the state of a sign-in"
        failed = refused_by_provider(where, request.query["error"], description)
        _log.warning("single sign-on from %s failed: %s", request.remote, failed)


def _redirect(to: str) -> web.Response:
    return web.Response(status=303, headers={"Location": to})
