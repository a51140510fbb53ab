"""Tests of the console's ruleset pages while other operators use the control plane's worker processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controlplane.console import events
from controlplane.operations import worker_process as lane
from controlplane.operations.actor import Actor
from controlplane.operations.worker_process import run_for_page, run_trial
from tests.controlplane.held_runs import Latch, wait_for
from tests.controlplane.plane import RULESET, Plane
from tests.controlplane.test_console_publishing import publish, review, reviewed
from tests.controlplane.test_replays import Traffic, group_path, traffic
from tests.controlplane.visitor import visiting

__all__ = ["traffic"]  # a fixture
PAGE = "/rulesets/acme/hr"


@asynccontextmanager
async def crowded(
    work: Callable[[Actor, Callable[[str], bool], str], Coroutine[Any, Any, object]],
    held: Latch,
    operators: int = 16,
) -> AsyncIterator[None]:
    """Fill the queue with `count` waiting operators, or as many as may wait, and let none of them proceed."""
    while await run_for_page(Actor("ada", {}), sum, (1, 2)) is None:
        pass  # the first process of pages starts more slowly on a busy host than a page waits
    viewers = [Actor(f"viewer-{number}", {}) for number in range(operators)]
    crowd = [asyncio.create_task(work(viewer, wait_for, held.path)) for viewer in viewers]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        held.release()
        await asyncio.gather(*crowd)


@pytest.fixture
async def versions(plane: Plane) -> None:
    await plane.org("acme")
    for rule in ("r1", "r2"):
        text = RULESET.format(name="hr").replace("r1", f"{rule}  # \u202e")
        await plane.ruleset("acme", "hr", text)
    await plane.inventory.add_app("portal", "acme", "hr")


@pytest.mark.usefixtures("versions")
async def test_who_tries_things_out_is_in_nobody_s_way(plane: Plane, held: Latch) -> None:
    draft = {"yaml": RULESET.format(name="hr").replace("r1", "r3"), "base": "2"}
    async with visiting(plane) as visitor, crowded(run_trial, held):
        assert 'class="y-key"' in (await visitor.get(PAGE)).text
        for page in ("compare", "rollback"):
            assert 'class="diff"' in (await visitor.get(f"{PAGE}/{page}")).text
        seen = await review(visitor, f"{PAGE}/edit", **draft)
        assert 'class="diff"' in seen.text
        assert (await publish(visitor, f"{PAGE}/edit", **draft, reviewed=reviewed(seen))).status == 303
        back = {"to": "1", "expected": "3", "note": "r3 blocked the night's mail"}
        assert (await visitor.post(f"{PAGE}/rollback", back)).status == 303


@pytest.mark.usefixtures("versions")
async def test_where_much_is_looked_at_a_page_comes_without_what_takes_long(
    plane: Plane, held: Latch, monkeypatch: pytest.MonkeyPatch
) -> None:
    # s: these operators wait until a slow host made the pages
    monkeypatch.setattr(lane, "_LONGEST_OF_A_PAGE", 100.0)
    draft = {"yaml": RULESET.format(name="hr").replace("r1", "r3"), "base": "2"}
    async with visiting(plane) as visitor, crowded(run_for_page, held):
        seen = await visitor.get(PAGE)
        assert (seen.status, "y-key" in seen.text, "id: r2" in seen.text) == (200, False, True)
        assert "\u202e" not in seen.text
        assert "\\u202e" in seen.text
        for page in ("compare", "rollback"):
            seen = await visitor.get(f"{PAGE}/{page}")
            assert (seen.status, "the control plane is busy" in seen.text) == (200, True)
        seen = await review(visitor, f"{PAGE}/edit", **draft)
        assert (seen.status, "the control plane is busy" in seen.text) == (200, True)
        assert (await publish(visitor, f"{PAGE}/edit", **draft, reviewed=reviewed(seen))).status == 303


async def test_an_event_is_looked_at_without_the_rules_that_were_tried(
    traffic: Traffic, plane: Plane, monkeypatch: pytest.MonkeyPatch, held: Latch
) -> None:
    await traffic.send([group_path(1)])
    ((org, event),) = await plane.stored()
    async with visiting(plane) as visitor:
        seen = await visitor.get(f"/events/{org}/{event['id']}")
        assert (seen.status, "other evaluations are running" in seen.text) == (200, False)
        monkeypatch.setattr(events, "_EXPLAINED_WITHIN_SECONDS", 0.01)
        async with crowded(run_trial, held, 1):
            seen = await visitor.get(f"/events/{org}/{event['id']}")
        assert (seen.status, "other evaluations are running" in seen.text) == (200, True)


async def test_a_page_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch, held: Latch) -> None:
    monkeypatch.setattr(lane, "_LONGEST_OF_A_PAGE", 0.01)
    assert await run_for_page(Actor("ada", {}), wait_for, held.path) is None
