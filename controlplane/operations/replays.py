"""Replays, which list the verdicts of stored events that a draft ruleset would change."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_notes import doubts
from controlplane.operations.event_places import Places
from controlplane.operations.given_rules import Source, given_rules, ruleset_of
from controlplane.operations.models import schemas_of
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.recorded import FormerRules, Lately, Reading, Selection, select, within_time
from controlplane.operations.worker_process import run_trial
from controlplane.search.interface import SearchQuery
from controlplane.store.interface import BlockPlace, PackedSchemas, StoreBusy
from controlplane.workshop.replay import (
    CHANGES,
    MAX_GROUPS,
    MAX_SAMPLES,
    Event,
    Group,
    Outcome,
    Replay,
    Tally,
    Unclear,
)
from proxy.policy.ending import moment_text
from proxy.policy.ruleset import Ruleset
from proxy.policy.schemas import NO_SCHEMAS, needs_schemas
from proxy.wire.audit_event import rfc3339

MOST_AT_ONCE: Final = 1_000_000  # events that one request evaluates
_USUAL: Final = 100_000  # events that take a second or two
_MOST_RUNNING: Final = 6  # replays that run at the same time
_MOST_OF_ONE: Final = 2  # replays of one operator, so that nobody occupies all slots

_running: Counter[str] = Counter()  # running replays by operator


class ReplayRuleset(Request):
    """Request to replay stored audit events against a ruleset.

    By default, the API request replays the last day's events of all applications that use the ruleset with
    the draft's name. If no application uses the ruleset with the draft's name, the request replays the events
    of all applications.
    """

    source: Source
    org: str
    app: str | None = None
    every_app: bool = False
    hours: Annotated[float, msgspec.Meta(gt=0, le=24 * 3660)] | None = None
    from_: str | None = msgspec.field(default=None, name="from")  # RFC 3339, a date, -2h
    to: str | None = None
    filter: str = ""
    # recorded verdicts, or verdicts of the active version
    against: Literal["recorded", "active"] = "recorded"
    # approximate number of events to examine
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] = _USUAL
    cursor: str | None = None  # `next` of the previous response


class OutcomeFacts(msgspec.Struct, rename="camel", frozen=True):
    """A verdict and its source: a rule, or the reason why the proxy itself refused the request."""

    verdict: str  # allow, filter, block, log_only, refused
    by: str
    transforms: tuple[str, ...] | None = ()  # names of the active filter; null if it is unknown


class SampleFacts(msgspec.Struct, rename="camel", frozen=True):
    id: str
    time: str
    method: str
    target: str


class ChangeFacts(msgspec.Struct, rename="camel"):
    """Events of one application with the same recorded verdict and the same new verdict."""

    change: str  # newlyBlocked, unclear, newlyAllowed, transforms, recordedAs
    app_id: str | None
    app: str | None
    before: OutcomeFacts  # verdict to compare with
    after: tuple[OutcomeFacts, ...]  # several outcomes if the change is unclear
    missing: tuple[str, ...]  # unknown facts that an unclear verdict depends on
    gap: str  # inputs that are evaluated now, but were not when the events were recorded; or empty
    add: str  # match of a rule that would allow it; or empty
    count: int
    first: str
    last: str
    samples: tuple[SampleFacts, ...]
    recorded: OutcomeFacts | None = None  # verdict in the event, if it is not `before`


class EndedFacts(msgspec.Struct, rename="camel"):
    """A rule of the draft ruleset, listed because the time in the rule's `until` has passed.

    The replay evaluates each event as if the current time were the time of the event.
    """

    rule_id: str
    until: str


class Replayed(Response):
    """Result of a replay of stored events.

    If the replay stops before the end of the period, `next` is the cursor for the next request.
    """

    from_: str = msgspec.field(name="from")
    to: str
    apps: tuple[str, ...]  # names of the applications whose events were evaluated; empty: all applications
    events: int
    unasked: int  # token requests, or requests refused before any rule: rules change nothing
    unchanged: int
    by_another_rule: int  # number of the unchanged verdicts that another rule decides
    changed: int
    unclear: int  # number of events whose verdict depends on facts that are not stored
    groups: tuple[ChangeFacts, ...]
    ungrouped: int  # changed or unclear events beyond the groups that are listed
    looked_at: int  # examined events, also of other applications, or without the filter
    expected: int | None  # approximate number of events to examine; only with the first request
    next: str | None
    notes: tuple[str, ...] = ()  # reasons for an empty result
    against: str = "recorded"
    # rules of the draft that no longer matched because their time was over
    ended: tuple[EndedFacts, ...] = ()


# A long replay requests the same draft many times.
_drafts: Final[Lately[bytes, Replay]] = Lately(2)


@operation("ruleset.replay", "POST", "/rulesets/replay", changes=False)
async def replay(context: OperationContext, actor: Actor, request: ReplayRuleset) -> Replayed:
    """Replay stored events: list the verdicts that a draft would change, by rule and app."""
    selection, after = await _selected(context, actor, request)
    draft = await _draft(context, actor, request)
    if request.app is None and not request.every_app:
        apps = await context.store.apps(selection.org.org_id)
        bound = tuple(app for app in apps if app.ruleset_name == draft.name)
        selection = replace(selection, apps=bound)
    with slot(actor):
        reading = Reading(context, selection, after)
        comparison = _Comparison(draft, FormerRules(context, actor, selection.org), request.against)
        async for event in reading.events(request.limit):
            await comparison.add(event)
    tally = comparison.tally
    expected = None
    if after is None:
        expected = await context.store.count_between(selection.org.org_id, selection.from_ms, selection.to_ms)
    org_id = selection.org.org_id
    names = {app.app_id: app.name for app in await context.resolve.apps_of_events(org_id)}
    return Replayed(
        from_=rfc3339(selection.from_ms),
        to=rfc3339(selection.to_ms),
        apps=tuple(app.name for app in selection.apps),
        events=tally.events,
        unasked=tally.unasked,
        unchanged=tally.unchanged,
        by_another_rule=tally.by_another_rule,
        changed=tally.changed,
        unclear=tally.unclear,
        groups=tuple(_change_facts(group, names) for group in tally.sorted_groups()),
        ungrouped=tally.ungrouped,
        looked_at=reading.read,
        expected=expected,
        next=await _cursor(context, actor, selection, reading.next),
        notes=await without_events(context, actor, selection)
        if not tally.events and not reading.next
        else (),
        against=request.against,
        ended=tuple(
            EndedFacts(rule_id, moment_text(end))
            for rule_id, end in draft.ended_before(selection.to_ms / 1000)
        ),
    )


async def without_events(context: OperationContext, actor: Actor, selection: Selection) -> tuple[str, ...]:
    """Return notes for a replay that found no event, with possible mistakes in the request."""
    of = ", ".join(app.name for app in selection.apps) or "any application"
    span = f"{rfc3339(selection.from_ms)} and {rfc3339(selection.to_ms)}"
    org = selection.org.org_id
    query = SearchQuery((org,), selection.filter, selection.from_ms, selection.to_ms)
    return f"no event of {of} between {span}", *await doubts(context, actor, org, query)


@contextmanager
def slot(actor: Actor) -> Iterator[None]:
    """Reserve a slot for an actor's replay of stored events.

    Raise StoreBusy if too many replays are running.
    """
    if _running[actor.name] >= _MOST_OF_ONE or _running.total() >= _MOST_RUNNING:
        raise StoreBusy("other replays are running: try again in a moment")
    _running[actor.name] += 1
    try:
        yield
    finally:
        _running[actor.name] -= 1
        if not _running[actor.name]:
            del _running[actor.name]


# Replays by active versions, which cache their results.
_by_version: Final[Lately[tuple[str, int], Replay | None]] = Lately(4)


class _Comparison:
    """Comparison of a draft with recorded verdicts, or with the active version of each app's ruleset."""

    def __init__(self, draft: Replay, former: FormerRules, against: str) -> None:
        self.tally = Tally()
        self._draft = draft
        self._former = former
        self._with_active = against == "active"

    async def add(self, event: Event) -> None:
        if not event.reached_rules:
            self.tally.pass_over()
            return
        recorded = await self._former.outcome_of(event)
        active = await self._active(event) if self._with_active else None
        after = await self._evaluated(self._draft, event)
        if active is None:
            self.tally.add(event, recorded, after, self._draft.gap(event, after))
            return
        before = await self._evaluated(active, event)
        if isinstance(before, Outcome) and isinstance(after, Outcome):
            self.tally.add(event, before, after, self._draft.gap(event, after), recorded)
        elif self._draft.same_effect(active, event, await self._former.of(event)):
            self.tally.add_same()
        elif isinstance(before, Outcome):
            self.tally.add(event, before, after, recorded=recorded)
        else:
            possible = after.possible if isinstance(after, Unclear) else (after,)
            self.tally.add(event, recorded, Unclear(possible, before.missing))

    async def _active(self, event: Event) -> Replay | None:
        """Return a replay that uses the active ruleset of the event's application.

        Return None if the application has no active ruleset.
        """
        version = await self._former.active_of(event)
        if version is None:
            return None
        return await _by_version.get(version, lambda: self._former.replay_by(*version))

    async def _evaluated(self, rules: Replay, event: Event) -> Outcome | Unclear:
        outcome = rules.evaluate(event)
        if isinstance(outcome, Unclear) and (former := await self._former.of(event)) is not None:
            return rules.evaluate(event, former)
        return outcome


async def _draft(context: OperationContext, actor: Actor, request: ReplayRuleset) -> Replay:
    given = await given_rules(context, actor, request.source, request.org)
    named = "".join(f"{root} {digest}\n" for root, digest in given.schemas.digests.items())
    key = sha256(f"{named}\n{given.text}".encode("utf-8", "surrogatepass")).digest()

    async def made() -> Replay:
        return await asyncio.to_thread(_replay, await run_trial(actor, ruleset_of, given), given.schemas)

    return await _drafts.get(key, made)


def _replay(draft: Ruleset, schemas: PackedSchemas) -> Replay:
    return Replay(draft, schemas_of(schemas) if needs_schemas(draft) else NO_SCHEMAS)


# -- cursors: they fix the time of the first request, because "the last hours" move on

_SEALED_FOR: Final = "ruleset.replay"
_CURSOR: Final = re.compile(r"([0-9]{1,15})-([0-9]{1,15})-([0-9]{1,15})-([0-9]{1,15})")


async def _selected(
    context: OperationContext, actor: Actor, request: ReplayRuleset
) -> tuple[Selection, BlockPlace | None]:
    selection = await select(
        context,
        actor,
        request.org,
        app=request.app,
        hours=request.hours,
        from_=request.from_,
        to=request.to,
        filter_=request.filter,
    )
    if request.cursor is None:
        return selection, None
    try:
        text = (await Places.of(context, actor, _SEALED_FOR)).read(request.cursor)
    except ValueError:
        text = ""
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidRequest("cursor: is not a cursor that a replay returned")
    from_ms, to_ms, *place = map(int, found.groups())
    selection = replace(selection, from_ms=within_time(from_ms), to_ms=within_time(to_ms))
    return selection, BlockPlace(*place)


async def _cursor(
    context: OperationContext, actor: Actor, selection: Selection, place: BlockPlace | None
) -> str | None:
    if place is None:
        return None
    text = f"{selection.from_ms}-{selection.to_ms}-{place.least_ms}-{place.position}"
    return (await Places.of(context, actor, _SEALED_FOR)).write(text)


# -- facts


def _change_facts(group: Group, names: Mapping[str, str]) -> ChangeFacts:
    key = group.key
    return ChangeFacts(
        change=key.change,
        app_id=key.app,
        app=names.get(key.app or ""),
        before=outcome_facts(key.before),
        after=tuple(map(outcome_facts, key.after)),
        missing=key.missing,
        gap="" if key.gap is None else key.gap.cause,
        add="" if key.gap is None else key.gap.line,
        count=group.count,
        first=_spelled(group.first),
        last=_spelled(group.last),
        samples=tuple(
            SampleFacts(one.id, _spelled(one.time), one.method, one.target) for one in group.samples
        ),
        recorded=None if key.recorded is None else outcome_facts(key.recorded),
    )


def outcome_facts(outcome: Outcome) -> OutcomeFacts:
    return OutcomeFacts(*outcome)


def _spelled(time: datetime) -> str:
    return rfc3339(round(time.timestamp() * 1000))


_COUNTED: Final = (
    "events",
    "unasked",
    "unchanged",
    "by_another_rule",
    "changed",
    "unclear",
    "ungrouped",
    "looked_at",
)


def together(first: Replayed, then: Replayed) -> Replayed:
    """Add up the counts of two parts of a replay, if the replay took several requests."""
    groups = {_group_key(group): group for group in first.groups}
    counted = {name: getattr(first, name) + getattr(then, name) for name in _COUNTED}
    for group in then.groups:
        known = groups.get(_group_key(group))
        if known is not None:
            group = msgspec.structs.replace(
                known,
                count=known.count + group.count,
                first=min(known.first, group.first),
                last=max(known.last, group.last),
                samples=(known.samples + group.samples)[:MAX_SAMPLES],
            )
        elif len(groups) >= MAX_GROUPS:
            counted["ungrouped"] += group.count
            continue
        groups[_group_key(group)] = group
    ranked = sorted(groups.values(), key=lambda group: (CHANGES.index(group.change), -group.count))
    notes = () if counted["events"] else then.notes
    return msgspec.structs.replace(first, **counted, groups=tuple(ranked), next=then.next, notes=notes)


def _group_key(group: ChangeFacts) -> tuple[object, ...]:
    outcomes = group.before, group.after, group.recorded
    return group.change, group.app_id, *outcomes, group.missing, group.gap, group.add
