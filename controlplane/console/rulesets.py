"""Pages at /rulesets: each ruleset with its text and history, comparison of versions, and rollback."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from controlplane.console import replaying, ruleset_text
from controlplane.console.lists import LIST_MEMBERS, Column, list_members, list_view
from controlplane.console.pages import Page, PageRequest, Redirect, form, page
from controlplane.console.ruleset_text import Line, RulePlace
from controlplane.errors import Refused
from controlplane.operations import apps, dry_runs, fleet, proposals, rulesets
from controlplane.operations.actor import Actor
from controlplane.operations.apps import AppFacts, ListApps
from controlplane.operations.context import OperationContext
from controlplane.operations.dry_runs import RulesetDifference
from controlplane.operations.fleet import EnforcedFacts, ListFleet, ProxyHealth, RolloutRequest
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.operations.proposals import ListProposals
from controlplane.operations.rulesets import (
    ListRulesets,
    RollBack,
    RulesetReference,
    RulesetUsage,
    ShowRuleset,
)
from controlplane.operations.worker_process import run_for_page
from controlplane.search.query import rfc3339_ms
from controlplane.store.interface import NotFound
from controlplane.usage import DAY_MS
from controlplane.workshop.ruleset_diff import diff_rulesets
from proxy.policy.ruleset import DEFAULT_RULE_ID
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset

_MOST_OUTLINED: Final = 500  # rules listed in the outline; the text has all of them
PROPOSED: Final = "Not active yet: another editor must approve this."
ENFORCED_LATER: Final = "Each proxy enforces it from its next sync."
CRUMB: Final = ("Rulesets", "/rulesets")
_SORT: Final = "org"
_MOST_SHOWN: Final = 8  # applications and proxies listed; a link leads to the others
_COLUMNS: Final = (
    Column("Ruleset", "name"),
    Column("Organisation", "org"),
    Column("Active", "version"),
    Column("Rules", "rules", kind="number"),
    Column("Apps", kind="number"),
    Column("Last change", "changedAt"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between two texts of a ruleset.

    `by_rules` is a comparison of the rules, or None if one of the texts is not a valid ruleset. `by_lines` is
    a comparison of the lines, or None if the comparison takes too long.
    """

    by_rules: RulesetDifference | None
    by_lines: tuple[tuple[ruleset_text.DiffLine, ...], ...] | None


def place_of(org: str, name: str) -> str:
    return f"/rulesets/{quote(org, safe='')}/{quote(name, safe='')}"


async def difference(actor: Actor, old: str, new: str) -> Difference | None:
    """Return the difference of two texts, or None if the comparison takes too long on a busy processor."""
    return await run_for_page(actor, _difference, old, new)


def _difference(old: str, new: str) -> Difference:
    try:
        found = diff_rulesets(parse_ruleset(old), parse_ruleset(new))
        by_rules = dry_runs.difference(found)
    except InvalidRuleset:
        by_rules = None
    return Difference(by_rules, ruleset_text.text_diff(old, new))


async def bound_to(context: OperationContext, actor: Actor, org: str, name: str) -> tuple[AppFacts, ...]:
    """Return the applications that use a ruleset, or no applications if the ruleset does not exist yet."""
    try:
        found = await perform(apps.list_all, context, actor, ListApps(org=org, ruleset=name))
    except NotFound:
        return ()
    return found.apps


@dataclass(frozen=True, slots=True)
class FirstApps:
    """The first applications of a long list, by name, and the number of omitted applications."""

    apps: tuple[AppFacts, ...]
    further: int


async def _first_apps(
    context: OperationContext,
    actor: Actor,
    org: str,
    *,
    ruleset: str | None = None,
    shadow: str | None = None,
) -> FirstApps:
    asked = ListApps(org=org, ruleset=ruleset, shadow=shadow, limit=_MOST_SHOWN)
    found = await perform(apps.list_all, context, actor, asked)
    return FirstApps(found.apps, (found.total or 0) - len(found.apps))


@dataclass(frozen=True, slots=True)
class FirstProxies:
    """The first proxies of an organisation, sorted by health, each with the proxy's version of a ruleset."""

    proxies: tuple[tuple[ProxyHealth, EnforcedFacts | None], ...]
    further: int


async def _first_proxies(context: OperationContext, actor: Actor, org: str, ruleset_id: str) -> FirstProxies:
    asked = ListFleet(org=org, sort="health", limit=_MOST_SHOWN)
    found = await perform(fleet.list_all, context, actor, asked)
    enforced = (
        next((each for each in proxy.rulesets if each.ruleset_id == ruleset_id), None)
        for proxy in found.proxies
    )
    return FirstProxies(
        tuple(zip(found.proxies, enforced, strict=True)), (found.total or 0) - len(found.proxies)
    )


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Number of enabled proxies of an organisation that enforce the active version of a ruleset."""

    proxies: int
    of: int


async def _confirmed(context: OperationContext, actor: Actor, ruleset_id: str) -> Confirmed:
    found = await perform(fleet.rollout, context, actor, RolloutRequest(ruleset_id))
    states = [each.state for each in found.proxies if each.state != "disabled"]
    return Confirmed(states.count("enforced"), len(states))


@dataclass(frozen=True, slots=True)
class RuleUse:
    """A rule in the text of a ruleset, and the number of hits of the rule."""

    rule: RulePlace | None  # None stands for the default, which decides if no rule does
    hits: int
    last_hit: str | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Number of hits of each rule of a ruleset version in the most recent days."""

    days: int
    counted_since: str
    is_whole: bool  # True if all of these days were counted
    rules: tuple[RuleUse, ...]
    hits: int  # total of all rules, including rules of other versions

    @property
    def unused(self) -> int:
        return sum(each.rule is not None and not each.hits for each in self.rules)


def _usage(found: RulesetUsage, places: Sequence[RulePlace], now_ms: int) -> Usage:
    counted = {each.rule: each for each in found.rules}

    def use(rule: RulePlace | None) -> RuleUse:
        of_rule = counted.get(DEFAULT_RULE_ID if rule is None else rule.id)
        return RuleUse(rule, 0, None) if of_rule is None else RuleUse(rule, of_rule.hits, of_rule.last_hit)

    return Usage(
        found.days,
        found.counted_since,
        (rfc3339_ms(found.counted_since) or 0) <= now_ms - found.days * DAY_MS,
        (*map(use, places), use(None)),
        sum(each.hits for each in found.rules),
    )


@page("GET", "/rulesets", *LIST_MEMBERS)
async def overview(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = request.org.org_id if request.org else None
    asked = ListRulesets(org=org, **list_members(request, _SORT))
    found = await perform(rulesets.list_all, context, actor, asked)
    values = {
        "found": found.rulesets,
        "list": list_view(request, _COLUMNS, found, len(found.rulesets), default_sort=_SORT),
        "place_of": place_of,
    }
    return Page("rulesets.html", "Rulesets", values)


@page("GET", "/rulesets/{org}/{name}", "version")
async def one(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org, name = request.place["org"], request.place["name"]
    shown = await perform(
        rulesets.show,
        context,
        actor,
        ShowRuleset(ruleset=name, org=org, version=_version(request.query, "version")),
    )
    history = await perform(rulesets.history, context, actor, RulesetReference(ruleset=name, org=org))
    used = await perform(rulesets.usage, context, actor, RulesetReference(ruleset=name, org=org))
    places, lines = await run_for_page(actor, _listed, shown.yaml) or (None, None)
    listed = ListProposals(org=org, ruleset=shown.name, decided=True)
    proposed = (await perform(proposals.list_all, context, actor, listed)).proposals
    values = {
        "proposals": [each for each in proposed if each.state == "open"],
        "approved": {each.version: each for each in proposed if each.version is not None},
        "shown": shown,
        "in_force": history.versions[0].version,
        "versions": history.versions,
        "lines": lines,
        "text": "" if lines else await asyncio.to_thread(ruleset_text.as_it_is, shown.yaml),
        "usage": None if places is None else _usage(used, places[:_MOST_OUTLINED], request.now_ms),
        "further_rules": max(0, len(places or ()) - _MOST_OUTLINED),
        "bound": await _first_apps(context, actor, org, ruleset=shown.ruleset_id),
        "shadowed": await _first_apps(context, actor, org, shadow=shown.ruleset_id),
        "served": await _first_proxies(context, actor, org, shown.ruleset_id),
        "confirmed": await _confirmed(context, actor, shown.ruleset_id),
        "path": place_of(org, name),
    }
    return Page("ruleset.html", shown.name, values, crumbs=(CRUMB,))


def _listed(text: str) -> tuple[tuple[RulePlace, ...], tuple[Line, ...] | None]:
    places = ruleset_text.rule_places(text)
    return places, ruleset_text.listing(text, places)


@page("GET", "/rulesets/{org}/{name}/compare", "old", "new")
async def compare(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org, name = request.place["org"], request.place["name"]
    history = await perform(rulesets.history, context, actor, RulesetReference(ruleset=name, org=org))
    newest = history.versions[0].version
    new = _version(request.query, "new") or newest
    old = _version(request.query, "old") or max(1, new - 1)
    return await _compared(context, actor, request, old, new, "compare.html", "Compare versions")


@page("GET", "/rulesets/{org}/{name}/rollback", "to")
async def consider(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """Show what a rollback would change, before an operator confirms it."""
    org, name = request.place["org"], request.place["name"]
    wanted = _version(request.form or request.query, "to")
    history = await perform(rulesets.history, context, actor, RulesetReference(ruleset=name, org=org))
    newest = history.versions[0].version
    if newest == 1:
        raise NotFound(f"ruleset {name} has only one version, so it cannot be rolled back")
    to = wanted or newest - 1
    title = f"Roll back to version {to}"
    shown = await _compared(context, actor, request, newest, to, "rollback.html", title)
    text = await perform(rulesets.show, context, actor, ShowRuleset(ruleset=name, org=org, version=to))
    evaluated = await bound_to(context, actor, org, name)
    progress = await replaying.of_last_day(context, actor, org, text.yaml, evaluated)
    owner = await context.resolve.org(actor, "viewer", text.org_id)
    values = {
        **shown.values,
        "note": request.form.get("note", ""),
        "effect": replaying.effect(progress),
        "org_name": owner.name,
    }
    return replace(shown, values=values)


@form("/rulesets/{org}/{name}/rollback", again=consider)
async def go_back(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    org, name = request.place["org"], request.place["name"]
    to = _version(request.form, "to") or 0
    seen = _version(request.form, "expected")  # active version that the page was compared with
    if not request.form.get("note", "").strip():
        raise InvalidRequest("Enter a reason for the rollback, for the history of the ruleset.")
    asked = RollBack(ruleset=name, org=org, to=to, note=request.form.get("note") or None, expected=seen or 0)
    new = await perform(rulesets.rollback, context, actor, asked)
    if new.proposal is not None:
        return Redirect(request.link(f"/proposals/{new.proposal}"), PROPOSED)
    said = (
        f"Version {new.version} of {new.name} is published, with the text of version {to}. {ENFORCED_LATER}"
    )
    return Redirect(request.link(place_of(org, name)), said)


async def _compared(
    context: OperationContext,
    actor: Actor,
    request: PageRequest,
    old: int,
    new: int,
    template: str,
    title: str,
) -> Page:
    org, name = request.place["org"], request.place["name"]
    first, second = [
        await perform(rulesets.show, context, actor, ShowRuleset(ruleset=name, org=org, version=version))
        for version in (old, new)
    ]
    history = await perform(rulesets.history, context, actor, RulesetReference(ruleset=name, org=org))
    values = {
        "old": first,
        "new": second,
        "version_choice": [(each.version, f"version {each.version}") for each in history.versions],
        "found": await difference(actor, first.yaml, second.yaml),
        "rule_lines": {},
        "form": request.query,
        "apps": await bound_to(context, actor, org, second.name),
        "path": place_of(org, name),
    }
    return Page(template, title, values, crumbs=(CRUMB, (second.name, place_of(org, name))))


def _version(fields: Mapping[str, str], name: str) -> int | None:
    """Return the ruleset version that a link or a form names, or None if no version is named.

    Raise Refused if the text is not a version number. The error page shows no form, because operators select
    a ruleset version in a list and never type a version number.
    """
    given = fields.get(name, "")
    if given and not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise Refused("invalidRequest", f"{given} is not a version number")
    return int(given) if given else None
