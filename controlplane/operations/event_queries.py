"""Common steps of all searches for audit events: everything before the query to the search index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from controlplane.operations import times
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request
from controlplane.operations.slots import Slots
from controlplane.search.interface import (
    MAX_LIMIT,
    CursorError,
    IndexUnavailableError,
    SearchIndex,
    SearchPage,
    SearchQuery,
)
from controlplane.search.query import QueryError, Resolver, parse_filter
from controlplane.store.interface import StoreError

T = TypeVar("T")
MOST_ASKED_BY_ONE: Final = 4  # questions of one actor to an index at a time; a console page sends three


class InvalidFilter(InvalidRequest):
    """Error because the filter of a search for audit events is not valid.

    `column` is the character position of the error in the filter, counted from 1.
    """

    def __init__(self, error: QueryError) -> None:
        super().__init__(f"filter: {error}")
        self.message = error.message
        self.column = error.column


class Selection(Request):
    filter: str = ""
    org: str | None = None  # id or name; default: every organisation that the actor has permission to look at
    from_: str | None = msgspec.field(default=None, name="from")  # the first time
    to: str | None = None  # the end, which is not included


async def query_of(
    context: OperationContext,
    actor: Actor,
    request: Selection,
    limit: int = MAX_LIMIT,
    cursor: str | None = None,
) -> SearchQuery:
    """Return the query for the search index, in which IDs replace the names of objects.

    Raise InvalidFilter if the filter is not valid.
    """
    orgs = await context.resolve.orgs_of_events(actor, request.org)
    sees_all = request.org is None and actor.may("viewer", None)
    now_ms = context.clock.wall_ms()
    try:
        wanted = parse_filter(request.filter, await resolver(context, actor, request.filter), now_ms=now_ms)
    except QueryError as error:
        raise InvalidFilter(error) from None
    org_ids = None if sees_all else tuple(org.org_id for org in orgs)
    return SearchQuery(org_ids, wanted, *times.span(request.from_, request.to, now_ms), limit, cursor)


async def resolver(context: OperationContext, actor: Actor, text: str) -> Resolver:
    """Return a function that converts an object's name in a filter to the IDs of the objects with this name.

    Several organisations can have objects with the same name.
    """
    named: set[tuple[str, str]] = set()

    def note(field: str, name: str) -> Sequence[str]:
        named.add((field, name))
        return ()

    with suppress(QueryError):  # the caller gets the same error from the filter
        parse_filter(text, note)
    ids = {(field, name): await _ids_of(context, actor, field, name) for field, name in named}
    return lambda field, name: ids.get((field, name), ())


async def _ids_of(context: OperationContext, actor: Actor, field: str, name: str) -> list[str]:
    """Return the IDs of all objects with exactly this name that the actor can see, even deleted objects."""
    dead = await context.resolve.deleted_named(actor, name)
    living = await _living_ids(context, actor, field, name)
    return [*living, *(each.id for each in dead if each.kind == field)]


async def _living_ids(context: OperationContext, actor: Actor, field: str, name: str) -> list[str]:
    store, sees = context.store, actor.sees
    if field == "org":
        orgs = [each for each in await store.find_orgs(name) if each.name == name]
        return [each.org_id for each in orgs if sees is None or each.org_id in sees]
    if field == "proxy":
        proxies = [each for each in await store.find_proxies(name) if each.name == name]
        return [each.proxy_id for each in proxies if sees is None or not sees.isdisjoint(each.org_ids)]
    apps = [each for each in await store.find_apps(name, None) if each.name == name]
    return [each.app_id for each in apps if sees is None or each.org_id in sees]


async def ask_index(context: OperationContext, actor: Actor, ask: Callable[[SearchIndex], Awaitable[T]]) -> T:
    """Return the response of the search index to a query.

    Each actor can run a few index queries at the same time.
    """
    index = await response_of(context.index())
    async with _searching.of(actor):
        return await response_of(ask(index))


async def page_of(actor: Actor, index: SearchIndex, query: SearchQuery) -> SearchPage:
    """Return a page of events from a search index that the caller has already opened."""
    async with _searching.of(actor):
        return await response_of(index.search(query))


# An index processes one question at a time, and some questions take seconds.
_searching: Final = Slots(MOST_ASKED_BY_ONE)


async def response_of(asked: Awaitable[T]) -> T:
    """Await the response of the search index to a query, and return the response.

    Raise InvalidRequest if the cursor is not valid, or StoreError if the search index is unavailable.
    """
    try:
        return await asked
    except CursorError as error:
        raise InvalidRequest(f"cursor: {error}") from None
    except IndexUnavailableError as error:
        raise StoreError(str(error)) from error
