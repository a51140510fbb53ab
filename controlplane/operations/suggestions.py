"""Finder of the smallest ruleset that would have allowed the recorded requests of an application."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec

from controlplane.names import InvalidName, valid_name
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.recorded import FormerRules, Reading, Selection, select
from controlplane.operations.replays import slot, without_events
from controlplane.operations.worker_process import run_trial
from controlplane.workshop.replay import Outcome, Replay
from controlplane.workshop.suggest import Blocked, Observations, Suggestion, suggest
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted

MOST_AT_ONCE: Final = 10_000_000  # events that one request examines
_USUAL: Final = 1_000_000  # events that take half a minute


class SuggestRuleset(Request):
    """Request to suggest a ruleset from an application's recorded requests.

    By default, the suggestion is based on the events of the last day.
    """

    org: str
    app: str
    name: str | None = None  # name of the ruleset; default: the application's name
    hours: Annotated[float, msgspec.Meta(gt=0, le=24 * 3660)] | None = None
    from_: str | None = msgspec.field(default=None, name="from")  # RFC 3339, a date, -2h
    to: str | None = None
    include_blocked: bool = False
    # approximate number of events to examine
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] = _USUAL


class SuggestedFacts(msgspec.Struct, rename="camel"):
    """A suggested rule, and the observed requests that are the evidence for the rule.

    The text of the suggested ruleset contains the rule and the evidence.
    """

    id: str
    methods: tuple[str, ...]
    paths: tuple[str, ...]
    requests: int


class Suggested(Response):
    yaml: str
    from_: str = msgspec.field(name="from")
    to: str
    rules: tuple[SuggestedFacts, ...]
    requests: int  # number of requests that the rule lets through
    blocked: int  # number of blocked requests, which are not in the ruleset
    left_out: int  # number of requests that no rule can express
    complete: bool  # False: only the newest events of the period were examined
    notes: tuple[str, ...] = ()  # reasons for an empty result


@operation("ruleset.suggest", "POST", "/rulesets/suggest", changes=False)
async def suggest_ruleset(context: OperationContext, actor: Actor, request: SuggestRuleset) -> Suggested:
    """Suggest the smallest ruleset that would have allowed an application's requests, with the evidence."""
    selection = await select(
        context,
        actor,
        request.org,
        app=request.app,
        hours=request.hours,
        from_=request.from_,
        to=request.to,
    )
    (app,) = selection.apps
    from_, to = rfc3339(selection.from_ms), rfc3339(selection.to_ms)
    with slot(actor):
        observed, blocked, reading = await _observed(context, actor, selection, request)
        about = about_suggestion(app.name, observed.count, blocked, f"{from_} to {to}")
        name = suggested_name(app.name if request.name is None else request.name)
        found = await _suggested(context, actor, selection, request, observed, name, about)
    return Suggested(
        yaml=found.yaml,
        from_=from_,
        to=to,
        rules=suggested_facts(found),
        requests=found.requests - found.left_out,
        blocked=blocked,
        left_out=found.left_out,
        complete=reading.next is None,
        notes=() if observed.count or blocked else await without_events(context, actor, selection),
    )


async def _observed(
    context: OperationContext, actor: Actor, selection: Selection, request: SuggestRuleset
) -> tuple[Observations, int, Reading]:
    """Return the requests that rules must allow, and the number of the remaining blocked requests."""
    observed, blocked = Observations(), 0
    reading = Reading(context, selection, None)
    former = FormerRules(context, actor, selection.org)
    async for event in reading.events(request.limit):
        if event.rule_id is None:  # refused before any rule was evaluated
            continue
        was_blocked = not event.lets_through
        if was_blocked and not request.include_blocked:
            blocked += 1
            continue
        hidden = (await former.outcome_of(event)).transforms or ()
        if event.verdict == "filter" and not hidden:
            observed.leave_out_filtered()
        else:
            observed.add(event.method, event.target, event.time, hidden, was_blocked=was_blocked)
    return observed, blocked, reading


async def _suggested(
    context: OperationContext,
    actor: Actor,
    selection: Selection,
    request: SuggestRuleset,
    observed: Observations,
    name: str,
    about: list[str],
) -> Suggestion:
    """Suggest rules that allow the observed requests.

    Remove a query guard from the suggested ruleset if the guard would block a request that the rules must
    allow. A suggestion never removes a filter from the suggested ruleset.
    """
    unguarded: frozenset[str] = frozenset()
    while True:
        found = await run_trial(actor, _written, observed, name, about, unguarded)
        blocked = await _blocked(context, actor, selection, request, found)
        if not blocked.unguarded:
            break
        unguarded |= blocked.unguarded
    if not blocked.count:
        return found
    return await run_trial(actor, _written, observed, name, about, unguarded, blocked.count)


def _written(
    observed: Observations, name: str, about: list[str], unguarded: frozenset[str], blocked: int = 0
) -> Suggestion:
    """Return the suggested ruleset as text.

    Raise InvalidRequest if `name` is not valid as the name of a ruleset.
    """
    try:
        return suggest(observed, name, about=about, unguarded=unguarded, blocked=blocked)
    except InvalidRuleset as error:
        raise InvalidRequest(f"name: {error.problems[0].message}") from None


async def _blocked(
    context: OperationContext, actor: Actor, selection: Selection, request: SuggestRuleset, found: Suggestion
) -> Blocked:
    blocked = Blocked(found)
    if not found.has_filters:
        return blocked
    replay = await asyncio.to_thread(Replay, await run_trial(actor, parse_ruleset, found.yaml))
    async for event in Reading(context, selection, None).events(request.limit):
        if event.rule_id is None or not event.lets_through:
            continue
        after = replay.evaluate(event)
        if isinstance(after, Outcome) and not after.lets_through:
            blocked.add(after.by, event.target)
    return blocked


def suggested_name(name: str) -> str:
    """Return the given name if a ruleset can be stored under this name.

    Raise InvalidRequest otherwise.
    """
    try:
        return valid_name(name)
    except InvalidName as error:
        raise InvalidRequest(f"name: {error}") from None


def about_suggestion(of: str, requests: int, blocked: int, when: str) -> list[str]:
    """Return comment lines for the start of a suggested ruleset.

    `when` is empty if the times of the requests are not known.
    """
    lines = [
        f"Suggested from {counted(requests, 'request')} of {of}{when and f', {when}'}.",
        "This allows only the recorded requests, but from anywhere at any time: read it before it goes live.",
    ]
    if blocked:
        lines.append(
            f"Left out: {counted(blocked, 'request')} that {'was' if blocked == 1 else 'were'} blocked."
        )
    return lines


def suggested_facts(found: Suggestion) -> tuple[SuggestedFacts, ...]:
    return tuple(
        SuggestedFacts(
            rule.id,
            rule.methods,
            tuple(path.pattern for path in rule.paths),
            sum(path.evidence.count for path in rule.paths),
        )
        for rule in found.rules
    )
