"""The page at /: the traffic with its verdicts, and the conditions that need an operator."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.console import text
from controlplane.console.event_rows import shown
from controlplane.console.outcomes import outcomes_in_time
from controlplane.console.pages import Page, PageRequest, page
from controlplane.console.traffic import PERIODS, Window, period_of, traffic, unknown_period, window
from controlplane.operations.actor import Actor
from controlplane.operations.apps import ListApps, stopped_among
from controlplane.operations.apps import list_all as list_apps
from controlplane.operations.audit import WhatIsHeld, what_is_held
from controlplane.operations.context import OperationContext
from controlplane.operations.credentials import ListEnding, list_ending
from controlplane.operations.event_counts import CountValues, ValueCount, facets
from controlplane.operations.fleet import CountFleet, FleetCounts, ListFleet
from controlplane.operations.fleet import count as count_fleet
from controlplane.operations.fleet import list_all as list_fleet
from controlplane.operations.operator_log import SearchOperatorLog
from controlplane.operations.operator_log import search as search_operator_log
from controlplane.operations.perform import perform
from controlplane.operations.rulesets import ListRulesets
from controlplane.operations.rulesets import list_all as list_rulesets

_TOP: Final = 6
_LINES_READ: Final = 100  # more lines than the page shows, because lines of sign-ins are left out


@dataclass(frozen=True, slots=True)
class Ranked:
    """One line of a ranking, with the search that finds the events counted in this line."""

    name: str
    count: int
    href: str
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class Blocked:
    """Rankings of the blocked requests by application and by rule.

    `counted` is the number of newest blocked requests that the rankings cover. If the rankings cover all
    blocked requests, `counted` is None.
    """

    rankings: Mapping[str, Sequence[Ranked]]
    counted: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """Setup step that an operator must complete before the first request can arrive."""

    done: bool
    text: str
    path: str
    command: str


@page("GET", "/", "last")
async def overview(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = request.org.org_id if request.org else None
    period = period_of(request)
    shown_window = window(request, period, request.org.name if request.org else None)
    unwell_ones = ListFleet(org=org, needs_look=True, sort="health", limit=_TOP)
    newest_lines = SearchOperatorLog(org=org, limit=_LINES_READ)
    counted, known, blocked, fleet, unwell, done = await asyncio.gather(
        traffic(context, actor, shown_window),
        outcomes_in_time(context, actor, shown_window),
        _blocked(context, actor, shown_window),
        perform(count_fleet, context, actor, CountFleet(org=org)),
        perform(list_fleet, context, actor, unwell_ones),
        perform(search_operator_log, context, actor, newest_lines),
    )
    ending = (await perform(list_ending, context, actor, ListEnding(org=org))).credentials
    values = {
        "periods": PERIODS,
        "period": period,
        "traffic": counted,
        "outcomes": known if counted.total else (),
        "held_notes": [] if counted.total else await _held_notes(context, actor, request, org),
        "blocked": blocked.rankings,
        "blocked_counted": blocked.counted,
        "proxies": fleet.total,
        "unwell": unwell.proxies,
        "further": (unwell.total or 0) - len(unwell.proxies),
        "ending": ending[:_TOP],
        "more_ending": len(ending) - _TOP,
        "steps": [] if counted.total else await _steps(context, actor, request),
        "done": [line for line in done.lines if not line.operation.startswith("session.")][:_TOP],
    }
    return Page("overview.html", "Overview", values, remarks=unknown_period(request))


async def _held_notes(
    context: OperationContext, actor: Actor, request: PageRequest, org: str | None
) -> list[str]:
    """Return the notes on the stored events of the shown organisations.

    The notes show whether a period had no events or was purged.
    """
    held = await perform(what_is_held, context, actor, WhatIsHeld(org=org))
    return [text.times_in(note, request.zone) for note in held.notes]


async def _steps(context: OperationContext, actor: Actor, request: PageRequest) -> list[Step]:
    """Return the setup steps before the first request. Return an empty list if all setup steps are done."""
    org = request.org.org_id if request.org else None
    rulesets = (await perform(list_rulesets, context, actor, ListRulesets(org=org, limit=1))).rulesets
    apps = (await perform(list_apps, context, actor, ListApps(org=org, limit=1))).apps
    proxies = await perform(count_fleet, context, actor, CountFleet(org=org))
    orgs = await context.resolve.orgs(actor)
    name = shlex.quote(request.org.name if request.org else orgs[0].name if orgs else "contoso")
    ruleset = shlex.quote(rulesets[0].name if rulesets else "hr-sync")
    steps = [
        Step(bool(orgs), "Add an organisation", "/orgs", "org add contoso"),
        Step(bool(rulesets), "Write a ruleset", "/rulesets/new", f"ruleset apply rules.yaml --org {name}"),
        Step(bool(apps), "Add an app", "/apps", f"app add payroll --org {name} --ruleset {ruleset}"),
        Step(bool(proxies.total), "Add a proxy", "/proxies", f"proxy add edge-1 --org {name}"),
        Step(_any_seen(proxies), "Start the proxy", "/proxies", "proxy list"),
    ]
    return [] if all(step.done for step in steps) else steps


def _any_seen(proxies: FleetCounts) -> bool:
    return proxies.total > proxies.no_heartbeat + proxies.disabled


async def _blocked(context: OperationContext, actor: Actor, counted: Window) -> Blocked:
    """Rank the applications and the rules with the most blocked requests."""
    org = counted.request.org.org_id if counted.request.org else None
    fields = ("app", "ruleid")
    asked = CountValues(filter="verdict:block", org=org, from_=counted.since, fields=fields, top=_TOP)
    found = await perform(facets, context, actor, asked)
    by_field = {facet.field: facet.values for facet in found.facets}
    stopped = await stopped_among(context, actor, [each.value for each in by_field["app"]])
    rankings = {field: _ranked(counted, field, by_field[field], stopped) for field in fields}
    return Blocked(rankings, None if found.complete else found.counted)


def _ranked(
    counted: Window, field: str, values: Sequence[ValueCount], stopped: Collection[str]
) -> list[Ranked]:
    return [
        Ranked(
            shown(each.name or each.value),
            each.count,
            counted.search(f'verdict:block {field}:"{each.value}"'),
            field == "app" and each.value in stopped,
        )
        for each in values
    ]
