"""Endpoint for the enrolment of proxies with an enrolment token, and for the renewal of their keys.

A proxy that enrols with a token has no keys yet, so its enrolment request is not signed. An enrolment request
without an enrolment token is signed like a request to the agent API. The response to a signed enrolment
request contains new keys for the proxy that signed the request.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from controlplane.admin.attempts import Attempts, network_of
from controlplane.agent_api import AgentApi, Signed, json_response, once
from controlplane.clock import Clock
from controlplane.errors import Refused
from controlplane.names import new_id
from controlplane.requests import connection_of, no_continue_yet, read_body
from controlplane.secrets import Vault, digest, mint
from controlplane.store.interface import (
    Enrolled,
    Enrolment,
    EnrolmentRefusal,
    EnrolmentToken,
    LogBound,
    NewKeys,
    NewLogLine,
    Renewal,
    RenewalRefusal,
    Store,
    StoreError,
    TooSoon,
)
from proxy.policy.json_text import refuse_deep
from proxy.wire.audit_event import rfc3339
from proxy.wire.models import ENROL_PATH, EnrolRequest, EnrolResponse, RenewRequest, SyncOrg
from proxy.wire.signing import API_KEY_HEADER

T = TypeVar("T", EnrolRequest, RenewRequest)

_log = logging.getLogger(__name__)

_MAX_BYTES: Final = 4096  # limit of a body in bytes; a real one has a few hundred
_LONGEST_TOKEN: Final = 256
_AUTHORIZATION: Final = "Authorization"
_SCHEME: Final = "bearer "
# Only these characters, so that two names can't look alike by another alphabet, an accent or an invisible
# sign.
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LONGEST_VERSION: Final = 64
_REFUSED_LINES: Final = 20  # lines per hour in the operator log about refusals of one token or proxy
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class _Keys:
    """New keys of a proxy: the plain keys, sent to the proxy, and the encrypted keys, kept in the store."""

    api_key: str
    hmac_secret: str

    def sealed(self, vault: Vault, proxy_id: str) -> NewKeys:
        return NewKeys(digest(self.api_key), vault.seal(proxy_id, self.hmac_secret))


class EnrolmentApi:
    def __init__(
        self,
        store: Store,
        vault: Vault,
        clock: Clock,
        attempts: Attempts,
        agents: AgentApi,
        *,
        body_timeout_seconds: float,
    ) -> None:
        self._store = store
        self._vault = vault
        self._clock = clock
        self._attempts = attempts
        self._agents = agents
        self._body_timeout_seconds = body_timeout_seconds

    def routes(self) -> list[web.RouteDef]:
        return [web.post(ENROL_PATH, self._asked, expect_handler=no_continue_yet)]

    async def _asked(self, request: web.Request) -> web.Response:
        if _AUTHORIZATION in request.headers:
            return await self._enrol(request)
        if API_KEY_HEADER not in request.headers:
            raise Refused("invalidEnrolmentToken")
        return await self._agents.verified(request, cap=_MAX_BYTES, handler=self._renew)

    # Enrolment

    async def _enrol(self, request: web.Request) -> web.Response:
        # Even a client with a valid token counts as unauthenticated until it sends a signed request.
        connection_of(request).close_after_response()
        address = request.remote or ""
        token_digest = digest(_bearer(request))
        token = await self._store.enrolment_token(token_digest)
        if token is None:
            await self._count_failure(address)
            raise _refused("unknown")
        body = await read_body(request, _MAX_BYTES, self._body_timeout_seconds, _too_large)
        asked = _parse(body, EnrolRequest)
        enrolment = Enrolment(
            token_digest=token_digest,
            enrolment_id=_uuid("enrolmentId", asked.enrolment_id),
            proxy_id=new_id(self._clock),
            name=_name(asked.name),
            address=address,
            request=msgspec.json.encode(_known_version(asked)).decode(),
        )
        keys = _mint()
        outcome = await self._store.enrol(enrolment, partial(keys.sealed, self._vault))
        if isinstance(outcome, TooSoon):
            raise _too_soon(outcome)
        if not isinstance(outcome, Enrolled):
            raise await self._refusal(outcome, token, enrolment)
        return json_response(_response_of(outcome, keys), status=201)

    async def _refusal(self, why: EnrolmentRefusal, token: EnrolmentToken, enrolment: Enrolment) -> Refused:
        """Write a refused enrolment to the operator log, under the token's name, and return the error."""
        line = NewLogLine(f"enrolment:{token.name}", enrolment.address, "proxy.enrol", enrolment.request)
        await self._note_refusal(line, token.org_ids)
        return _refused(why)

    async def _note_refusal(self, line: NewLogLine, org_ids: Collection[str]) -> None:
        bound = LogBound(self._clock.wall_ms() - _HOUR_MS, _REFUSED_LINES)
        try:
            await self._store.add_sign_in_line(line, "forbidden", bound, sorted(org_ids))
        # The operator log failed, for example because of a full disk. The client still receives the reason.
        except StoreError as error:
            _log.error(
                "the refusal of %s (%s) could not be written to the operator log: %s",
                line.operator,
                line.operation,
                error,
            )

    async def _count_failure(self, address: str) -> None:
        """Raise Refused if too many enrolments from the client's address failed.

        Failed enrolments never delay an enrolment with a valid token.
        """
        wait = await self._attempts.begin(None, f"enrolment from {network_of(address)}")
        if wait:
            said = f"too many failed enrolments from this address: try again in {wait} s"
            raise Refused("rateLimited", said, Retry_After=str(wait))

    # Renewal

    async def _renew(self, request: web.Request, signed: Signed) -> web.Response:
        _uuid("renewalId", _parse(signed.body, RenewRequest).renewal_id)
        proxy_id, keys, address = signed.proxy.proxy_id, _mint(), request.remote or ""
        renewal = Renewal(proxy_id, signed.api_key_digest, signed.timestamp, address)
        outcome = await self._store.renew_keys(renewal, keys.sealed(self._vault, proxy_id))
        if isinstance(outcome, Enrolled):
            return json_response(_response_of(outcome, keys))
        if isinstance(outcome, TooSoon):
            raise _too_soon(outcome)
        for proxy in await self._store.find_proxies(proxy_id):  # no proxy if it was deleted in between
            line = NewLogLine(f"proxy:{proxy.name}", address, "proxy.renew-keys", "{}")
            await self._note_refusal(line, proxy.org_ids)
        raise _not_renewed(outcome)


def _refused(why: EnrolmentRefusal) -> Refused:
    match why:
        case "unknown":
            return Refused("invalidEnrolmentToken", "there is no such enrolment token")
        case "revoked":
            return Refused("invalidEnrolmentToken", "this enrolment token was revoked")
        case "expired":
            return Refused("invalidEnrolmentToken", "this enrolment token has expired")
        case "used up":
            said = "this enrolment token is used up: the number of proxies that it allows have enrolled"
            return Refused("invalidEnrolmentToken", said)
        case "in use":
            said = "enrolmentId: belongs to a proxy that is in use: make a new one"
            return Refused("invalidPayload", said)


def _not_renewed(why: RenewalRefusal) -> Refused:
    match why:
        case "replaced":
            said = "newer keys of this proxy are in use: only those can be renewed"
            return Refused("unknownApiKey", said)
        case "replaced by operator":
            return Refused("forbidden", "an operator replaced these keys: give the proxy the new ones")
        case "not enrolled":
            said = "an operator added this proxy and must replace its keys: proxy rotate-secret --grace"
            return Refused("forbidden", said)


def _bearer(request: web.Request) -> str:
    given = once(request, _AUTHORIZATION)
    token = given[len(_SCHEME) :].strip(" ")
    if given[: len(_SCHEME)].lower() != _SCHEME or not 0 < len(token) <= _LONGEST_TOKEN:
        raise Refused("invalidEnrolmentToken")
    return token


def _parse(body: bytes, cls: type[T]) -> T:
    try:
        refuse_deep(body)
        return msgspec.json.decode(body, type=cls)
    except msgspec.ValidationError as error:
        raise Refused("invalidPayload", str(error)) from None
    except ValueError:
        raise Refused("invalidPayload", "the body must be one JSON object in UTF-8") from None


def _name(name: str) -> str:
    if _NAME.fullmatch(name) is None or _UUID.fullmatch(name) is not None:
        raise Refused(
            "invalidPayload",
            "name: must be 1 to 100 of A-Z, a-z, 0-9, '.', '_' and '-', with a letter or digit at both ends,"
            " and must not look like an ID",
        )
    return name


def _uuid(member: str, text: str) -> str:
    if _UUID.fullmatch(text) is None:
        raise Refused("invalidPayload", f"{member}: must be a UUID")
    return text.lower()


def _known_version(asked: EnrolRequest) -> EnrolRequest:
    """Return a copy of the enrolment request for the operator log, with a short and printable version.

    The version in the request is made printable and short.
    """
    version = asked.version if asked.version.isprintable() else ""
    return msgspec.structs.replace(asked, version=version[:_LONGEST_VERSION])


def _mint() -> _Keys:
    return _Keys(mint("gwk"), mint("gwh"))


def _response_of(enrolled: Enrolled, keys: _Keys) -> EnrolResponse:
    proxy = enrolled.proxy
    return EnrolResponse(
        proxy_id=proxy.proxy_id,
        name=proxy.name,
        orgs=tuple(SyncOrg(org.org_id, org.name) for org in enrolled.orgs),
        api_key=keys.api_key,
        hmac_secret=keys.hmac_secret,
        rotate_at=None if proxy.rotate_at_ms is None else rfc3339(proxy.rotate_at_ms),
    )


def _too_large() -> Refused:
    return Refused("payloadTooLarge", f"this body must have at most {_MAX_BYTES} bytes")


def _too_soon(wait: TooSoon) -> Refused:
    said = f"this proxy got new keys a short time ago: try again in {wait.seconds} s"
    return Refused("rateLimited", said, Retry_After=str(wait.seconds))
