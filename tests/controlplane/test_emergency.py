"""Stopping and lifting: who may, what of it shows to whom, and that one stop doesn't lift another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controlplane.operations import apps, emergency
from controlplane.operations.actor import Actor, Forbidden, Role, local_actor
from controlplane.operations.desk import Desk
from controlplane.operations.operation import Operation
from controlplane.store.interface import Conflict, NotFound
from tests.controlplane.plane import Plane, desk

OWNER = local_actor("owner")
EVERYTHING = emergency.Everything()


@pytest.fixture
async def at_desk(plane: Plane) -> Desk:
    for org in ("acme", "rival"):
        await plane.org(org)
        await plane.ruleset(org, f"{org}-rules")
        await plane.registry.add_app(f"{org}-app", org, f"{org}-rules")
    await plane.ruleset("acme", "next-rules")
    return desk(plane)


async def actor(at_desk: Desk, role: Role, org: str = "acme", name: str = "eve") -> Actor:
    ids = {each.name: each.org_id for each in await at_desk.store.orgs()} | {"*": "*"}
    return Actor(name, {ids[org]: role})


async def stopped(at_desk: Desk, who: Actor = OWNER) -> list[tuple[str, str | None, str | None]]:
    told = await emergency.list_all.perform(at_desk, who, EVERYTHING)
    return [(each.scope, each.org, each.app) for each in told.stops]


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
    at_desk: Desk, stop: Operation[Any, Any], asked: Any, lift: Operation[Any, Any], of: Any
) -> None:
    viewer, editor, admin = [await actor(at_desk, role) for role in ("viewer", "editor", "admin")]
    with pytest.raises(Forbidden):
        await stop.perform(at_desk, viewer, asked)
    assert await stopped(at_desk) == []
    told = await stop.perform(at_desk, editor, asked)
    assert (told.stopped_by, told.org, told.stopped_at) == ("eve", "acme", "2026-11-21T12:00:00.000Z")
    assert len(await stopped(at_desk, viewer)) == 1
    for weak in (viewer, editor):
        with pytest.raises(Forbidden):
            await lift.perform(at_desk, weak, of)
    assert (await lift.perform(at_desk, admin, of)).stops == ()
    with pytest.raises(NotFound):
        await lift.perform(at_desk, admin, of)


async def test_only_an_admin_over_all_stops_and_lifts_everything(at_desk: Desk) -> None:
    for weak in (await actor(at_desk, "admin"), await actor(at_desk, "editor", "*")):
        with pytest.raises(Forbidden):
            await emergency.stop_all.perform(at_desk, weak, emergency.AllToStop("incident"))
    strong = await actor(at_desk, "admin", "*")
    await emergency.stop_all.perform(at_desk, strong, emergency.AllToStop("incident"))
    with pytest.raises(Forbidden):
        await emergency.lift_all.perform(at_desk, await actor(at_desk, "admin"), EVERYTHING)
    # Whom it concerns may know: everybody.
    assert await stopped(at_desk, await actor(at_desk, "viewer", "rival")) == [("all", None, None)]
    assert (await emergency.lift_all.perform(at_desk, strong, EVERYTHING)).stops == ()
    with pytest.raises(NotFound):
        await emergency.lift_all.perform(at_desk, strong, EVERYTHING)


async def test_the_stops_of_another_organisation_do_not_show(at_desk: Desk) -> None:
    await emergency.stop_app.perform(at_desk, OWNER, emergency.AppToStop("rival-app", reason="secret"))
    await emergency.stop_org.perform(at_desk, OWNER, emergency.OrgToStop("rival"))
    eve = await actor(at_desk, "admin")
    assert await stopped(at_desk, eve) == []
    assert set(await stopped(at_desk)) == {("app", "rival", "rival-app"), ("org", "rival", None)}
    with pytest.raises(NotFound):
        await emergency.lift_app.perform(at_desk, eve, emergency.StoppedApp("rival-app"))


async def test_each_stop_is_lifted_by_itself(at_desk: Desk) -> None:
    await emergency.stop_app.perform(at_desk, OWNER, emergency.AppToStop("acme-app"))
    await emergency.stop_all.perform(at_desk, OWNER, emergency.AllToStop())
    await emergency.stop_org.perform(at_desk, OWNER, emergency.OrgToStop("acme"))
    told = await emergency.lift_all.perform(at_desk, OWNER, EVERYTHING)
    assert {each.scope for each in told.stops} == {"app", "org"}
    told = await emergency.lift_org.perform(at_desk, OWNER, emergency.StoppedOrg("acme"))
    assert [each.app for each in told.stops] == ["acme-app"]


async def test_who_stops_what_is_stopped_already_changes_nothing(at_desk: Desk) -> None:
    first = emergency.AppToStop("acme-app", reason="leaked secret")
    await emergency.stop_app.perform(at_desk, OWNER, first)
    again = await emergency.stop_app.perform(
        at_desk, await actor(at_desk, "editor"), emergency.AppToStop("acme-app", reason="me too")
    )
    assert (again.reason, again.stopped_by) == ("leaked secret", "local:owner")
    assert len(await stopped(at_desk)) == 1


async def test_a_shadow_is_set_taken_away_and_promoted_by_an_editor(at_desk: Desk) -> None:
    viewer, editor = await actor(at_desk, "viewer"), await actor(at_desk, "editor")
    set_shadow = apps.SetShadow("acme-app", ruleset="next-rules")
    with pytest.raises(Forbidden):
        await apps.shadow.perform(at_desk, viewer, set_shadow)
    told = await apps.shadow.perform(at_desk, editor, set_shadow)
    assert (told.ruleset, told.shadow_ruleset) == ("acme-rules", "next-rules")
    assert (await apps.shadow.perform(at_desk, editor, apps.SetShadow("acme-app"))).shadow_ruleset is None
    with pytest.raises(NotFound, match="no shadow"):
        await apps.promote_shadow.perform(at_desk, editor, apps.PromoteShadow("acme-app"))
    with pytest.raises(NotFound):
        await apps.shadow.perform(at_desk, editor, apps.SetShadow("acme-app", ruleset="rival-rules"))
    await apps.shadow.perform(at_desk, editor, set_shadow)
    with pytest.raises(Forbidden):
        await apps.promote_shadow.perform(at_desk, viewer, apps.PromoteShadow("acme-app"))
    with pytest.raises(Conflict, match="next-rules is tried on it, and old-rules was expected"):
        await apps.promote_shadow.perform(
            at_desk, editor, apps.PromoteShadow("acme-app", expected="old-rules")
        )
    asked = apps.PromoteShadow("acme-app", expected="next-rules")
    told = await apps.promote_shadow.perform(at_desk, editor, asked)
    assert msgspec.structs.asdict(told).items() >= {"ruleset": "next-rules", "shadow_ruleset": None}.items()
