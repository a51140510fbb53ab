"""/: what was asked and what came of it, and what needs an operator."""

from __future__ import annotations

from controlplane.console.pages import Page, PageRequest, page
from controlplane.operations.actor import Actor
from controlplane.operations.desk import Desk


@page("GET", "/")
async def overview(desk: Desk, actor: Actor, request: PageRequest) -> Page:
    return Page("overview.html", "Overview", {})
