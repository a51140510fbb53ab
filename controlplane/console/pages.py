"""What a page is: what its handler is given, and what it returns.

A page is one function in one of the area modules:

    @page("GET", "/orgs")
    async def orgs(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
        found = await perform(list_all, context, actor, ListOrgs())
        return Page("orgs.html", "Organisations", {"orgs": found.orgs})

A form that is sent by POST is a function too. It has the good case alone: what a person can mend is raised,
and `form` shows the page `again`, with the reasons and with what was typed.

    @form("/orgs", again=orgs)
    async def add_org(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
        added = await perform(add, context, actor, filled(AddOrg, request.form))
        return Redirect(request.link("/orgs"), f"Organisation {added.name} was added.")

Both call operations and nothing below them. `frame.py` does the rest: it asks for a sign-in, checks a form's
token, renders the template within the layout, and shows what the handler raises. A template begins with

    {% extends "layout.html" %}
    {% import "ui.html" as ui with context %}

and fills the block `content` with the macros of ui.html. All state of a view is in its URL, every link is
made by `link()`, which keeps the chosen organisation, and every form that is sent by POST holds `ui.token()`.
A template finds the reasons in `refused` and what was typed in `form`. Both are empty if a link opened the
page. A button that the actor may not press isn't shown: `{% if may("editor", org_id) %}`. What follows a
successful form is a Redirect with a sentence, so that a reload repeats nothing. A new area module is listed
in `console/areas.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from typing import Final, Literal, TypeVar
from urllib.parse import urlencode

import msgspec
from multidict import MultiDict, MultiMapping

from controlplane.names import InvalidName
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request, validation_problem
from controlplane.store.interface import AlreadyExists, Conflict, Org

Method = Literal["GET", "POST"]
_R = TypeVar("_R", bound=Request)


@dataclass(frozen=True, slots=True)
class PageRequest:
    path: str
    place: Mapping[str, str]  # what the path names: {"app_id": ...} of /apps/{app_id}
    query: MultiMapping[str]
    form: Mapping[str, str]  # of a POST that is known to be ours
    org: Org | None  # the one that is chosen in the frame, None for all that the actor may look at
    now_ms: int
    zone: tzinfo = UTC  # time zone of the times that the page shows and its forms send

    def link(self, path: str, /, **query: object) -> str:
        """A path of ours with a query; the chosen organisation goes along unless `org` says otherwise."""
        chosen = {"org": self.org.name if self.org else None, **query}
        given = {name: str(value) for name, value in chosen.items() if value not in (None, "")}
        return f"{path}?{urlencode(given)}" if given else path

    def changed(self, /, **query: object) -> str:
        """Return the link to this view with other query parameters. None removes a parameter."""
        return self.link(self.path, **{**dict(self.query), **query})


@dataclass(frozen=True, slots=True)
class Page:
    template: str
    title: str
    values: Mapping[str, object] = field(default_factory=dict)
    crumbs: tuple[tuple[str, str], ...] = ()  # what is above it, as (text, path); the title comes last
    status: int = 200
    remarks: tuple[str, ...] = ()  # sentences about the request, above the content
    refused: tuple[str, ...] = ()  # why the form was not accepted, above it


@dataclass(frozen=True, slots=True)
class Redirect:
    to: str  # a path of ours
    flash: str = ""  # one sentence on what was done, shown once


Handler = Callable[[OperationContext, Actor, PageRequest], Awaitable[Page | Redirect]]


@dataclass(frozen=True, slots=True)
class PageRoute:
    method: Method
    path: str
    handler: Handler
    members: frozenset[str] | None = frozenset()  # names in the query, besides `org`; None takes any


def page(method: Method, path: str, *members: str, prefilled: bool = False) -> Callable[[Handler], PageRoute]:
    """Make a route of a handler. `members` are the members of its query. A page with a `prefilled` form takes
    every member as one of its fields."""
    known = None if prefilled else frozenset(members)
    return lambda handler: PageRoute(method, path, handler, known)


_ALIASES: Final = {"filter": "q"}  # the admin API's name for what the console's links call `q`


def understood(route: PageRoute, query: MultiMapping[str]) -> tuple[MultiDict[str], tuple[str, ...]]:
    """Return the members of a query that the page takes, and a sentence for each that it doesn't take: a
    member that had no effect must not look as if it had narrowed the page."""
    if route.members is None or route.method != "GET":
        return MultiDict(query), ()
    taken: MultiDict[str] = MultiDict()
    remarks: list[str] = []
    known = route.members | {"org"}
    for name in dict.fromkeys(query):
        values = query.getall(name)
        alias = _ALIASES.get(name, name)
        member = alias if alias in known and (alias == name or alias not in query) else name
        if member not in known:
            named = ", ".join(sorted(known))
            remarks.append(f"This page ignores the unknown parameter {name}. It takes {named}.")
            continue
        taken.add(member, values[0])
        if len(set(values)) > 1:
            remarks.append(f"{name} is given {len(values)} times. This page uses the first: {values[0]}")
    return taken, tuple(remarks)


# What a person can mend in the form that was sent; anything else that is raised becomes an error's page.
Refusal: Final = (InvalidRequest, InvalidName, AlreadyExists, Conflict)
_Errors = tuple[type[Exception], ...]


def form(path: str, *, again: PageRoute, also: _Errors = ()) -> Callable[[Handler], PageRoute]:
    """Make a route of a handler that performs what a form asks for. If the handler raises a Refusal, or one
    of `also`, the page `again` is shown with status 422, the reasons, and what was typed."""
    mendable: _Errors = (*Refusal, *also)

    def route(handler: Handler) -> PageRoute:
        async def performed(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
            try:
                return await handler(context, actor, request)
            except mendable as error:
                refused = reasons(error)
            shown = await again.handler(context, actor, request)
            return replace(shown, status=422, refused=refused) if isinstance(shown, Page) else shown

        return PageRoute("POST", path, performed)

    return route


def reasons(error: Exception) -> tuple[str, ...]:
    """Return one line for each thing to mend."""
    return error.problems if isinstance(error, InvalidRequest) else (str(error),)


def filled(kind: type[_R], form: Mapping[str, str], **known: object) -> _R:
    """The operation's request out of a form: its fields by the members' names, empty ones left out."""
    given: dict[str, object] = {
        member.encode_name: form[member.encode_name]
        for member in msgspec.structs.fields(kind)
        if form.get(member.encode_name)
    }
    try:
        return msgspec.convert(given | known, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(validation_problem(error, kind)) from None


NO_FORM: Final[Mapping[str, str]] = {}
