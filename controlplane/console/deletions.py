"""Pages at /delete that show what a deletion removes and what stays, before an operator confirms it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controlplane.console.pages import Page, PageRequest, Redirect, filled, form, page
from controlplane.operations.actor import Actor
from controlplane.operations.apps import AppReference
from controlplane.operations.context import OperationContext
from controlplane.operations.deletions import (
    Deleted,
    DeleteRuleset,
    EffectOfDeletion,
    delete_app,
    delete_operator,
    delete_org,
    delete_proxy,
    delete_ruleset,
    effect,
)
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.operators import OperatorReference
from controlplane.operations.orgs import OrgReference
from controlplane.operations.perform import perform
from controlplane.operations.proxies import ProxyReference

# The noun of each kind, and the title and path of its list.
_KINDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "app": ("app", "Apps", "/apps"),
    "ruleset": ("ruleset", "Rulesets", "/rulesets"),
    "proxy": ("proxy", "Proxies", "/proxies"),
    "org": ("organisation", "Organisations", "/orgs"),
    "operator": ("operator", "Operators", "/operators"),
}
_MEMBERS: Final = ("kind", "thing")


@page("GET", "/delete", *_MEMBERS)
async def ask(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    given = {name: request.form.get(name) or request.query.get(name, "") for name in _MEMBERS}
    if given["kind"] not in _KINDS:
        raise _unknown_kind()
    found = await perform(effect, context, actor, filled(EffectOfDeletion, given))
    noun, title, path = _KINDS[found.kind]
    values = {"effect": found, "noun": noun, "back": path}
    return Page("delete.html", f"Delete {noun} {found.name}?", values, ((title, path),))


@form("/delete", again=ask)
async def delete(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    gone = await _delete(context, actor, request)
    noun, _, path = _KINDS[gone.kind]
    link = request.link(path, **({"org": None} if gone.kind == "org" else {}))
    return Redirect(link, f"The {noun} {gone.name} is deleted.")


async def _delete(context: OperationContext, actor: Actor, request: PageRequest) -> Deleted:
    thing = request.form.get("thing", "")
    match request.form.get("kind"):
        case "app":
            return await perform(delete_app, context, actor, AppReference(thing))
        case "ruleset":
            asked = filled(DeleteRuleset, request.form, ruleset=thing)
            return await perform(delete_ruleset, context, actor, asked)
        case "proxy":
            return await perform(delete_proxy, context, actor, ProxyReference(thing))
        case "org":
            return await perform(delete_org, context, actor, OrgReference(thing))
        case "operator":
            return await perform(delete_operator, context, actor, OperatorReference(thing))
        case _:
            raise _unknown_kind()


def _unknown_kind() -> InvalidRequest:
    return InvalidRequest(f"kind: must be one of {', '.join(_KINDS)}")
