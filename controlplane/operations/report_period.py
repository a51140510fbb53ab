"""Subject of an audit report: its organisation, classes and period, and the text form of its times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import msgspec

from controlplane.operations import times
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request
from controlplane.operations.time_axis import DAY_MS
from controlplane.report.resource_classes import CLASSES
from controlplane.report.words import moment
from controlplane.store.interface import Org
from proxy.wire.audit_event import rfc3339

_USUAL_DAYS: Final = 90
# distance of the default end from now, so that proxies have delivered their events
SETTLING_MS: Final = 300_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ClassName = Literal["mail", "files", "calendars", "chats", "directory", "credentials"]


class ReportAsked(Request):
    org: str  # id or name
    from_: str | None = msgspec.field(name="from", default=None)  # default: 90 days before the end
    to: str | None = None  # default: five minutes ago
    classes: tuple[ClassName, ...] = msgspec.field(name="class", default=("mail",))


@dataclass(frozen=True, slots=True)
class Period:
    """Subject of an audit report, with absolute start and end times."""

    org: Org
    from_ms: int
    to_ms: int
    classes: tuple[str, ...]


async def period_of(context: OperationContext, actor: Actor, request: ReportAsked) -> Period:
    """Return the subject of the requested report, with absolute start and end times.

    Raise InvalidRequest if the period of the request is not valid.
    """
    org = await context.resolve.org_of_events(actor, request.org)
    now_ms = context.clock.wall_ms()
    from_ms, to_ms = times.span(request.from_, request.to, now_ms)
    to_ms = now_ms - SETTLING_MS if to_ms is None else to_ms
    from_ms = to_ms - _USUAL_DAYS * DAY_MS if from_ms is None else from_ms
    from_ms = max(from_ms, 0)
    if to_ms <= 0:
        raise InvalidRequest("to: must be after 1970-01-01")
    if from_ms >= to_ms:
        raise InvalidRequest("from: must be before `to`")
    if to_ms > now_ms:
        raise InvalidRequest("to: must not be in the future")
    classes = tuple(name for name in CLASSES if name in request.classes)
    if not classes:
        raise InvalidRequest(f"class: must name at least one of {', '.join(CLASSES)}")
    return Period(org, from_ms, to_ms, classes)


def moment_of(ms: int) -> datetime:
    """Convert a time in Unix ms to a datetime, which can be compared with event times."""
    return _EPOCH + timedelta(milliseconds=ms)


def time_text(ms: int) -> str:
    """Return a time in Unix ms as text for people."""
    return moment(rfc3339(ms))


def text_of_moment(time: datetime) -> str:
    """Return a time as text in RFC 3339."""
    return rfc3339((time - _EPOCH) // timedelta(milliseconds=1))
