"""/: what was asked and what came of it, and what needs an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.console.event_rows import shown
from controlplane.console.pages import Page, PageRequest, page
from controlplane.console.traffic import PERIODS, Traffic, period_of, traffic, unknown_period
from controlplane.operations.actor import Actor
from controlplane.operations.apps import ListApps
from controlplane.operations.apps import list_all as list_apps
from controlplane.operations.audit import CountValues, FacetList, ValueCount, facets
from controlplane.operations.context import OperationContext
from controlplane.operations.fleet import CountFleet, ListFleet
from controlplane.operations.fleet import count as count_fleet
from controlplane.operations.fleet import list_all as list_fleet
from controlplane.operations.operator_log import SearchOperatorLog
from controlplane.operations.operator_log import search as search_operator_log
from controlplane.operations.perform import perform
from controlplane.operations.rulesets import ListRulesets
from controlplane.operations.rulesets import list_all as list_rulesets

_TOP: Final = 6


@dataclass(frozen=True, slots=True)
class Ranked:
    """One line of a ranking, and the search that shows what it counts."""

    name: str
    count: int
    href: str


@dataclass(frozen=True, slots=True)
class Step:
    """One of the things without which nothing is asked."""

    done: bool
    text: str
    path: str
    command: str


@page("GET", "/", "last")
async def overview(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = request.org.org_id if request.org else None
    period = period_of(request)
    counted = await traffic(context, actor, request, period, request.org.name if request.org else None)
    blocked = await _blocked(context, actor, org, counted.since)
    fleet = await perform(count_fleet, context, actor, CountFleet(org=org))
    asked = ListFleet(org=org, needs_look=True, sort="health", limit=_TOP)
    unwell = await perform(list_fleet, context, actor, asked)
    done = await perform(search_operator_log, context, actor, SearchOperatorLog(org=org, limit=100))
    values = {
        "periods": PERIODS,
        "period": period,
        "traffic": counted,
        "blocked": {facet.field: _ranked(counted, facet.field, facet.values) for facet in blocked.facets},
        "blocked_counted": None if blocked.complete else blocked.counted,
        "proxies": fleet.total,
        "unwell": unwell.proxies,
        "further": (unwell.total or 0) - len(unwell.proxies),
        "steps": [] if counted.total else await _steps(context, actor, org, any_proxy=bool(fleet.total)),
        "done": [line for line in done.lines if not line.operation.startswith("session.")][:_TOP],
    }
    return Page("overview.html", "Overview", values, remarks=unknown_period(request))


async def _steps(context: OperationContext, actor: Actor, org: str | None, *, any_proxy: bool) -> list[Step]:
    """From nothing to the first request; none where only the request itself is missing."""
    rulesets = (await perform(list_rulesets, context, actor, ListRulesets(org=org, limit=1))).rulesets
    apps = (await perform(list_apps, context, actor, ListApps(org=org, limit=1))).apps
    steps = [
        Step(bool(await context.resolve.orgs(actor)), "Add an organisation", "/orgs", "org add contoso"),
        Step(bool(rulesets), "Write a ruleset", "/rulesets/new", "ruleset apply rules.yaml --org contoso"),
        Step(bool(apps), "Add an app", "/apps", "app add payroll --org contoso --ruleset hr-sync"),
        Step(any_proxy, "Add a proxy, and start it", "/proxies", "proxy add edge-1 --org contoso"),
    ]
    return [] if all(step.done for step in steps) else steps


async def _blocked(context: OperationContext, actor: Actor, org: str | None, since: str) -> FacetList:
    """Apps and rules with the most blocked requests."""
    asked = CountValues(filter="verdict:block", org=org, from_=since, fields=("app", "ruleid"), top=_TOP)
    return await perform(facets, context, actor, asked)


def _ranked(counted: Traffic, field: str, values: Sequence[ValueCount]) -> list[Ranked]:
    return [
        Ranked(
            shown(each.name or each.value),
            each.count,
            counted.search(f'verdict:block {field}:"{each.value}"'),
        )
        for each in values
    ]
