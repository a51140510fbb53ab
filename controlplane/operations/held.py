"""Notes on stored audit events: their times, their retention, and events that were purged or never arrived.

Notes on the stored audit events show if an empty search result may be due to events that the store lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from controlplane.clock import LATEST_MS
from controlplane.operations.context import OperationContext
from controlplane.search.query import Exactly, FieldTerm, Filter
from controlplane.store.interface import RETENTION_MS, RETENTION_WORDS, Org, Retention
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted

_MOST_NAMED: Final = 3  # organisations that notes list by name


@dataclass(frozen=True, slots=True)
class Keeper:
    """An organisation, and the retention of its audit events."""

    name: str
    created_ms: int
    retention: Retention

    def kept_since(self, now_ms: int) -> int:
        """Return the start of the retention: events from before this time are purged within an hour."""
        return now_ms - RETENTION_MS[self.retention]


@dataclass(frozen=True, slots=True)
class Gap:
    """A period in which events are missing.

    The period begins at the end of the previous period of missing events, and ends at `until_ms`.

    The state `absent` means that neither an organisation nor an event existed in the period. The state
    `partly purged` means that some organisations purged their events of the period, and others did not.
    """

    state: Literal["absent", "purged", "partly purged"]
    until_ms: int


@dataclass(frozen=True, slots=True)
class Held:
    """Facts about stored events of some organisations: time range, retention, missing events."""

    keepers: tuple[Keeper, ...]
    span: tuple[int, int] | None  # times of the oldest and the newest; None if there are none
    now_ms: int
    missing: Mapping[str, int]  # event numbers that never arrived, by the organisation's name

    def notes_on_nothing(self, from_ms: int | None) -> Iterator[str]:
        """Yield notes on the range of stored events, for a search that found no event."""
        names, one = self._names(), len(self.keepers) == 1
        if not self.keepers:
            return
        if self.span is not None:
            first, last = map(written, self.span)
            yield f"{names} {'holds' if one else 'hold'} events from {first} to {last}"
        elif one and self.keepers[0].created_ms > self.keepers[0].kept_since(self.now_ms):
            yield f"{names} holds no event: no event has arrived since it was added at {self._added()}"
        else:
            yield f"{names} {'holds' if one else 'hold'} no event"
        yield from self._notes_on_start(from_ms)
        for name, count in self.missing.items():
            numbers = counted(count, "event number")
            yield f"{numbers} of {name} never arrived, so events that match may be missing"

    def notes_on_found(self, from_ms: int | None) -> Iterator[str]:
        """Yield notes for a search that found events, if its period begins before the oldest stored event."""
        if from_ms is not None:
            yield from self._notes_on_start(from_ms)

    def gaps(self) -> tuple[Gap, ...]:
        """Return the periods in which events are missing, oldest first."""
        if not self.keepers:
            return ()
        oldest = self.now_ms if self.span is None else self.span[0]
        born = min((oldest, *(each.created_ms for each in self.keepers)))
        purged = [
            each.kept_since(self.now_ms)
            for each in self.keepers
            if each.created_ms < each.kept_since(self.now_ms)
        ]
        found = [Gap("absent", born)]
        if purged and born < (end := min(max(purged), oldest)):
            found.append(Gap("purged", end))
        if purged and oldest < max(purged) and len(self.keepers) > 1:
            found.append(Gap("partly purged", max(purged)))
        return tuple(found)

    def _notes_on_start(self, from_ms: int | None) -> Iterator[str]:
        if from_ms is not None and self.span is not None and from_ms < self.span[0]:
            yield f"from: no event before {written(self.span[0])} is stored"
        purged = [each for each in self.keepers if self._purged(each, from_ms)]
        for keeper in purged[:_MOST_NAMED]:
            kept, since = RETENTION_WORDS[keeper.retention], written(keeper.kept_since(self.now_ms))
            yield f"organisation {keeper.name} keeps {kept}: events before {since} are gone"
        if len(purged) > _MOST_NAMED:
            yield f"{counted(len(purged) - _MOST_NAMED, 'other organisation')} purged events of that time"

    def _purged(self, keeper: Keeper, from_ms: int | None) -> bool:
        """Return whether a purge may have deleted events of the requested time."""
        since = keeper.kept_since(self.now_ms)
        asked = from_ms is None or from_ms < since
        older_is_held = len(self.keepers) == 1 and self.span is not None and self.span[0] < since
        return asked and keeper.created_ms < since and not older_is_held

    def _names(self) -> str:
        names = [each.name for each in self.keepers]
        if len(names) > _MOST_NAMED:
            return counted(len(names), "organisation")
        if len(names) < 2:
            return f"organisation {''.join(names)}"
        return f"organisations {', '.join(names[:-1])} and {names[-1]}"

    def _added(self) -> str:
        return written(self.keepers[0].created_ms)


def written(ms: int) -> str:
    """Return a time in Unix ms as text.

    An event of an earlier release may have a time in a year that RFC 3339 cannot write.
    """
    return rfc3339(min(max(ms, 0), LATEST_MS))


def named_in(orgs: Sequence[Org], wanted: Filter) -> list[Org]:
    """Return the organisations that match the `org:` terms of a filter."""
    left = list(orgs)
    for term in wanted.terms:
        if isinstance(term, FieldTerm) and term.field.name == "org" and not term.negated:
            ids = {match.text for match in term.matches if isinstance(match, Exactly)}
            left = [org for org in left if org.org_id in ids] if len(ids) == len(term.matches) else left
    return left


async def held(
    context: OperationContext, orgs: Sequence[Org], span: tuple[int, int] | None, *, count_missing: bool
) -> Held:
    """Return facts about stored events of the given organisations: time range, retention, missing events.

    `span` has the times of the oldest and newest event that the store has for the organisations.
    """
    missing = {}
    for org in orgs[:_MOST_NAMED] if count_missing else ():
        missing[org.name] = (await context.store.losses_of_org(org.org_id)).missing
    return Held(
        tuple(Keeper(org.name, org.created_ms, org.retention) for org in orgs),
        span,
        context.clock.wall_ms(),
        {name: count for name, count in missing.items() if count},
    )
