"""Pages at /sinks: the progress of each sink, the events that it refused, and actions."""

from __future__ import annotations

from typing import Final

from controlplane.console.pages import Page, PageRequest, Redirect, filled, form, page
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.perform import perform
from controlplane.operations.sinks import (
    ChooseDeadLetters,
    ListDeadLetters,
    ListSinks,
    RewindSink,
    SinkReference,
    dead_letters,
    discard,
    list_all,
    retry,
    rewind,
    show,
    test,
)
from proxy.wire.figures import counted

_CRUMBS: Final = (("Sinks", "/sinks"),)
_KINDS: Final = {"up to date": "good", "delivering": "plain", "failing": "bad", "not started": "plain"}
_LETTERS: Final = 50  # dead letters per page


@page("GET", "/sinks")
async def sinks(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    found = await perform(list_all, context, actor, ListSinks())
    return Page("sinks.html", "Sinks", {"sinks": [(each, _KINDS[each.status]) for each in found.sinks]})


@page("GET", "/sinks/{sink}", "after")
async def sink(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    name = request.place["sink"]
    found = await perform(show, context, actor, SinkReference(name))
    asked = filled(ListDeadLetters, request.query, sink=name, limit=_LETTERS)
    letters = await perform(dead_letters, context, actor, asked)
    values = {
        "sink": found,
        "kind": _KINDS[found.status],
        "letters": letters,
        "tests": actor.may("editor", None),
        "manages": actor.may("admin", None),
    }
    return Page("sink.html", found.name, values, _CRUMBS)


@form("/sinks/{sink}/test", again=sink)
async def try_sink(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    name = request.place["sink"]
    found = await perform(test, context, actor, SinkReference(name))
    said = "The sink responds" if found.ok else "The sink accepts no events"
    return Redirect(request.link(f"/sinks/{name}"), f"{said}: {found.result}")


@form("/sinks/{sink}/retry", again=sink)
async def send_again(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    name = request.place["sink"]
    done = await perform(retry, context, actor, ChooseDeadLetters(name, _chosen(request)))
    said = f"{counted(done.count, 'dead letter')} will be sent again within seconds."
    return Redirect(request.link(f"/sinks/{name}"), said)


@form("/sinks/{sink}/discard", again=sink)
async def forget(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    name = request.place["sink"]
    done = await perform(discard, context, actor, ChooseDeadLetters(name, _chosen(request)))
    return Redirect(request.link(f"/sinks/{name}"), f"{counted(done.count, 'dead letter')} discarded.")


@form("/sinks/{sink}/rewind", again=sink)
async def go_back(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    name = request.place["sink"]
    asked = filled(RewindSink, {"to": request.form.get("to", "")}, sink=name)
    await perform(rewind, context, actor, asked)
    return Redirect(request.link(f"/sinks/{name}"), f"The sink receives all events since {asked.to} again.")


def _chosen(request: PageRequest) -> tuple[int, ...] | None:
    """Return the positions of the refused events that the form names.

    If the form names no position, return None, which stands for all refused events.
    """
    position = request.form.get("position", "")
    return (int(position),) if position.isascii() and position.isdigit() and len(position) < 16 else None
