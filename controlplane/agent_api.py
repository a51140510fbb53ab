"""The four signed endpoints of the agent API: verify a request, call its handler, and sign the response.

The checks of a signed request run in the order of their cost, the cheapest first. So a caller without a valid
signature learns nothing, and each request costs the caller more work than it costs the server. The agent API
first checks the API key, the timestamp and the form of the signature, which are all in the request head.
After the check of the request head, the agent API reads the body up to its limit and verifies the signature.
The agent API parses no body before it has verified the signature.

Every response to a request with a valid signature is signed, including errors. So a forged response from an
intermediary cannot make a proxy delete audit events. A response to a request without a valid signature is not
signed. If every response were signed, a caller without the secret could obtain a signature for a request of
its choice. A 413 response has no signature, because the control plane did not read the request body.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import msgspec
import orjson
from aiohttp import web

from controlplane.clock import Clock
from controlplane.errors import Refused
from controlplane.fleet_health import clock_skew_ms, said_by
from controlplane.ingest import Ingest, InvalidBatch, MixedOrganisations, NotAuthorised, batch_id_of
from controlplane.metrics import Counts
from controlplane.names import secret_id
from controlplane.operations.times import as_rfc3339
from controlplane.rate_limits import ReportRate
from controlplane.reports import Heartbeat, Metrics
from controlplane.requests import connection_of, no_continue_yet, read_body
from controlplane.retention import WitnessedTime
from controlplane.secrets import Vault, digest
from controlplane.store.interface import (
    App,
    AppCredential,
    AppSecret,
    Duplicate,
    EndedCredentials,
    Expired,
    Limited,
    ProxyCredentials,
    RateLimits,
    Store,
    Stored,
    SyncContent,
)
from proxy.policy.json_text import refuse_deep
from proxy.wire.audit_event import rfc3339
from proxy.wire.models import (
    AUDIT_PATH,
    HEARTBEAT_PATH,
    HELD_SCHEMAS_HEADER,
    MAX_BATCH_BYTES,
    METRICS_PATH,
    MOST_HELD_SCHEMAS,
    SYNC_PATH,
    AuditAnswer,
    ReportResponse,
    SyncAnswer,
    SyncApp,
    SyncLinger,
    SyncMetadata,
    SyncOrg,
    SyncRuleset,
    SyncSecret,
    SyncStops,
)
from proxy.wire.signing import (
    API_KEY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    UNCHANGED_HEADER,
    sign_response,
    sign_unchanged,
    timestamp_in_range,
    verify,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

# 91 bytes for each organisation with its ruleset, so about 11,000 organisations.
_MAX_HEARTBEAT_BYTES: Final = 1024 * 1024
_MAX_METRICS_BYTES: Final = 32 * 1024  # A metrics report has a few kilobytes.
# The store keeps 200 reports of each proxy. A proxy with few organisations must not fill it.
_HEARTBEAT_BYTES: Final = 32 * 1024
_HEARTBEAT_BYTES_OF_ORG: Final = 1024
_REPORTS_AT_ONCE: Final = 60  # reports of one kind in a burst; after that, one per second
_MOST_LEVELS: Final = 32  # nesting levels of a report
_LONGEST_API_KEY: Final = 256
_SIGNATURE_LENGTH: Final = 64
# Requests that one proxy may have in progress, counted for each endpoint, so that one endpoint does not delay
# another. Further requests wait unread. This limits the memory for one tenant to this number times the
# largest bodies. It also limits the tenant's share of the writes that wait for the disk, independently of the
# rate limit.
_AT_ONCE: Final = 8
_LOOKED_AGAIN_MS: Final = 1000
# HMAC secrets cached in clear by their ciphertext, which is different for each secret.
_MOST_SECRETS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Verified:
    """The verified signature of a request, and the HMAC secret that made the signature."""

    secret: bytes
    signature: str


@dataclass(frozen=True, slots=True)
class Signed:
    """Request to the agent API, after its signature was found valid."""

    proxy: ProxyCredentials
    api_key_digest: bytes
    secret: bytes
    signature: str
    body: bytes
    timestamp: int  # Unix seconds that the proxy signed
    skew_ms: int  # how far the proxy's clock is ahead of this host's clock


SignedHandler = Callable[[web.Request, Signed], Awaitable[web.Response]]
_VERIFIED: Final = web.RequestKey("verified", _Verified)


@web.middleware
async def sign_responses(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Sign the response to a request whose signature is valid."""
    response = await handler(request)
    verified = request.get(_VERIFIED)
    if verified is not None:
        body = response.body if isinstance(response, web.Response) else None
        assert body is None or isinstance(body, bytes)
        signature = sign_response(verified.secret, verified.signature, body or b"")
        response.headers[SIGNATURE_HEADER] = signature
    return response


class AgentApi:
    def __init__(
        self,
        store: Store,
        ingest: Ingest,
        vault: Vault,
        clock: Clock,
        witnessed: WitnessedTime,
        counts: Counts,
        *,
        limits: RateLimits,
        sync_interval_seconds: int,
        body_timeout_seconds: float,
    ) -> None:
        self._store = store
        self._ingest = ingest
        self._secret = lru_cache(_MOST_SECRETS)(lambda owner, sealed: vault.open(owner, sealed).encode())
        self._clock = clock
        self._witnessed = witnessed
        self._counts = counts
        self._limits = limits
        self._sync_interval_seconds = sync_interval_seconds
        self._body_timeout_seconds = body_timeout_seconds
        self._report_rate = ReportRate(_REPORTS_AT_ONCE, interval_ms=1000)
        self._at_once: defaultdict[tuple[str, int], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_AT_ONCE)
        )

    def routes(self) -> list[web.RouteDef]:
        def signed(handler: SignedHandler, cap: int) -> Callable[[web.Request], Awaitable[web.Response]]:
            return partial(self.verified, cap=cap, handler=handler)

        after_the_checks: dict[str, Any] = {"expect_handler": no_continue_yet}
        return [
            web.get(SYNC_PATH, signed(self._sync, 0), allow_head=False, **after_the_checks),
            web.post(HEARTBEAT_PATH, signed(self._heartbeat, _MAX_HEARTBEAT_BYTES), **after_the_checks),
            web.post(AUDIT_PATH, signed(self._audit, MAX_BATCH_BYTES), **after_the_checks),
            web.post(METRICS_PATH, signed(self._metrics, _MAX_METRICS_BYTES), **after_the_checks),
        ]

    # Verification

    async def verified(self, request: web.Request, *, cap: int, handler: SignedHandler) -> web.Response:
        """Verify the signature of the request, call the handler, and return its response."""
        arrived_ms, began_ms = self._clock.wall_ms(), self._clock.steady_ms()
        proxy = await self._proxy(request)
        timestamp, signature = once(request, TIMESTAMP_HEADER), once(request, SIGNATURE_HEADER)
        now_ms = self._clock.wall_ms()
        if not timestamp_in_range(timestamp, now_ms / 1000):
            raise Refused("timestampOutOfRange")
        if (
            len(signature) != _SIGNATURE_LENGTH
        ):  # A signature of another length is refused before the body is read.
            raise Refused("invalidSignature")
        secret = self._secret(proxy.proxy_id, proxy.sealed_hmac_secret)
        async with self._at_once[proxy.proxy_id, cap] if cap else nullcontext():
            body = await read_body(request, cap, self._body_timeout_seconds, partial(_too_large, cap))
            if not verify(secret, timestamp, body, signature):
                raise Refused("invalidSignature")
            request[_VERIFIED] = _Verified(secret, signature)
            if self._clock.steady_ms() - began_ms >= _LOOKED_AGAIN_MS:
                # The request waited, or its body was slow. The key may have been revoked in that time.
                proxy = await self._proxy(request)
            self._witnessed.agree(proxy.proxy_id, now_ms)
            connection_of(request).proved()
            if request.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise Refused(
                    "invalidPayload",
                    "the body must not be compressed: the signature covers the bytes of the body",
                )
            skew_ms = clock_skew_ms(int(timestamp), arrived_ms)
            key = digest(once(request, API_KEY_HEADER))
            if proxy.is_news:
                await self._note(key, request)
            signed = Signed(proxy, key, secret, signature, body, int(timestamp), skew_ms)
            return await handler(request, signed)

    async def _note(self, key: bytes, request: web.Request) -> None:
        use = await self._store.note_key_use(key, request.remote or "")
        if use is not None and use.was_retired:
            _log.warning("retired proxy %s sent a request and is in the fleet again", use.proxy)

    async def _proxy(self, request: web.Request) -> ProxyCredentials:
        api_key = once(request, API_KEY_HEADER)
        if not 0 < len(api_key) <= _LONGEST_API_KEY:
            raise Refused("unknownApiKey")
        proxy = await self._store.credentials(digest(api_key))
        if proxy is None:
            raise Refused("unknownApiKey")
        return proxy

    # Endpoints

    async def _sync(self, request: web.Request, signed: Signed) -> web.Response:
        async with self._at_once[signed.proxy.proxy_id, 0]:
            content = await self._store.sync_content(
                signed.proxy.proxy_id, _versions(request), self._limits, signed.proxy.generation
            )
        if isinstance(content, str):
            status, body, version = 304, b"", content
        else:
            body = self._sync_body(signed.proxy.proxy_id, content, _held_schemas(request))
            status, version = 200, content.version
        headers = {
            # Weak tag, because responses of the same version differ in generatedAt.
            "ETag": f'W/"{version}"',
            "Cache-Control": "no-store",
        }
        if status == 304:
            headers[UNCHANGED_HEADER] = sign_unchanged(signed.secret, signed.signature, version)
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _sync_body(self, proxy_id: str, content: SyncContent, held: frozenset[str]) -> bytes:
        stops = _stops(content)
        response = SyncAnswer(
            version=content.version,
            generated_at=rfc3339(content.generated_ms),
            orgs=tuple(SyncOrg(org.org_id, org.name) for org in content.orgs),
            apps=tuple(
                SyncApp(
                    app_id=app.app_id,
                    org_id=app.org_id,
                    name=app.name,
                    client_id=app.client_id,
                    secret_hashes=tuple(secret.hash for secret in app.secrets),
                    secret_version=app.secret_version,
                    ruleset_id=app.ruleset_id,
                    enabled=app.enabled and not _is_stopped(app, stops),
                    shadow_ruleset_id=app.shadow_ruleset_id or msgspec.UNSET,
                    credentials=_credentials(app.app_id, app.secrets, app.credentials),
                    ended_credentials=_ended_credentials(app.app_id, content.ended),
                )
                for app in content.apps
            ),
            rulesets=tuple(
                SyncRuleset(
                    *(ruleset.ruleset_id, ruleset.org_id, ruleset.name, ruleset.version, yaml),
                    schemas=dict(content.schemas.get(ruleset.ruleset_id) or {}) or msgspec.UNSET,
                )
                for ruleset, yaml in content.rulesets
            ),
            metadata=SyncMetadata(
                sync_interval_seconds=self._sync_interval_seconds,
                proxy_id=proxy_id,
                proves_unchanged=True,
                linger=SyncLinger(content.linger.seconds, dict(content.linger.orgs)),
                rotate_at=None if content.rotate_at_ms is None else rfc3339(content.rotate_at_ms),
            ),
            stops=stops if content.stops else msgspec.UNSET,
            schemas={digest: content.packed[digest] for digest in content.packed if digest not in held}
            or msgspec.UNSET,
        )
        return msgspec.json.encode(response)

    async def _heartbeat(self, request: web.Request, signed: Signed) -> web.Response:
        self._limit_reports("heartbeat", signed.proxy.proxy_id)
        most = _HEARTBEAT_BYTES + _HEARTBEAT_BYTES_OF_ORG * len(signed.proxy.org_ids)
        if len(signed.body) > most:
            raise _too_large(most)
        heartbeat = _parse_report(signed.body, Heartbeat)
        said = said_by(self._sync_interval_seconds * 1000, signed.skew_ms, heartbeat)
        await self._store.add_heartbeat(signed.proxy.proxy_id, signed.body.decode(), signed.skew_ms, said)
        return json_response(ReportResponse("ok"))

    async def _metrics(self, request: web.Request, signed: Signed) -> web.Response:
        self._limit_reports("metrics", signed.proxy.proxy_id)
        metrics = _parse_report(signed.body, Metrics)
        if "\0" in metrics.window_start:
            raise Refused(
                "invalidPayload", "windowStart: contains a NUL character, which databases can't store"
            )
        await self._store.add_metrics(signed.proxy.proxy_id, metrics.window_start, signed.body.decode())
        return json_response(ReportResponse("ok"))

    def _limit_reports(self, kind: str, proxy_id: str) -> None:
        wait = self._report_rate.wait_seconds((kind, proxy_id), self._clock.steady_ms())
        if wait:
            said = f"the next report of this kind is accepted in {wait} s"
            raise Refused("rateLimited", said, Retry_After=str(wait))

    async def _audit(self, request: web.Request, signed: Signed) -> web.Response:
        try:
            batch_id, outcome = await self._accepted(signed)
        except Refused as refused:
            self._counts.outcome(refused.code).inc()
            refused.batch_id = batch_id_of(signed.body)
            raise
        if isinstance(outcome, Duplicate):
            return self._duplicate(signed, batch_id, outcome)
        if outcome.content_differs:
            _log.error(
                "proxy %s reused event ids in batch %r for other content: the events with these ids were not "
                "stored",
                *(signed.proxy.proxy_id, batch_id),
            )
        self._counts.outcome("stored").inc()
        self._counts.events.inc(outcome.accepted)
        return json_response(AuditAnswer(batch_id, outcome.accepted), status=202)

    def _duplicate(self, signed: Signed, batch_id: str, outcome: Duplicate) -> web.Response:
        response = AuditAnswer(batch_id, outcome.accepted, duplicate=True)
        if outcome.content_differs:
            response = msgspec.structs.replace(response, content_differs=True)
            _log.error(
                "proxy %s reused batch id %r for other events, which were not stored; a proxy of this "
                "release sends these events again under a new batch id",
                *(signed.proxy.proxy_id, batch_id),
            )
        self._counts.outcome("reused" if outcome.content_differs else "duplicate").inc()
        return json_response(response, status=202)

    async def _accepted(self, signed: Signed) -> tuple[str, Stored | Duplicate]:
        try:
            batch_id, outcome = await self._ingest.accept(
                signed.proxy.proxy_id, signed.proxy.org_ids, signed.body
            )
        except InvalidBatch as error:
            raise Refused("invalidPayload", str(error)) from None
        except MixedOrganisations:
            raise Refused("mixedOrganisations") from None
        except NotAuthorised:
            raise Refused("notAuthorisedForTenant") from None
        if isinstance(outcome, Expired):
            raise Refused("batchExpired")
        if isinstance(outcome, Limited):
            wait = outcome.retry_after_seconds
            raise Refused(
                "rateLimited", f"the next batch of events is accepted in {wait} s", Retry_After=str(wait)
            )
        return batch_id, outcome


def _stops(content: SyncContent) -> SyncStops:
    return SyncStops(
        everything=any(stop.org_id is None for stop in content.stops),
        orgs=tuple(stop.org_id for stop in content.stops if stop.org_id and not stop.app_id),
        apps=tuple(stop.app_id for stop in content.stops if stop.app_id),
    )


def _ended_credentials(
    app_id: str, ended: Mapping[str, EndedCredentials]
) -> tuple[msgspec.Raw, ...] | msgspec.UnsetType:
    found = ended.get(app_id)
    if found is None:
        return msgspec.UNSET
    return _credentials(app_id, () if found.secret is None else (found.secret,), found.others)


def _credentials(
    app_id: str, secrets: Sequence[AppSecret], credentials: Sequence[AppCredential]
) -> tuple[msgspec.Raw, ...]:
    of_secrets = (
        SyncSecret(secret_id(app_id, each.version), each.hash, as_rfc3339(each.expires_ms))
        for each in secrets
    )
    others = (
        {"kind": each.kind, "id": each.credential_id, "endsAt": as_rfc3339(each.ends_ms)}
        | msgspec.json.decode(each.pins)
        for each in credentials
    )
    return tuple(msgspec.Raw(msgspec.json.encode(each)) for each in (*of_secrets, *others))


def _is_stopped(app: App, stops: SyncStops) -> bool:
    return stops.everything or app.org_id in stops.orgs or app.app_id in stops.apps


# A signature does not name its endpoint. So a body that was recorded in transit to one endpoint must not be
# valid at another, where it would count as the newest report of the proxy.
_OF_OTHER_ENDPOINTS: Final[dict[type, frozenset[str]]] = {
    Heartbeat: frozenset({"batchId", "events", "windowStart", "windowEnd"}),
    Metrics: frozenset({"batchId", "events", "checks", "uptimeSeconds"}),
}


def _parse_report(body: bytes, cls: type[T]) -> T:
    try:
        # The typed decoder skips unknown members, but stored text must be readable by any JSON parser.
        refuse_deep(body)
        content = orjson.loads(body)
        if body.count(b"[") + body.count(b"{") > _MOST_LEVELS and _is_deeper(content, _MOST_LEVELS):
            raise Refused(
                "invalidPayload",
                f"the JSON of a report must not be nested more than {_MOST_LEVELS} levels deep",
            )
        report = msgspec.json.decode(body, type=cls)
    except msgspec.ValidationError as error:
        raise Refused("invalidPayload", str(error)) from None
    except ValueError:
        raise Refused("invalidPayload", "the body must be one JSON object in UTF-8") from None
    if found := sorted(_OF_OTHER_ENDPOINTS[cls] & content.keys()):
        raise Refused(
            "invalidPayload", f"{found[0]}: this JSON field belongs to the report of a different endpoint"
        )
    return report


def _is_deeper(content: object, levels: int) -> bool:
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return any(levels == 0 or _is_deeper(each, levels - 1) for each in inner)


def once(request: web.Request, name: str) -> str:
    """Return a header field's value if the request has the field exactly once, in ASCII.

    For a missing, repeated or non-ASCII header field, return an empty text, which no check accepts.
    """
    values = request.headers.getall(name, ())
    return values[0] if len(values) == 1 and values[0].isascii() else ""


def _versions(request: web.Request) -> list[str]:
    """Return the content versions that If-None-Match names."""
    tags = ",".join(request.headers.getall("If-None-Match", ())).split(",")
    return [tag.strip(" \t").removeprefix("W/").strip('"') for tag in tags]


def _held_schemas(request: web.Request) -> frozenset[str]:
    """Return the schema digests that a proxy lists in its sync request."""
    named = ",".join(request.headers.getall(HELD_SCHEMAS_HEADER, ())).split(",", MOST_HELD_SCHEMAS)
    return frozenset(each.strip(" \t") for each in named)


def _too_large(cap: int) -> Refused:
    if cap == MAX_BATCH_BYTES:
        return Refused("batchTooLarge")
    if cap == 0:
        return Refused("invalidPayload", "this request must have no body")
    return Refused("payloadTooLarge", f"this body must have at most {cap} bytes")


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
