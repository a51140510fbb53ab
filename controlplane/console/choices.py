"""Choices for form fields whose full list of options would be too long in a large installation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from controlplane.operations.actor import Actor
from controlplane.operations.apps import AppFacts, AppReference, ListApps, list_all, show
from controlplane.operations.context import OperationContext
from controlplane.operations.perform import perform
from controlplane.store.interface import Conflict, NotFound

_MOST_OPTIONS: Final = 200


@dataclass(frozen=True, slots=True)
class AppChoice:
    apps: Sequence[AppFacts]
    has_more: bool  # True if there are further applications


async def choice_of_apps(
    context: OperationContext, actor: Actor, org: str | None, chosen: str | None = None
) -> AppChoice:
    """Return the first applications by name, plus the chosen application if it is not among them."""
    found = await perform(list_all, context, actor, ListApps(org=org, limit=_MOST_OPTIONS))
    apps = list(found.apps)
    if chosen and found.next and chosen not in {each.app_id for each in apps}:
        with suppress(NotFound, Conflict):  # the operation reports this error when the form is sent
            shown: AppFacts = await show.perform(context, actor, AppReference(app=chosen, org=org))
            apps.insert(0, shown)
    return AppChoice(apps, bool(found.next))
