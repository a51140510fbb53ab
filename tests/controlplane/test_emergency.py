"""Tests of emergency stops: permissions, visibility, and that one stop does not lift another stop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controlplane.operations import apps, emergency
from controlplane.operations.actor import Actor, Forbidden, Role, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import Operation
from controlplane.store.interface import Conflict, NotFound
from tests.controlplane.plane import Plane, context_of

OWNER = local_actor("owner")
EVERYTHING = emergency.Everything()


@pytest.fixture
async def context(plane: Plane) -> OperationContext:
    for org in ("acme", "rival"):
        await plane.org(org)
        await plane.ruleset(org, f"{org}-rules")
        await plane.inventory.add_app(f"{org}-app", org, f"{org}-rules")
    await plane.ruleset("acme", "next-rules")
    return context_of(plane)


async def actor(context: OperationContext, role: Role, org: str = "acme", name: str = "eve") -> Actor:
    ids = {each.name: each.org_id for each in await context.store.orgs()} | {"*": "*"}
    return Actor(name, {ids[org]: role})


async def stopped(context: OperationContext, who: Actor = OWNER) -> list[tuple[str, str | None, str | None]]:
    report = await emergency.list_all.perform(context, who, EVERYTHING)
    return [(each.scope, each.org, each.app) for each in report.stops]


STOPS: list[tuple[Operation[Any, Any], Any, Operation[Any, Any], Any]] = [
    (
        emergency.stop_app,
        emergency.AppToStop("acme-app"),
        emergency.lift_app,
        emergency.StoppedApp("acme-app"),
    ),
    (emergency.stop_org, emergency.OrgToStop("acme"), emergency.lift_org, emergency.StoppedOrg("acme")),
]


@pytest.mark.parametrize(("stop", "asked", "lift", "of"), STOPS)
async def test_an_editor_stops_and_an_admin_lifts(
    context: OperationContext, stop: Operation[Any, Any], asked: Any, lift: Operation[Any, Any], of: Any
) -> None:
    viewer, editor, admin = [await actor(context, role) for role in ("viewer", "editor", "admin")]
    with pytest.raises(Forbidden):
        await stop.perform(context, viewer, asked)
    assert await stopped(context) == []
    report = await stop.perform(context, editor, asked)
    assert (report.stopped_by, report.org, report.stopped_at) == ("eve", "acme", "2026-11-21T12:00:00.000Z")
    assert len(await stopped(context, viewer)) == 1
    for weak in (viewer, editor):
        with pytest.raises(Forbidden):
            await lift.perform(context, weak, of)
    assert (await lift.perform(context, admin, of)).stops == ()
    with pytest.raises(NotFound):
        await lift.perform(context, admin, of)


async def test_only_an_admin_over_all_stops_and_lifts_everything(context: OperationContext) -> None:
    for weak in (await actor(context, "admin"), await actor(context, "editor", "*")):
        with pytest.raises(Forbidden):
            await emergency.stop_all.perform(context, weak, emergency.AllToStop("incident"))
    strong = await actor(context, "admin", "*")
    await emergency.stop_all.perform(context, strong, emergency.AllToStop("incident"))
    with pytest.raises(Forbidden):
        await emergency.lift_all.perform(context, await actor(context, "admin"), EVERYTHING)
    # Every operator of the organisation may see the stop.
    assert await stopped(context, await actor(context, "viewer", "rival")) == [("all", None, None)]
    assert (await emergency.lift_all.perform(context, strong, EVERYTHING)).stops == ()
    with pytest.raises(NotFound):
        await emergency.lift_all.perform(context, strong, EVERYTHING)


async def test_the_stops_of_another_organisation_do_not_show(context: OperationContext) -> None:
    await emergency.stop_app.perform(context, OWNER, emergency.AppToStop("rival-app", reason="secret"))
    await emergency.stop_org.perform(context, OWNER, emergency.OrgToStop("rival"))
    eve = await actor(context, "admin")
    assert await stopped(context, eve) == []
    assert set(await stopped(context)) == {("app", "rival", "rival-app"), ("org", "rival", None)}
    with pytest.raises(NotFound):
        await emergency.lift_app.perform(context, eve, emergency.StoppedApp("rival-app"))


async def test_each_stop_is_lifted_by_itself(context: OperationContext) -> None:
    await emergency.stop_app.perform(context, OWNER, emergency.AppToStop("acme-app"))
    await emergency.stop_all.perform(context, OWNER, emergency.AllToStop())
    await emergency.stop_org.perform(context, OWNER, emergency.OrgToStop("acme"))
    report = await emergency.lift_all.perform(context, OWNER, EVERYTHING)
    assert {each.scope for each in report.stops} == {"app", "org"}
    report = await emergency.lift_org.perform(context, OWNER, emergency.StoppedOrg("acme"))
    assert [each.app for each in report.stops] == ["acme-app"]


async def test_an_app_says_which_stop_covers_it(context: OperationContext) -> None:
    async def seen() -> dict[str, str | None]:
        report = await apps.list_all.perform(context, OWNER, apps.ListApps())
        shown = await apps.show.perform(context, OWNER, apps.AppReference("acme-app"))
        found: dict[str, str | None] = {each.name: each.stopped for each in report.apps}
        assert shown.stopped == found["acme-app"]
        return found

    assert await seen() == {"acme-app": None, "rival-app": None}
    await emergency.stop_app.perform(context, OWNER, emergency.AppToStop("acme-app"))
    assert await seen() == {"acme-app": "app", "rival-app": None}
    await emergency.stop_org.perform(context, OWNER, emergency.OrgToStop("acme"))
    assert await seen() == {"acme-app": "org", "rival-app": None}
    await emergency.stop_all.perform(context, OWNER, emergency.AllToStop())
    assert await seen() == {"acme-app": "all", "rival-app": "all"}


async def test_who_stops_what_is_stopped_already_changes_nothing(context: OperationContext) -> None:
    first = emergency.AppToStop("acme-app", reason="leaked secret")
    await emergency.stop_app.perform(context, OWNER, first)
    again = await emergency.stop_app.perform(
        context, await actor(context, "editor"), emergency.AppToStop("acme-app", reason="me too")
    )
    assert (again.reason, again.stopped_by) == ("leaked secret", "local:owner")
    assert len(await stopped(context)) == 1


async def test_a_shadow_is_set_taken_away_and_promoted_by_an_editor(context: OperationContext) -> None:
    viewer, editor = await actor(context, "viewer"), await actor(context, "editor")
    set_shadow = apps.SetShadow("acme-app", ruleset="next-rules")
    with pytest.raises(Forbidden):
        await apps.shadow.perform(context, viewer, set_shadow)
    report = await apps.shadow.perform(context, editor, set_shadow)
    assert (report.ruleset, report.shadow_ruleset) == ("acme-rules", "next-rules")
    assert (await apps.shadow.perform(context, editor, apps.SetShadow("acme-app"))).shadow_ruleset is None
    with pytest.raises(NotFound, match="no shadow"):
        await apps.promote_shadow.perform(context, editor, apps.PromoteShadow("acme-app"))
    with pytest.raises(NotFound):
        await apps.shadow.perform(context, editor, apps.SetShadow("acme-app", ruleset="rival-rules"))
    await apps.shadow.perform(context, editor, set_shadow)
    with pytest.raises(Forbidden):
        await apps.promote_shadow.perform(context, viewer, apps.PromoteShadow("acme-app"))
    with pytest.raises(Conflict, match="next-rules is the shadow ruleset, but old-rules was expected"):
        await apps.promote_shadow.perform(
            context, editor, apps.PromoteShadow("acme-app", expected="old-rules")
        )
    asked = apps.PromoteShadow("acme-app", expected="next-rules")
    report = await apps.promote_shadow.perform(context, editor, asked)
    assert msgspec.structs.asdict(report).items() >= {"ruleset": "next-rules", "shadow_ruleset": None}.items()
