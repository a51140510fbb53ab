"""An audit batch from bytes to the store: shape, organisation, then the commit that decides the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec
import orjson
from msgspec import Meta, Struct

from controlplane.clock import EARLIEST_MS, LATEST_MS, Clock, milliseconds
from controlplane.search.known_event import Event, Id, KnownEvent, Parsed
from controlplane.store.interface import (
    MOST_AHEAD_MS,
    MOST_BEHIND_MS,
    AuditStore,
    NewBatch,
    Outcome,
    RateLimits,
    Stored,
)
from controlplane.usage import uses_of
from proxy.policy.json_text import refuse_deep
from proxy.wire.audit_event import rfc3339

MOST_LEVELS: Final = 903  # levels of a batch; earlier versions stored 900 in a member of an event


class InvalidBatch(ValueError):
    """The batch's shape is wrong: 400 invalidPayload."""


class MixedOrganisations(ValueError):
    """Events of more than one organisation: 400 mixedOrganisations."""


class NotAuthorised(ValueError):
    """The proxy may not write for this organisation: 403 notAuthorisedForTenant."""


class Batch(Struct, rename="camel"):
    batch_id: Id
    events: Annotated[list[Event], Meta(min_length=1)]


class _KnownBatch(Struct, rename="camel", forbid_unknown_fields=True):
    batch_id: Id
    events: Annotated[list[KnownEvent], Meta(min_length=1)]


class _Named(Struct, rename="camel"):
    batch_id: Id


class _RawEvents(Struct):
    events: list[msgspec.Raw]


_decode_known: Final = msgspec.json.Decoder(_KnownBatch).decode
_decode_batch: Final = msgspec.json.Decoder(Batch).decode
_decode_name: Final = msgspec.json.Decoder(_Named).decode
_NAME_FIRST: Final = re.compile(rb'\s*\{\s*"batchId"\s*:\s*"([!#-\[\]-~]{1,256})"\s*,')
_decode_raw_events: Final = msgspec.json.Decoder(_RawEvents).decode


class Ingest:
    def __init__(
        self,
        store: AuditStore,
        limits: RateLimits,
        clock: Clock,
        on_stored: Callable[[Parsed | None], None],
    ) -> None:
        """`on_stored` is given what was stored where all of it is as it was read."""
        self._store = store
        self._limits = limits
        self._clock = clock
        self._on_stored = on_stored

    async def accept(self, proxy_id: str, allowed_orgs: Collection[str], body: bytes) -> tuple[str, Outcome]:
        """The batch's id, and what became of it. Where it was stored, it is on disk before this returns."""
        batch, known = parse_batch(proxy_id, body, self._clock.wall_ms())
        if batch.org_id not in allowed_orgs:
            raise NotAuthorised
        outcome = await self._store.commit_batch(batch, self._limits)
        if isinstance(outcome, Stored):
            parsed = None
            if known is not None and outcome.accepted == len(known):
                parsed = Parsed(
                    batch.org_id, outcome.position, batch.times, known, batch.events, size=len(body)
                )
            self._on_stored(parsed)
        return batch.batch_id, outcome


def batch_id_of(body: bytes) -> str | None:
    """The batch id of a body that is refused; also if it stands first and what follows is not JSON."""
    try:
        return _decode_name(body).batch_id
    except (ValueError, RecursionError):
        found = _NAME_FIRST.match(body)
        return None if found is None else found[1].decode()


def parse_batch(proxy_id: str, body: bytes, received_ms: int) -> tuple[NewBatch, Sequence[KnownEvent] | None]:
    """The batch, and its events as they were read if they are stored as they came and nothing else."""
    try:
        batch = _decode(body)
        events: Sequence[bytes] = _decode_raw_events(body).events
        content = sha256(b"".join(events)).digest()
    except (ValueError, RecursionError) as error:
        raise InvalidBatch(_reason(error)) from None
    if b"\\u0000" in body and any("\0" in event.id for event in batch.events):
        raise InvalidBatch("NUL is no character of an event's id")  # SQLite's would end there
    org_id = batch.events[0].org_id
    if any(event.org_id != org_id for event in batch.events):
        raise MixedOrganisations
    times = [milliseconds(event.time) for event in batch.events]
    if min(times) < EARLIEST_MS or max(times) > LATEST_MS:
        raise InvalidBatch("UTC has no year for the time of an event")
    is_forged = any(event.proxy_id not in (None, proxy_id) for event in batch.events)
    marks = [implausible(time_ms, received_ms) for time_ms in times]
    is_marked = any(marks)
    plausible = [None if mark else time_ms for time_ms, mark in zip(times, marks, strict=True)]
    known = batch.events if isinstance(batch, _KnownBatch) and not is_forged and not is_marked else None
    if is_forged:
        events = _with_true_proxy(proxy_id, events)
    if not isinstance(batch, _KnownBatch) and _may_claim_marks(body):
        events = _without_claims(events)
    if is_marked:
        events = [_marked(raw, mark, received_ms) for raw, mark in zip(events, marks, strict=True)]
    new = NewBatch(
        proxy_id,
        org_id,
        batch.batch_id,
        ids=[event.id for event in batch.events],
        seqs=[event.seq for event in batch.events],
        times=times,
        events=events,
        implausible=sum(mark is not None for mark in marks),
        content=content,
        uses=uses_of(batch.events, plausible, received_ms),
    )
    return new, known


Implausible = Literal["future", "past"]
_MARKS: Final = {"implausibleTime": "claimedImplausibleTime", "receivedAt": "claimedReceivedAt"}
"""Members that the control plane alone writes, and what they are renamed to if a proxy sends them."""


def implausible(time_ms: int, received_ms: int) -> Implausible | None:
    """Return which way an event's own time can't be true, given when it came; None if it can."""
    if time_ms > received_ms + MOST_AHEAD_MS:
        return "future"
    return "past" if time_ms < received_ms - MOST_BEHIND_MS else None


def _marked(raw: bytes, mark: Implausible | None, received_ms: int) -> bytes:
    """The event with the mark as its last members; every byte before them stays as it came."""
    if mark is None:
        return raw
    text = bytes(raw).rstrip(b" \t\r\n").removesuffix(b"}")
    return b'%b,"implausibleTime":"%b","receivedAt":"%b"}' % (
        text, mark.encode(), rfc3339(received_ms).encode(),
    )  # fmt: skip


def _may_claim_marks(body: bytes) -> bool:
    return b"\\u" in body or any(name.encode() in body for name in _MARKS)


def _without_claims(events: Sequence[bytes]) -> Sequence[bytes]:
    """Events that bring members of the control plane's own keep them under other names."""
    kept = []
    for raw in events:
        event = orjson.loads(bytes(raw))
        if _MARKS.keys().isdisjoint(event):
            kept.append(raw)
        else:
            kept.append(_dumped({_MARKS.get(name, name): value for name, value in event.items()}))
    return kept


def _with_true_proxy(proxy_id: str, events: Sequence[bytes]) -> Sequence[bytes]:
    """Events that name another proxy than the one that signed them name both."""
    kept = []
    for raw in events:
        event = orjson.loads(bytes(raw))
        if event.get("proxyId") in (None, proxy_id):
            kept.append(raw)
        else:
            kept.append(_dumped(event | {"proxyId": proxy_id, "claimedProxyId": event["proxyId"]}))
    return kept


def _dumped(event: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(event)
    except orjson.JSONEncodeError:  # it reads deeper nesting than it writes
        raise InvalidBatch("an event is nested too deeply") from None


def _decode(body: bytes) -> _KnownBatch | Batch:
    """Whatever is stored can be read again by any JSON parser, so every byte of it has been looked at."""
    try:
        return _decode_known(body)
    except msgspec.ValidationError:
        # Members that we don't know, or of other types, are skipped over by the typed pass.
        refuse_deep(body, MOST_LEVELS)
        orjson.loads(body)
        return _decode_batch(body)


def _reason(error: Exception) -> str:
    """Where the shape is wrong, without a byte of what was sent: the response goes into logs."""
    return (
        str(error)
        if isinstance(error, msgspec.ValidationError)
        else "the body must be one JSON object in UTF-8"
    )
