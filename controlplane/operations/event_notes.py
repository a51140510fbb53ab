"""Notes on a search for audit events: possible mistakes in the filter, and the range that was searched."""

from __future__ import annotations

from dataclasses import replace

from controlplane.operations.absences import BY_ID, exclusions, notes_on
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_queries import ask_index
from controlplane.operations.held import Held, held, named_in
from controlplane.search.interface import SearchQuery
from controlplane.search.query import FieldTerm

Notes = tuple[tuple[str, ...], tuple[str, ...]]
"""Notes on possible mistakes in a question, and notes on what was searched."""


async def why_nothing(
    context: OperationContext, actor: Actor, org: str | None, query: SearchQuery
) -> tuple[str, ...]:
    """Return notes on a search without results: possible mistakes in the search, and the searched range."""
    wrong, looked_at = await notes_on_nothing(context, actor, org, query)
    return (*wrong, *looked_at)


async def notes_on_nothing(
    context: OperationContext, actor: Actor, org: str | None, query: SearchQuery
) -> Notes:
    """Return notes on a search for audit events that found nothing."""
    wrong = await doubts(context, actor, org, query)
    looked_at = await held_within(context, actor, org, query, count_missing=True)
    return (*notes_on_index(context), *wrong), tuple(looked_at.notes_on_nothing(query.from_ms))


async def notes_on_found(
    context: OperationContext, actor: Actor, org: str | None, query: SearchQuery
) -> Notes:
    """Return notes on a search result: excluded names that don't exist, times before the oldest event."""
    wrong = notes_on_index(context)
    excluding = exclusions(query.filter)
    if excluding.terms:
        asked = replace(query, filter=excluding, from_ms=None, to_ms=None)
        wrong = (*wrong, *await doubts(context, actor, org, asked))
    if query.from_ms is None or query.cursor is not None:
        return wrong, ()
    looked_at = await held_within(context, actor, org, query, count_missing=False)
    return wrong, tuple(looked_at.notes_on_found(query.from_ms))


def notes_on_index(context: OperationContext) -> tuple[str, ...]:
    """Return a note if the search index lacks events that the store has."""
    if not context.is_behind():
        return ()
    return (context.index_note(),)


async def doubts(
    context: OperationContext, actor: Actor, org: str | None, query: SearchQuery
) -> tuple[str, ...]:
    """Return notes on those names and values in a filter that no audit event can have."""
    terms = [term for term in query.filter.terms if isinstance(term, FieldTerm)]
    asks_names = any(term.field.name in BY_ID for term in terms)
    return await notes_on(context, actor, query, org, await _names(context, actor) if asks_names else {})


async def held_within(
    context: OperationContext, actor: Actor, org: str | None, query: SearchQuery, *, count_missing: bool
) -> Held:
    """Return the range of stored events that a search can cover."""
    every = await context.resolve.orgs_of_events(actor, org)
    orgs = named_in(every, query.filter)
    org_ids = query.org_ids if len(orgs) == len(every) else tuple(each.org_id for each in orgs)
    span = await ask_index(context, actor, lambda index: index.span(org_ids))
    return await held(context, orgs, span, count_missing=count_missing)


async def _names(context: OperationContext, actor: Actor) -> dict[tuple[str, str], str]:
    """Return the names of organisations, proxies and applications, including deleted ones.

    Each name is stored under a pair: the audit event's filter field, such as `app`, and the object's ID.
    """
    names = {("org", org.org_id): org.name for org in await context.resolve.orgs(actor)}
    names |= {("proxy", proxy.proxy_id): proxy.name for proxy in await context.resolve.proxies(actor, None)}
    names |= {("app", app.app_id): app.name for app in await context.resolve.apps(actor, None)}
    dead = await context.resolve.all_deleted(actor, BY_ID)
    return names | {(each.kind, each.id): each.name for each in dead}
