"""What a page is: what its handler is given, and what it gives back.

A page is one function in one of the area modules:

    @page("GET", "/orgs")
    async def orgs(desk: Desk, actor: Actor, request: PageRequest) -> Page:
        found = await perform(list_all, desk, actor, ListOrgs())
        return Page("orgs.html", "Organisations", {"orgs": found.orgs})

It calls operations and nothing below them. `frame.py` does the rest: it asks for a sign-in, checks a form's
token, renders the template within the layout, and shows what the handler raises. A template begins with

    {% extends "layout.html" %}
    {% import "ui.html" as ui with context %}

and fills the block `content` with the macros of ui.html. All state of a view is in its URL, every link is
made by `link()`, which keeps the chosen organisation, and every form that is sent by POST holds `ui.token()`.
A button that the actor may not press isn't shown: `{% if may("editor", org_id) %}`. What follows a successful
form is a Redirect with a sentence, so that a reload repeats nothing. A new area module is listed in
`console/areas.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar
from urllib.parse import urlencode

import msgspec
from multidict import MultiMapping

from controlplane.operations.actor import Actor
from controlplane.operations.desk import Desk
from controlplane.operations.operation import InvalidRequest, Request, validation_problem
from controlplane.registry import InvalidName
from controlplane.store.interface import NotFound, Org, StoreBusy, StoreError

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

    def link(self, path: str, /, **query: object) -> str:
        """A path of ours with a query; the chosen organisation goes along unless `org` says otherwise."""
        chosen = {"org": self.org.name if self.org else None, **query}
        given = {name: str(value) for name, value in chosen.items() if value not in (None, "")}
        return f"{path}?{urlencode(given)}" if given else path

    def changed(self, /, **query: object) -> str:
        """This very view with some members of its query changed; None takes one away."""
        return self.link(self.path, **{**dict(self.query), **query})


@dataclass(frozen=True, slots=True)
class Page:
    template: str
    title: str
    values: Mapping[str, object] = field(default_factory=dict)
    crumbs: tuple[tuple[str, str], ...] = ()  # what is above it, as (text, path); the title comes last
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    to: str  # a path of ours
    flash: str = ""  # one sentence on what was done, shown once


Handler = Callable[[Desk, Actor, PageRequest], Awaitable[Page | Redirect]]


@dataclass(frozen=True, slots=True)
class PageRoute:
    method: Method
    path: str
    handler: Handler


def page(method: Method, path: str) -> Callable[[Handler], PageRoute]:
    """Makes a route of a handler."""
    return lambda handler: PageRoute(method, path, handler)


# What a person can mend in the form that was sent; anything else that is raised becomes an error's page.
Refusal: Final = (InvalidRequest, InvalidName, StoreError)


def problems(error: Exception) -> tuple[str, ...]:
    """The lines to show above the form. A Refusal that is no matter of the form is raised on."""
    if isinstance(error, NotFound | StoreBusy):
        raise error
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
