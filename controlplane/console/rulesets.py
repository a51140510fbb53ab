"""/rulesets: what is active, each ruleset with its text and history, two versions compared, a way back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from controlplane.console import ruleset_text
from controlplane.console.lists import LIST_MEMBERS, Column, list_members, list_view
from controlplane.console.pages import Page, PageRequest, Redirect, form, page
from controlplane.console.ruleset_text import Line, RulePlace
from controlplane.errors import Refused
from controlplane.operations import apps, dry_runs, fleet, rulesets
from controlplane.operations.actor import Actor
from controlplane.operations.apps import AppFacts, ListApps
from controlplane.operations.context import OperationContext
from controlplane.operations.dry_runs import RulesetDifference
from controlplane.operations.fleet import RolloutRequest
from controlplane.operations.perform import perform
from controlplane.operations.rulesets import (
    ListRulesets,
    RollBack,
    RulesetReference,
    ShowRuleset,
)
from controlplane.operations.worker_process import run_for_page
from controlplane.store.interface import NotFound
from controlplane.workshop.ruleset_diff import diff_rulesets
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset

_MOST_OUTLINED: Final = 500  # rules; the text has them all
CRUMB: Final = ("Rulesets", "/rulesets")
_SORT: Final = "org"
_COLUMNS: Final = (
    Column("Ruleset", "name"),
    Column("Organisation", "org"),
    Column("In force", "version"),
    Column("Rules", "rules"),
    Column("Apps"),
    Column("Last change", "changedAt"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Between two texts: by rules where both are rulesets, by lines where that takes not too long."""

    by_rules: RulesetDifference | None
    by_lines: tuple[tuple[ruleset_text.DiffLine, ...], ...] | None


def place_of(org: str, name: str) -> str:
    return f"/rulesets/{quote(org, safe='')}/{quote(name, safe='')}"


async def difference(actor: Actor, old: str, new: str) -> Difference | None:
    """None where it can't be known soon, since much else is looked at."""
    return await run_for_page(actor, _difference, old, new)


def _difference(old: str, new: str) -> Difference:
    try:
        found = diff_rulesets(parse_ruleset(old), parse_ruleset(new))
        by_rules = dry_runs.difference(found)
    except InvalidRuleset:
        by_rules = None
    return Difference(by_rules, ruleset_text.text_diff(old, new))


async def bound_to(context: OperationContext, actor: Actor, org: str, name: str) -> tuple[AppFacts, ...]:
    found = await perform(apps.list_all, context, actor, ListApps(org=org))
    return tuple(app for app in found.apps if app.ruleset == name)


async def in_shadow(context: OperationContext, actor: Actor, org: str, name: str) -> tuple[AppFacts, ...]:
    """The applications beside whose own ruleset it is tried."""
    found = await perform(apps.list_all, context, actor, ListApps(org=org))
    return tuple(app for app in found.apps if app.shadow_ruleset == name)


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
    places, lines = await run_for_page(actor, _listed, shown.yaml) or (None, None)
    values = {
        "shown": shown,
        "in_force": history.versions[0].version,
        "versions": history.versions,
        "lines": lines,
        "text": "" if lines else await asyncio.to_thread(ruleset_text.as_it_is, shown.yaml),
        "rules": None if places is None else places[:_MOST_OUTLINED],
        "further_rules": max(0, len(places or ()) - _MOST_OUTLINED),
        "apps": await bound_to(context, actor, org, shown.name),
        "shadowed": await in_shadow(context, actor, org, shown.name),
        "rollout": await perform(fleet.rollout, context, actor, RolloutRequest(ruleset=name, org=org)),
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
    """Show what a rollback would change, before anybody does it."""
    org, name = request.place["org"], request.place["name"]
    wanted = _version(request.form or request.query, "to")
    history = await perform(rulesets.history, context, actor, RulesetReference(ruleset=name, org=org))
    newest = history.versions[0].version
    if newest == 1:
        raise NotFound(f"ruleset {name} has one version: there is none to go back to")
    to = wanted or newest - 1
    shown = await _compared(context, actor, request, newest, to, "rollback.html", f"Back to version {to}")
    return replace(shown, values={**shown.values, "note": request.form.get("note", "")})


@form("/rulesets/{org}/{name}/rollback", again=consider)
async def go_back(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    org, name = request.place["org"], request.place["name"]
    to = _version(request.form, "to") or 0
    seen = _version(request.form, "expected")  # what the page compared with
    asked = RollBack(ruleset=name, org=org, to=to, note=request.form.get("note") or None, expected=seen or 0)
    new = await perform(rulesets.rollback, context, actor, asked)
    said = f"Version {new.version} of {new.name} is in force, with the text of version {to}."
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
    """Return the version that a link or a form names, None for none.

    Raises Refused for what is no number: nobody types one, so that no form is shown again for it.
    """
    given = fields.get(name, "")
    if given and not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise Refused("invalidRequest", f"{given} is no version")
    return int(given) if given else None
