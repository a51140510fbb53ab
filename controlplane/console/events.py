"""Pages at /events/{org}/{id}: one audit event, and the reasons for its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import orjson

from controlplane.console import charts, terms
from controlplane.console.curl import curl_of
from controlplane.console.event_rows import EventRow, event_row, full_path, milliseconds, shown, text_of
from controlplane.console.pages import Page, PageRequest, page
from controlplane.console.rulesets import place_of
from controlplane.console.search import names_in
from controlplane.operations.actor import Actor
from controlplane.operations.apps import AppReference, show
from controlplane.operations.audit import SearchEvents, search
from controlplane.operations.context import OperationContext
from controlplane.operations.event_details import EventReference, RulesetOfEvent, event
from controlplane.operations.event_explanations import ExplainedEvent, ExplainEvent, explain_event
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.operations.recorded import within_time
from controlplane.search.query import rfc3339_ms
from controlplane.store.interface import Conflict, NotFound, StoreError
from proxy.policy.batch import is_batch
from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.policy.redaction import is_cut
from proxy.policy.ruleset import DEFAULT_RULE_ID
from proxy.wire.audit_event import TOKEN_REASONS, VERDICTS, rfc3339
from proxy.wire.log_line import escaped

_EXPLAINED_WITHIN_SECONDS: Final = 10.0  # longest wait for an explanation; after that, the page omits it
_AROUND_MS: Final = 120_000
_PARTS: Final = 20  # largest number of sub-requests of a batch to list
_BEFORE: Final = 5


@dataclass(frozen=True, slots=True)
class CodeLine:
    number: int
    text: str
    is_the_rule: bool


@dataclass(frozen=True, slots=True)
class Related:
    title: str
    rows: Sequence[EventRow]
    all: str  # link to the search that finds all of these events


@page("GET", "/events/{org}/{id}")
async def one_event(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = await context.resolve.org_of_events(actor, request.place["org"])
    details = await perform(event, context, actor, EventReference(org.org_id, request.place["id"]))
    body = bytes(details.event)
    values: dict[str, Any] = orjson.loads(body)
    asks_rules = text_of(values, "reason") not in TOKEN_REASONS
    explained, unexplained = (
        await _explained(context, actor, org.org_id, request.place["id"]) if asks_rules else (None, "")
    )
    verdict = text_of(values, "verdict")
    return Page(
        "event.html",
        f"{shown(text_of(values, 'method'))} {_shortened(shown(text_of(values, 'path')))}",
        {
            "event": {key: shown(text_of(values, key)) for key in values},
            "has": frozenset(key for key, value in values.items() if value not in (None, "", [])),
            "target": shown(full_path(values)),
            "verdict": verdict if verdict in VERDICTS else "",
            "details": details,
            "is_envelope": is_envelope(values),
            "transforms": _list(values, "transforms"),
            # An event without ruleIds was written by an earlier release. Its transforms name the active
            # filter.
            "names_what_was_removed": values.get("ruleIds") is not None,
            "other_rules": [
                each for each in _list(values, "ruleIds") if each != shown(text_of(values, "ruleId"))
            ],
            "logged": _list(values, "loggedRuleIds"),
            "timing": _timing(values),
            "excerpt": [] if details.ruleset is None else _excerpt(details.ruleset),
            "whole": [] if details.ruleset is None else _lines(details.ruleset),
            "explained": explained,
            "unexplained": unexplained,
            "curl": curl_of(values),
            "raw": escaped(_indented(body)),
            "asks_rules": asks_rules,
            **await _rules(context, actor, request, org.org_id, values, can_ask=asks_rules),
            "related": await _related(context, actor, request, org.org_id, values),
        },
        crumbs=(("Search", "/search"),),
    )


def is_envelope(values: Mapping[str, Any]) -> bool:
    """Return whether an audit event records an outer $batch request that no rule decided."""
    if (text_of(values, "verdict"), text_of(values, "ruleId")) != ("allow", DEFAULT_RULE_ID):
        return False
    try:
        return is_batch(text_of(values, "method"), canonicalise(full_path(values)))
    except MalformedTarget:
        return False


def _indented(body: bytes) -> str:
    try:
        return msgspec.json.format(body).decode()
    except RecursionError:  # too deeply nested to indent; show it in one line, as it is stored
        return body.decode()


def _shortened(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:89]}…"


def _list(values: Mapping[str, Any], key: str) -> list[str]:
    given = values.get(key)
    return [shown(each) for each in given if isinstance(each, str)] if isinstance(given, list) else []


def _timing(values: Mapping[str, Any]) -> dict[str, object] | None:
    """Return the time that the upstream took, and the time that the proxy and the client took."""
    whole, upstream = values.get("durationMs"), values.get("upstreamMs")
    if not isinstance(whole, int | float) or isinstance(whole, bool) or whole < 0:
        return None
    known = upstream if isinstance(upstream, int | float) and 0 <= upstream <= whole else None
    return {
        "whole": milliseconds(whole),
        "upstream": None if known is None else milliseconds(known),
        "rest": None if known is None else milliseconds(whole - known),
        "bar": None if known is None else charts.share(known, whole, "all"),
    }


# Rules


async def _rules(
    context: OperationContext,
    actor: Actor,
    request: PageRequest,
    org_id: str,
    values: Mapping[str, Any],
    *,
    can_ask: bool,
) -> dict[str, str]:
    """Return links to the application's current ruleset and to the ruleset editor.

    The link to the ruleset editor opens the editor with the request of the event filled in.
    """
    try:
        app = await perform(show, context, actor, AppReference(app=text_of(values, "appId"), org=org_id))
    except (NotFound, Conflict):
        return {"rules": "", "ruleset_name": "", "editor": ""}
    place = place_of((await context.resolve.org(actor, "viewer", org_id)).name, app.ruleset)
    target = full_path(values)
    asked = {
        "method": text_of(values, "method"),
        "target": target,
        "ip": text_of(values, "clientIp"),
        "at": text_of(values, "time"),
        "rule": text_of(values, "ruleId"),
    }
    can_ask = can_ask and asked["method"] != "" and target.startswith("/") and not is_cut(target)
    return {
        "rules": request.link(place),
        "ruleset_name": app.ruleset,
        "editor": request.link(f"{place}/edit", **asked) if can_ask else "",
    }


def _lines(ruleset: RulesetOfEvent) -> list[CodeLine]:
    first, last = ruleset.rule_lines or (0, -1)
    return [
        CodeLine(number, shown(line), first <= number <= last)
        for number, line in enumerate(ruleset.yaml.splitlines(), 1)
    ]


def _excerpt(ruleset: RulesetOfEvent) -> list[CodeLine]:
    return [line for line in _lines(ruleset) if line.is_the_rule]


async def _explained(
    context: OperationContext, actor: Actor, org_id: str, event_id: str
) -> tuple[ExplainedEvent | None, str]:
    """Return each rule that the evaluation tried, or the reason why the rules can't be evaluated again."""
    try:
        async with asyncio.timeout(_EXPLAINED_WITHIN_SECONDS):
            return await perform(explain_event, context, actor, ExplainEvent(org_id, event_id)), ""
    except TimeoutError:
        return None, "other evaluations are running; reload the page in a moment"
    except (InvalidRequest, NotFound, StoreError) as error:
        return None, str(error)


# Related events


async def _related(
    context: OperationContext, actor: Actor, request: PageRequest, org_id: str, values: Mapping[str, Any]
) -> list[Related]:
    names = await context.resolve.org_names(actor, (org_id,))
    own_id, client = text_of(values, "requestId"), text_of(values, "clientId")
    parent, at_ms = text_of(values, "parentRequestId"), rfc3339_ms(text_of(values, "time"))
    asked: list[tuple[str, str | None, int, dict[str, str]]] = []
    if parent:
        asked.append(("The outer $batch request", terms.term("request", parent), 1, {}))
        asked.append(("Other requests of this $batch", terms.term("parent", parent), _PARTS, {}))
    elif own_id:
        asked.append(("Requests of this $batch", terms.term("parent", own_id), _PARTS, {}))
    if client and at_ms is not None:
        span = {"from": rfc3339(within_time(at_ms - _AROUND_MS)), "to": rfc3339(within_time(at_ms + 1))}
        title = "The same client in the two minutes before"
        asked.append((title, terms.term("client", client), _BEFORE, span))
    found = []
    for title, filter_, limit, span in asked:
        if filter_ is None:
            continue
        wanted = SearchEvents(
            filter=filter_, org=org_id, from_=span.get("from"), to=span.get("to"), limit=limit + 1
        )
        events = [bytes(each) for each in (await perform(search, context, actor, wanted)).events]
        others = [each for each in events if orjson.loads(each).get("id") != values.get("id")][:limit]
        if others:
            names |= await names_in(context, actor, map(msgspec.Raw, others))
            rows = [event_row(each, names) for each in others]
            org_name = names.get(org_id, org_id)
            found.append(
                Related(title, rows, request.link("/search", **{"org": org_name, "q": filter_, **span}))
            )
    return found
