"""Sign-in at an identity provider: there and back, bound to the browser that began it."""

from __future__ import annotations

import base64
import hmac
import logging
import re
import secrets
from typing import Final
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from controlplane.admin.gate import GATE, Gate
from controlplane.admin.oidc import NotProved, Provider, ProviderFailed, Secrets
from controlplane.errors import Refused
from controlplane.secrets import MasterKeyError
from controlplane.settings import ConsoleSettings

BEGIN_PATH: Final = "/login/single-sign-on"
_CALLBACK_PATH: Final = f"{BEGIN_PATH}/callback"
_SEALED_FOR: Final = "single sign-on"
_LIFETIME_MS: Final = 10 * 60_000
_LOCAL: Final = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")
_LONGEST: Final = 2048  # of a path to go on to, and of a code

_log = logging.getLogger(__name__)


class _Begun(msgspec.Struct):
    """A sign-in under way. It lies sealed in a cookie, so that no number of strangers fills anything here."""

    state: str
    nonce: str
    verifier: str
    wanted: str
    began_ms: int


class SingleSignOn:
    def __init__(self, settings: ConsoleSettings, gate: Gate) -> None:
        self._provider = Provider(settings, gate.desk.clock)
        self._redirect_uri = f"{settings.public_base_url}{_CALLBACK_PATH}"
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(BEGIN_PATH, self._begin, allow_head=False),
            web.get(_CALLBACK_PATH, self._finish, allow_head=False),
        ]

    async def close(self, _: web.Application) -> None:
        await self._provider.close()

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        wanted = request.query.get("next", "/")
        if not _LOCAL.fullmatch(wanted) or len(wanted) > _LONGEST:
            wanted = "/"
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = _Begun(state, nonce, verifier, wanted, self._now_ms)
        try:
            address = await self._provider.address(self._redirect_uri, _secrets_of(begun))
        except ProviderFailed as error:
            raise _unavailable(error) from None
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
        code = request.query.get("code", "")
        if not code or len(code) > _LONGEST:
            raise Refused("unauthenticated", "the identity provider did not sign you in")
        self._gate.begin_attempt(request, None)
        try:
            names = await self._names(request, code, begun)
        except ProviderFailed as error:
            # It is not this address that failed: while the provider is away, passwords must let people in.
            self._gate.forgive_attempt(request, None)
            raise _unavailable(error) from None
        operator = await self._gate.operator_known_as(request, names)
        self._gate.forgive_attempt(request, None)
        response = _redirect(begun.wanted)
        await self._gate.begin_session(request, response, operator)
        response.del_cookie(self._cookie, path="/", httponly=True, secure=self._gate.secure, samesite="Lax")
        return response

    async def _names(self, request: web.Request, code: str, begun: _Begun) -> tuple[str, ...]:
        try:
            return await self._provider.names(code, self._redirect_uri, _secrets_of(begun))
        except NotProved as error:
            _log.warning("single sign-on from %s: %s", request.remote, error)
            raise Refused("unauthenticated", "the identity provider did not sign you in") from None

    async def _begun(self, request: web.Request) -> _Begun:
        """What this very browser began, and not long ago."""
        begun = await self._opened(request.cookies.get(self._cookie, ""))
        state = request.query.get("state", "")
        if (
            begun is None
            or not hmac.compare_digest(state.encode("utf-8", "replace"), begun.state.encode())
            or not 0 <= self._now_ms - begun.began_ms < _LIFETIME_MS
        ):
            raise Refused("unauthenticated", "this sign-in was not begun here, or too long ago: begin anew")
        return begun

    async def _sealed(self, begun: _Begun) -> str:
        vault = await self._gate.desk.vault()
        sealed = vault.seal(_SEALED_FOR, msgspec.json.encode(begun).decode())
        return base64.urlsafe_b64encode(sealed).decode()

    async def _opened(self, cookie: str) -> _Begun | None:
        vault = await self._gate.desk.vault()
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
        return self._gate.desk.clock.steady_ms()


SINGLE_SIGN_ON: Final = web.AppKey("single_sign_on", SingleSignOn)


def is_offered(request: web.Request) -> bool:
    return SINGLE_SIGN_ON in request.app


def link_to_begin(wanted: str) -> str:
    return f"{BEGIN_PATH}?{urlencode({'next': wanted})}"


def add_single_sign_on(app: web.Application, settings: ConsoleSettings) -> None:
    if settings.oidc_issuer:
        single_sign_on = app[SINGLE_SIGN_ON] = SingleSignOn(settings, app[GATE])
        app.add_routes(single_sign_on.routes())
        app.on_cleanup.append(single_sign_on.close)


def _secrets_of(begun: _Begun) -> Secrets:
    return Secrets(begun.state, begun.nonce, begun.verifier)


def _unavailable(error: ProviderFailed) -> Refused:
    _log.warning("single sign-on: %s", error)
    return Refused("unavailable", "the identity provider can't be asked now")


def _redirect(to: str) -> web.Response:
    return web.Response(status=303, headers={"Location": to})
