"""Pages and forms of the console, with the values that their handlers receive and return.

A page is one function in the module of its area, such as:

    @page("GET", "/orgs")
    async def orgs(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
        found = await perform(list_all, context, actor, ListOrgs())
        return Page("orgs.html", "Organisations", {"orgs": found.orgs})

A form that the browser sends by POST also has one function. The function of a form contains only the
successful case, and raises an error for each mistake that the operator can correct. After an error of a form,
the decorator `form` shows the page in its argument `again`, with the reasons for the error and with the
values that the operator typed.

    @form("/orgs", again=orgs)
    async def add_org(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
        added = await perform(add, context, actor, filled(AddOrg, request.form))
        return Redirect(request.link("/orgs"), f"Organisation {added.name} was added.")

The functions of pages and forms call only operations, never the layers below. `frame.py` requires a sign-in,
checks a form's token, renders the template within the layout, and shows errors. A template begins with

    {% extends "layout.html" %}
    {% import "ui.html" as ui with context %}

and fills the block `content` with the macros of ui.html. The URL of a page contains all state of its view.
Every link is made by `link()`, which keeps the organisation that the operator chose. Every form that is sent
by POST contains `ui.token()`. In a template, `refused` contains the reasons for an error, and `form` contains
the values that the operator typed. `refused` and `form` are empty if the operator opened the page by a link
instead of a form. With `{% if may("editor", org_id) %}`, a template shows a button only if the actor may use
the button. After success, the function of a form returns a Redirect with a sentence that the next page
shows once. A reload of the next page does not repeat the action of the form. `console/areas.py` lists all
modules that have pages.
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
    place: Mapping[str, str]  # values of the path's parameters: {"app_id": ...} for /apps/{app_id}
    query: MultiMapping[str]
    form: Mapping[str, str]  # fields of a POST whose token was checked
    org: Org | None  # organisation chosen in the frame, or None for all
    now_ms: int
    zone: tzinfo = UTC  # time zone of the times that the page shows and its forms send

    def link(self, path: str, /, **query: object) -> str:
        """Return a link to a path of the console with query parameters.

        The link keeps the organisation that the operator chose, unless `org` is given.
        """
        chosen = {"org": self.org.name if self.org else None, **query}
        given = {name: str(value) for name, value in chosen.items() if value not in (None, "")}
        return f"{path}?{urlencode(given)}" if given else path

    def changed(self, /, **query: object) -> str:
        """Return the link to this page with other values for some query parameters.

        If the new value of a query parameter is None, the link does not contain the query parameter.
        """
        return self.link(self.path, **{**dict(self.query), **query})


@dataclass(frozen=True, slots=True)
class Page:
    template: str
    title: str
    values: Mapping[str, object] = field(default_factory=dict)
    crumbs: tuple[tuple[str, str], ...] = ()  # pages above this one, as (text, path)
    status: int = 200
    remarks: tuple[str, ...] = ()  # sentences about the request, shown above the content
    refused: tuple[str, ...] = ()  # reasons why the form was not accepted, shown above it


@dataclass(frozen=True, slots=True)
class Redirect:
    to: str  # path within the console
    flash: str = ""  # sentence on the completed action, shown once


Handler = Callable[[OperationContext, Actor, PageRequest], Awaitable[Page | Redirect]]


@dataclass(frozen=True, slots=True)
class PageRoute:
    method: Method
    path: str
    handler: Handler
    members: frozenset[str] | None = frozenset()  # allowed query parameters besides `org`; None allows any


def page(method: Method, path: str, *members: str, prefilled: bool = False) -> Callable[[Handler], PageRoute]:
    """Return a decorator that makes the route of a page from a handler.

    `members` are the query parameters that the page accepts.

    A page with a `prefilled` form accepts every query parameter as a value for one of its fields.
    """
    known = None if prefilled else frozenset(members)
    return lambda handler: PageRoute(method, path, handler, known)


_ALIASES: Final = {"filter": "q"}  # a parameter of the admin API, and its name in the console


def understood(route: PageRoute, query: MultiMapping[str]) -> tuple[MultiDict[str], tuple[str, ...]]:
    """Return the query parameters that the page uses, and a sentence for each unused parameter.

    The sentences name the parameters and values that the page ignores. Otherwise, the page would seem to be
    filtered by the ignored parameters.
    """
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


# Mistakes that an operator can correct in the form. Any other error is shown on a page of its own.
Refusal: Final = (InvalidRequest, InvalidName, AlreadyExists, Conflict)
_Errors = tuple[type[Exception], ...]


def form(path: str, *, again: PageRoute, also: _Errors = ()) -> Callable[[Handler], PageRoute]:
    """Return a decorator that makes the route of a form from the handler of the form.

    The handler is expected to raise a Refusal, or one of the exceptions in the argument `also`. After such an
    exception, the page in the argument `again` is shown with status 422, the reasons, and the typed values.
    """
    expected: _Errors = (*Refusal, *also)

    def route(handler: Handler) -> PageRoute:
        async def performed(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
            try:
                return await handler(context, actor, request)
            except expected as error:
                refused = reasons(error)
            shown = await again.handler(context, actor, request)
            return replace(shown, status=422, refused=refused) if isinstance(shown, Page) else shown

        return PageRoute("POST", path, performed)

    return route


def reasons(error: Exception) -> tuple[str, ...]:
    """Return one line of text for each mistake that the operator must correct."""
    return error.problems if isinstance(error, InvalidRequest) else (str(error),)


def filled(kind: type[_R], form: Mapping[str, str], **known: object) -> _R:
    """Make an operation's request from the form fields that are not empty."""
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
