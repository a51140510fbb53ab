"""Stored audit events to evaluate again: their selection, and the rules that originally evaluated them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

import msgspec

from controlplane.operations import times
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_queries import InvalidFilter, resolver
from controlplane.operations.models import schemas_of
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.worker_process import run_trial
from controlplane.search.document import UnsearchableError, read_document
from controlplane.search.predicates import all_hold
from controlplane.search.query import EVERYTHING, Filter, QueryError, parse_filter
from controlplane.store.interface import App, BlockPlace, Org, StoredEvent
from controlplane.workshop.replay import Event, Outcome, Replay, Rules
from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.policy.schemas import Schemas

_HOUR_MS: Final = 3_600_000
_DEFAULT_HOURS: Final = 24
SLICE_SECONDS: Final = 0.002  # seconds until other tasks of the server's event loop get a slot
_LATEST_MS: Final = 253_402_300_799_000  # the last second of the year 9999
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

decode_event: Final = msgspec.json.Decoder(Event).decode


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of stored audit events of an organisation."""

    org: Org
    apps: tuple[App, ...]  # empty: the events of every application
    from_ms: int
    to_ms: int
    filter: Filter = EVERYTHING

    def takes(self, event: Event, body: bytes) -> bool:
        if self.apps and all(event.app_id != app.app_id for app in self.apps):
            return False
        if not self.filter.terms:
            return True
        try:
            document = read_document(StoredEvent(0, self.org.org_id, body))
        except UnsearchableError:
            return False
        return all_hold(self.filter.terms, document)


async def select(
    context: OperationContext,
    actor: Actor,
    org: str,
    *,
    app: str | None,
    hours: float | None,
    from_: str | None,
    to: str | None,
    filter_: str = "",
) -> Selection:
    """Return the selection of events, as the API request describes it.

    Raise InvalidRequest if a field of the API request is not valid.
    """
    found = await context.resolve.org_of_events(actor, org)
    from_ms, to_ms = _window(context.clock.wall_ms(), hours, from_, to)
    try:
        terms = parse_filter(filter_, await resolver(context, actor, filter_), now_ms=context.clock.wall_ms())
    except QueryError as error:
        raise InvalidFilter(error) from None
    apps = () if app is None else (await context.resolve.app(actor, "viewer", app, found.org_id),)
    return Selection(found, apps, from_ms, to_ms, terms)


def _window(now_ms: int, hours: float | None, from_: str | None, to: str | None) -> tuple[int, int]:
    if hours is not None and (from_ is not None or to is not None):
        raise InvalidRequest("give the period either as hours, or as from and to")
    from_ms, to_ms = times.span(from_, to, now_ms)
    to_ms = within_time(now_ms if to_ms is None else to_ms)
    if from_ms is None:
        from_ms = to_ms - round((_DEFAULT_HOURS if hours is None else hours) * _HOUR_MS)
    return within_time(from_ms), to_ms


def within_time(ms: int) -> int:
    """Return a time in Unix ms, limited to times that the calendar can write."""
    return min(max(ms, 0), _LATEST_MS)


class Reading:
    """One pass through the selected events, newest blocks first."""

    def __init__(self, context: OperationContext, selection: Selection, after: BlockPlace | None) -> None:
        self._context = context
        self._selection = selection
        self.next = after  # position of the next event; set when the pass has stopped before the end
        self.read = 0  # events that were examined, including events that the selection excludes

    async def events(self, limit: int) -> AsyncIterator[Event]:
        """Examine about `limit` events, and yield the events that the selection includes.

        Between blocks of events, the event loop runs other tasks.
        """
        selection = self._selection
        begin, end = (_EPOCH + timedelta(milliseconds=ms) for ms in (selection.from_ms, selection.to_ms))
        since = time.perf_counter()
        while self.read < limit:
            bodies, self.next = await self._context.store.blocks_between(
                selection.org.org_id, selection.from_ms, selection.to_ms, self.next
            )
            for body in bodies:
                if time.perf_counter() - since >= SLICE_SECONDS:
                    await asyncio.sleep(0)
                    since = time.perf_counter()
                event = decoded(body)
                if event is not None and begin <= event.time < end and selection.takes(event, body):
                    yield event
            self.read += len(bodies)
            if self.next is None:
                return


def decoded(body: bytes) -> Event | None:
    """Return the event in decoded form, or None if the event can't be evaluated.

    Not every stored event can be evaluated. The agent API also accepts events from programs other than
    proxies, and events with extreme years.
    """
    try:
        event = decode_event(body)
    except msgspec.ValidationError:
        return None
    return event if 1970 < event.time.year < 9999 else None


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V")


class Lately(Generic[K, V]):
    """Cache of recent results that later calls may need again."""

    def __init__(self, most: int) -> None:
        self._known: BoundedMemo[K, V] = BoundedMemo(most, None, WhenFull.DROP_OLDEST)

    async def get(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        if key in self._known.entries:
            value = self._known.entries.pop(key)  # moves the entry used last to the end
        else:
            value = await make()
        self._known.keep(key, value)
        return value


# A version's text never changes, and a long replay needs the same few versions in each of its requests.
_former: Final[Lately[tuple[str, int], Rules | None]] = Lately(8)


class FormerRules:
    """Rules that evaluated an application's past requests, found by the ruleset version in the audit events.

    An event names the ruleset version of its application, but not the ruleset. The result is wrong if the
    application's ruleset was replaced by another ruleset after the event.
    """

    def __init__(self, context: OperationContext, actor: Actor, org: Org) -> None:
        self._context = context
        self._actor = actor
        self._org = org
        self._rulesets: dict[str, str] | None = None  # ruleset ids by application
        self._active: dict[str, int] | None = None  # active versions by ruleset id

    async def of(self, event: Event) -> Rules | None:
        found = await self.version_of(event)
        return None if found is None else await _former.get(found, lambda: self._rules(*found))

    async def outcome_of(self, event: Event) -> Outcome:
        """Return the recorded outcome of an event, with the filter that was active for the event."""
        return event.outcome(await self.of(event) if event.leaves_filter_to_rules else None)

    async def version_of(self, event: Event) -> tuple[str, int] | None:
        """Return the ID and the version of the ruleset that evaluated the event."""
        ruleset_id = (await self._bound()).get(event.app_id or "")
        if ruleset_id is None or not isinstance(event.ruleset_version, int):
            return None
        return ruleset_id, event.ruleset_version

    async def _bound(self) -> dict[str, str]:
        """Return a mapping from the ID of each application to the ID of its ruleset."""
        if self._rulesets is None:
            apps = await self._context.resolve.apps_of_events(self._org.org_id)
            self._rulesets = {app.app_id: app.ruleset_id for app in apps}
        return self._rulesets

    async def active_of(self, event: Event) -> tuple[str, int] | None:
        """Return the ID and the version of the active ruleset of the event's application."""
        if self._active is None:
            versions = {
                each.ruleset_id: each.version for each in await self._context.store.rulesets(self._org.org_id)
            }
            self._active = versions
        ruleset_id = (await self._bound()).get(event.app_id or "")
        version = self._active.get(ruleset_id or "")
        return None if ruleset_id is None or version is None else (ruleset_id, version)

    async def text(self, ruleset_id: str, version: int) -> str | None:
        return await self._context.store.ruleset_text(ruleset_id, version)

    async def replay_by(self, ruleset_id: str, version: int) -> Replay | None:
        """Return a replay of a stored ruleset version, or None if its text is missing or too old."""
        return await self._made(Replay, ruleset_id, version)

    async def _rules(self, ruleset_id: str, version: int) -> Rules | None:
        return await self._made(Rules, ruleset_id, version)

    async def _made(self, make: Callable[[Ruleset, Schemas], T], ruleset_id: str, version: int) -> T | None:
        text = await self.text(ruleset_id, version)
        if text is None:
            return None
        ruleset = await run_trial(self._actor, _of_this_language, text)
        schemas = await self._context.store.version_schemas(ruleset_id, version)
        if ruleset is None:
            return None
        return await asyncio.to_thread(lambda: make(ruleset, schemas_of(schemas)))


def _of_this_language(text: str) -> Ruleset | None:
    """Return a parsed ruleset, or None if the text is in an older version of the rule language."""
    try:
        return parse_ruleset(text)
    except InvalidRuleset:
        return None
