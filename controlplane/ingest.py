"""Check a received batch of audit events, and commit the batch to the store."""

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

# Nesting levels of a batch; earlier releases stored up to 900 in a member of an event.
MOST_LEVELS: Final = 903


class InvalidBatch(ValueError):
    """Error 400 invalidPayload: the JSON of the batch does not have the required form."""


class MixedOrganisations(ValueError):
    """Error 400 mixedOrganisations: the batch has events of more than one organisation."""


class NotAuthorised(ValueError):
    """Error 403 notAuthorisedForTenant: the proxy has no permission to write events of this organisation."""


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
        """Initialise the ingestion of events, which calls `on_stored` after it has stored events.

        If all events are stored exactly as the proxy sent them, `on_stored` receives the parsed events;
        otherwise it receives None.
        """
        self._store = store
        self._limits = limits
        self._clock = clock
        self._on_stored = on_stored

    async def accept(self, proxy_id: str, allowed_orgs: Collection[str], body: bytes) -> tuple[str, Outcome]:
        """Store a batch of audit events, and return the batch ID and the outcome.

        If this method stores the batch, the batch is on disk before the method returns.
        """
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
    """Return the batch ID of a refused request body, even if the rest of the body is not JSON."""
    try:
        return _decode_name(body).batch_id
    except (ValueError, RecursionError):
        found = _NAME_FIRST.match(body)
        return None if found is None else found[1].decode()


def parse_batch(proxy_id: str, body: bytes, received_ms: int) -> tuple[NewBatch, Sequence[KnownEvent] | None]:
    """Parse a request body, and return the batch of audit events in the body.

    Also return the parsed events of the batch if the events are stored unchanged and have no unknown members.
    """
    try:
        batch = _decode(body)
        events: Sequence[bytes] = _decode_raw_events(body).events
        content = sha256(b"".join(events)).digest()
    except (ValueError, RecursionError) as error:
        raise InvalidBatch(_reason(error)) from None
    if b"\\u0000" in body and any("\0" in event.id for event in batch.events):
        raise InvalidBatch("the id of an event contains a NUL character")  # SQLite would end the text there.
    org_id = batch.events[0].org_id
    if any(event.org_id != org_id for event in batch.events):
        raise MixedOrganisations
    times = [milliseconds(event.time) for event in batch.events]
    if min(times) < EARLIEST_MS or max(times) > LATEST_MS:
        raise InvalidBatch("the time of an event is outside the years 1 to 9999 in UTC")
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
"""Members that only the control plane writes, and their new names if a proxy sends them."""


def implausible(time_ms: int, received_ms: int) -> Implausible | None:
    """Return `future` or `past` if the event's time is too far from the receipt time; otherwise None."""
    if time_ms > received_ms + MOST_AHEAD_MS:
        return "future"
    return "past" if time_ms < received_ms - MOST_BEHIND_MS else None


def _marked(raw: bytes, mark: Implausible | None, received_ms: int) -> bytes:
    """Return the event, with two additional members at its end if its time is implausible.

    All bytes before the added members stay as the proxy wrote them.
    """
    if mark is None:
        return raw
    text = bytes(raw).rstrip(b" \t\r\n").removesuffix(b"}")
    return b'%b,"implausibleTime":"%b","receivedAt":"%b"}' % (
        text, mark.encode(), rfc3339(received_ms).encode(),
    )  # fmt: skip


def _may_claim_marks(body: bytes) -> bool:
    return b"\\u" in body or any(name.encode() in body for name in _MARKS)


def _without_claims(events: Sequence[bytes]) -> Sequence[bytes]:
    """Return the events of a batch, with new names for the members that only the control plane may write.

    The new name of a member that a proxy sent begins with `claimed`. So no proxy can forge a value of the
    control plane.
    """
    kept = []
    for raw in events:
        event = orjson.loads(bytes(raw))
        if _MARKS.keys().isdisjoint(event):
            kept.append(raw)
        else:
            kept.append(_dumped({_MARKS.get(name, name): value for name, value in event.items()}))
    return kept


def _with_true_proxy(proxy_id: str, events: Sequence[bytes]) -> Sequence[bytes]:
    """Return the events, and correct the proxy ID of each event that names a different proxy."""
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
    except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes.
        raise InvalidBatch("the JSON of an event is nested too deeply") from None


def _decode(body: bytes) -> _KnownBatch | Batch:
    """Decode a batch and check all of its bytes, so that any JSON parser can later read the stored events."""
    try:
        return _decode_known(body)
    except msgspec.ValidationError:
        # The typed decoder skips unknown members and members with other types.
        refuse_deep(body, MOST_LEVELS)
        orjson.loads(body)
        return _decode_batch(body)


def _reason(error: Exception) -> str:
    """Return a text that says where in a batch an error is.

    The error text is logged, so it contains no bytes of the request.
    """
    return (
        str(error)
        if isinstance(error, msgspec.ValidationError)
        else "the body must be one JSON object in UTF-8"
    )
