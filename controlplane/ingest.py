"""An audit batch from bytes to the store: shape, organisation, then the commit that decides the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import orjson
from msgspec import Meta, Struct

from controlplane.store.interface import AuditStore, NewBatch, NewEvent, Outcome, RateLimits, Stored
from proxy.wire.audit_event import VERDICTS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_Id = Annotated[str, Meta(min_length=1, max_length=256)]


class InvalidBatch(ValueError):
    """The batch's shape is wrong: 400 invalidPayload."""


class MixedOrganisations(ValueError):
    """Events of more than one organisation: 400 mixedOrganisations."""


class NotAuthorised(ValueError):
    """The proxy may not write for this organisation: 403 notAuthorisedForTenant."""


class _Event(Struct, rename="camel"):
    """The members that the store looks at or that must be there; the rest is kept as it came."""

    id: _Id
    time: Annotated[datetime, Meta(tz=True)]
    org_id: _Id
    method: str
    path: str
    status: Annotated[int, Meta(ge=0, le=999)]
    verdict: str
    seq: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class _Batch(Struct, rename="camel"):
    batch_id: _Id
    events: Annotated[list[_Event], Meta(min_length=1)]


class _RawEvents(Struct):
    events: list[msgspec.Raw]


_decode_batch: Final = msgspec.json.Decoder(_Batch).decode
_decode_raw_events: Final = msgspec.json.Decoder(_RawEvents).decode
_VERDICTS: Final = frozenset(VERDICTS)


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
        # Whatever is stored can be read again by any JSON parser: the typed pass below skips over what it
        # doesn't know.
        orjson.loads(body)
        batch = _decode_batch(body)
        raw_events = _decode_raw_events(body).events
    except (ValueError, RecursionError) as error:
        raise InvalidBatch(_reason(error)) from None
    org_id = batch.events[0].org_id
    for event in batch.events:
        if event.org_id != org_id:
            raise MixedOrganisations
        if event.verdict not in _VERDICTS:
            raise InvalidBatch("verdict must be one of " + ", ".join(VERDICTS))
    events = [
        NewEvent(event.id, _milliseconds(event.time), event.seq, str(raw, "utf-8"))
        for event, raw in zip(batch.events, raw_events, strict=True)
    ]
    return NewBatch(proxy_id, org_id, batch.batch_id, events)


def _milliseconds(time: datetime) -> int:
    return round((time - _EPOCH).total_seconds() * 1000)


def _reason(error: Exception) -> str:
    """Where the shape is wrong, without a byte of what was sent: the answer goes into logs."""
    return (
        str(error)
        if isinstance(error, msgspec.ValidationError)
        else "the body must be one JSON object in UTF-8"
    )
