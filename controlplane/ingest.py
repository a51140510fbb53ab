"""An audit batch from bytes to the store: shape, organisation, then the commit that decides the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
import orjson
from msgspec import Meta, Struct

from controlplane.store.blocks import milliseconds
from controlplane.store.interface import AuditStore, NewBatch, Outcome, RateLimits, Stored

_Id = Annotated[str, Meta(min_length=1, max_length=256)]


class InvalidBatch(ValueError):
    """The batch's shape is wrong: 400 invalidPayload."""


class MixedOrganisations(ValueError):
    """Events of more than one organisation: 400 mixedOrganisations."""


class NotAuthorised(ValueError):
    """The proxy may not write for this organisation: 403 notAuthorisedForTenant."""


class Event(Struct, rename="camel"):
    """The members that the store looks at or that must be there; the rest is kept as it came."""

    id: _Id
    time: Annotated[datetime, Meta(tz=True)]
    org_id: _Id
    method: str
    path: str
    status: Annotated[int, Meta(ge=0, le=999)]
    verdict: Literal["allow", "filter", "block", "log_only"]
    proxy_id: Any = None
    seq: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class Batch(Struct, rename="camel"):
    batch_id: _Id
    events: Annotated[list[Event], Meta(min_length=1)]


_Text = str | None
# Beyond 64 bits readers disagree; such a number takes the other way, on which every byte is read as they do.
_Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Number = _Integer | float | None


class _KnownEvent(Event, rename="camel", forbid_unknown_fields=True, gc=False):
    """An event of nothing but known members, so that reading it looks at every byte of it."""

    proxy_id: _Text = None
    app_id: _Text = None
    client_id: _Text = None
    client_ip: _Text = None
    request_id: _Text = None
    client_request_id: _Text = None
    query: _Text = None
    rule_id: _Text = None
    logged_rule_ids: tuple[str, ...] | None = None
    transforms: tuple[str, ...] | None = None
    upstream_status: _Number = None
    duration_ms: _Number = None
    upstream_ms: _Number = None
    request_bytes: _Number = None
    response_bytes: _Number = None
    parent_request_id: _Text = None
    reason: _Text = None
    ruleset_version: str | _Integer | None = None
    upstream_request_id: _Text = None
    shadow_verdict: _Text = None
    shadow_rule_id: _Text = None
    shadow_ruleset_version: str | _Integer | None = None


class _KnownBatch(Struct, rename="camel", forbid_unknown_fields=True):
    batch_id: _Id
    events: Annotated[list[_KnownEvent], Meta(min_length=1)]


class _RawEvents(Struct):
    events: list[msgspec.Raw]


_decode_known: Final = msgspec.json.Decoder(_KnownBatch).decode
_decode_batch: Final = msgspec.json.Decoder(Batch).decode
_decode_raw_events: Final = msgspec.json.Decoder(_RawEvents).decode


class Ingest:
    def __init__(self, store: AuditStore, limits: RateLimits, on_stored: Callable[[], None]) -> None:
        self._store = store
        self._limits = limits
        self._on_stored = on_stored

    async def accept(self, proxy_id: str, allowed_orgs: Collection[str], body: bytes) -> tuple[str, Outcome]:
        """The batch's id, and what became of it. Where it was stored, it is on disk before this returns."""
        batch = parse_batch(proxy_id, body)
        if batch.org_id not in allowed_orgs:
            raise NotAuthorised
        outcome = await self._store.commit_batch(batch, self._limits)
        if isinstance(outcome, Stored):
            self._on_stored()
        return batch.batch_id, outcome


def parse_batch(proxy_id: str, body: bytes) -> NewBatch:
    try:
        batch = _decode(body)
        events: Sequence[bytes] = _decode_raw_events(body).events
    except (ValueError, RecursionError) as error:
        raise InvalidBatch(_reason(error)) from None
    if b"\\u0000" in body and any("\0" in event.id for event in batch.events):
        raise InvalidBatch("NUL is no character of an event's id")  # SQLite's would end there
    org_id = batch.events[0].org_id
    times = []
    is_forged = False
    for event in batch.events:
        if event.org_id != org_id:
            raise MixedOrganisations
        times.append(event.time)
        is_forged = is_forged or event.proxy_id not in (None, proxy_id)
    return NewBatch(
        proxy_id,
        org_id,
        batch.batch_id,
        ids=[event.id for event in batch.events],
        seqs=[event.seq for event in batch.events],
        least_ms=milliseconds(min(times)),
        most_ms=milliseconds(max(times)),
        events=_with_true_proxy(proxy_id, events) if is_forged else events,
    )


def _with_true_proxy(proxy_id: str, events: Sequence[bytes]) -> Sequence[bytes]:
    """Events that name another proxy than the one that signed them say both, told apart."""
    kept = []
    for raw in events:
        event = orjson.loads(bytes(raw))
        if event.get("proxyId") in (None, proxy_id):
            kept.append(raw)
        else:
            kept.append(orjson.dumps(event | {"proxyId": proxy_id, "claimedProxyId": event["proxyId"]}))
    return kept


def _decode(body: bytes) -> _KnownBatch | Batch:
    """Whatever is stored can be read again by any JSON parser, so every byte of it has been looked at."""
    try:
        return _decode_known(body)
    except msgspec.ValidationError:
        # Members that we don't know, or of other types, are skipped over by the typed pass.
        orjson.loads(body)
        return _decode_batch(body)


def _reason(error: Exception) -> str:
    """Where the shape is wrong, without a byte of what was sent: the answer goes into logs."""
    return (
        str(error)
        if isinstance(error, msgspec.ValidationError)
        else "the body must be one JSON object in UTF-8"
    )
