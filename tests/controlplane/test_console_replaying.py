"""Tests of a replay on a draft's page, which runs in steps.

The page's form sends the event counts of the earlier replay steps. Each replay step adds the counts of the
events that it replayed.
"""

from __future__ import annotations

import msgspec
import pytest

from controlplane.console import replaying
from controlplane.operations import apps
from controlplane.operations.actor import local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.store import blocks
from tests.controlplane.plane import Plane, ProxyClient, context_of
from tests.controlplane.test_replays import DRAFT, RULES, Traffic, group_path, traffic

__all__ = ["traffic"]  # a fixture
OPERATOR = local_actor("ada")


async def step(context: OperationContext, yaml: str = DRAFT, **form: str) -> replaying.Progress:
    return await replaying.step(context, OPERATOR, "acme", yaml, (), {"replay_hours": "24", **form})


async def test_steps_count_on_until_all_was_looked_at(
    plane: Plane, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "_EVENTS_OF_A_STEP", 1)
    monkeypatch.setattr(blocks, "MAX_SLICE_BYTES", 1)  # one batch at a time
    for number in range(3):
        await traffic.send([group_path(number, "members"), group_path(number)])
    progress = await step(context_of(plane))
    percents = [progress.percent]
    while not progress.is_done:
        progress = await step(context_of(plane), do="replay-on", replay_so_far=progress.so_far)
        percents.append(progress.percent)
    assert percents == sorted(set(percents))
    assert len(percents) > 1
    assert percents[-1] == 100
    (change,) = progress.changes
    assert (change.words, change.facts.count, progress.replayed.events) == ("newly blocked", 3, 6)


async def test_a_replay_does_not_go_on_with_another_draft_or_from_nowhere(
    plane: Plane, traffic: Traffic
) -> None:
    await traffic.send([group_path(1, "members")])
    begun = await step(context_of(plane))
    with pytest.raises(InvalidRequest, match="the draft was changed"):
        await step(context_of(plane), RULES, do="replay-on", replay_so_far=begun.so_far)
    of_no_kind = begun.so_far.replace('"change":"newlyBlocked"', '"change":"bogus"')
    assert of_no_kind != begun.so_far
    (group,) = begun.replayed.groups
    too_many = msgspec.structs.replace(begun.replayed, groups=(group,) * 1001)
    counted, forged_count = (msgspec.json.encode(one).decode() for one in (begun.replayed, too_many))
    of_too_many = begun.so_far.replace(counted, forged_count)
    assert len(of_too_many) > 100_000
    for forged in ("", "{}", "[1]", begun.so_far[:-2], of_no_kind, of_too_many):
        with pytest.raises(InvalidRequest, match=r"start (?:it|the replay) again"):
            await step(context_of(plane), do="replay-on", replay_so_far=forged)


@pytest.mark.parametrize("given", ["0", "-1", "x", "9" * 50_000])
def test_what_is_no_number_of_hours_is_told(given: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a number of hours"):
        replaying.hours(given)


async def test_a_change_leads_to_a_search_that_finds_its_events(
    plane: Plane, proxy: ProxyClient, traffic: Traffic
) -> None:
    await traffic.send([group_path(1, "members")])
    (change,) = (await step(context_of(plane))).changes
    (app,) = await plane.store.apps(None)
    assert change.query == f"app:{app.app_id} verdict:allow ruleid:groups"
    assert (change.since, change.until) == ("2026-11-21T11:00:00.000Z", "2026-11-21T11:00:00.001Z")


async def test_requests_of_the_applications_that_the_rules_evaluate_are_replayed_unless_others_are_asked_for(
    plane: Plane, traffic: Traffic
) -> None:
    await traffic.send([group_path(1, "members")])
    await plane.inventory.add_app("other", "acme", "hr")
    listed = await perform(apps.list_all, context_of(plane), OPERATOR, apps.ListApps())
    (facts,) = [app for app in listed.apps if app.name == "other"]

    async def events(**form: str) -> int:
        form = {"replay_hours": "24", **form}
        context = context_of(plane)
        return (await replaying.step(context, OPERATOR, "acme", DRAFT, [facts], form)).replayed.events

    assert await events() == 0
    assert await events(replay_app=replaying.EVERY_APP) == 1
    with pytest.raises(InvalidRequest, match="is not a number of hours"):
        await events(replay_hours="1e9")
