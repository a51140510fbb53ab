"""Tests of deletions: effects that begin at once, data that stays, and objects that can't be deleted yet."""

from __future__ import annotations

import asyncio
import html
import json
from contextlib import suppress
from io import StringIO
from typing import Any, get_args

import pytest

from controlplane.integrity import chain_key
from controlplane.names import new_id
from controlplane.operations import (
    apps,
    deletions,
    emergency,
    event_details,
    event_explanations,
    integrity,
    models,
    operators,
    orgs,
    proposals,
    rulesets,
)
from controlplane.operations.actor import Actor, Forbidden, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.perform import perform
from controlplane.retention import Retention
from controlplane.store.interface import Conflict, LogQuery, NotFound, OperatorToken, Stop, TombstoneKind
from proxy.wire.audit_event import rfc3339
from tests.controlplane.operator_commands import Commands
from tests.controlplane.plane import RULESET, FakeClock, Plane, agreed_with, context_of, event
from tests.controlplane.visitor import visiting
from tests.pure.model_schema import SMALL

KINDS: tuple[TombstoneKind, ...] = get_args(TombstoneKind)
ENGINES = ("sqlite", "postgres")
HOST = local_actor("root")


@pytest.fixture
async def context(plane: Plane) -> OperationContext:
    """Create the organisation acme with the rulesets hr and spare, and the application payroll."""
    await plane.org("acme")
    for name in ("hr", "spare"):
        await plane.ruleset("acme", name)
    await plane.inventory.add_app("payroll", "acme", "hr")
    return context_of(plane)


async def delete_app(context: OperationContext, app: str) -> deletions.Deleted:
    return await perform(deletions.delete_app, context, HOST, apps.AppReference(app))


async def delete_ruleset(
    context: OperationContext, ruleset: str, expected: int | None = None
) -> deletions.Deleted:
    asked = deletions.DeleteRuleset(ruleset, None, expected)
    return await perform(deletions.delete_ruleset, context, HOST, asked)


async def test_an_app_ends_at_the_next_sync_and_its_name_is_free(
    context: OperationContext, plane: Plane
) -> None:
    proxy = await plane.proxy("edge-1", "acme")
    await emergency.stop_app.perform(context, HOST, emergency.AppToStop("payroll", None, "leak"))
    before = (await proxy.sync()).json
    first = await plane.inventory.app("payroll")
    gone = await delete_app(context, "payroll")
    assert (gone.kind, gone.id, gone.deleted_by) == ("app", first.app_id, "local:root")
    after = (await proxy.sync(before["version"])).json
    assert after["apps"] == []
    assert "stops" not in after
    assert after["version"] != before["version"]
    with pytest.raises(NotFound, match=r"app payroll was deleted on 2026-11-21T12:00:.* by local:root"):
        await plane.inventory.app(first.app_id)
    # another operator had found it before the deletion
    with pytest.raises(NotFound, match="this app was deleted"):
        await context.store.set_app_enabled(first.app_id, True)
    with pytest.raises(NotFound, match="this app was deleted"):
        await context.store.delete_app(first.app_id, "ada")
    second = (await plane.inventory.add_app("payroll", "acme", "hr")).app
    assert second.app_id != first.app_id
    (line, *_) = await context.store.operator_log(LogQuery(limit=1, operation="app.delete"))
    assert (line.outcome, line.org_ids) == ("done", (first.org_id,))
    assert line.result == f"deleted app payroll, id {first.app_id}"


async def test_a_ruleset_in_use_stays_and_the_error_names_its_users(
    context: OperationContext, plane: Plane
) -> None:
    with pytest.raises(Conflict, match="it evaluates payroll"):
        await delete_ruleset(context, "hr")
    await plane.inventory.set_shadow("payroll", None, "spare")
    with pytest.raises(Conflict, match="it is the shadow ruleset of payroll"):
        await delete_ruleset(context, "spare")
    await plane.inventory.set_shadow("payroll", None, None)
    await orgs.set_second_person.perform(context, HOST, orgs.SetSecondPerson("acme", needed=True))
    bound = await apps.bind.perform(context, HOST, apps.BindApp("payroll", None, ruleset="spare"))
    with pytest.raises(Conflict, match=f"open proposals name it: {bound.proposal}"):
        await delete_ruleset(context, "spare")
    await delete_app(context, "payroll")
    (proposal,) = (
        await proposals.list_all.perform(context, HOST, proposals.ListProposals(decided=True))
    ).proposals
    assert (proposal.state, proposal.reason) == ("rejected", "Its app was deleted.")
    with pytest.raises(Conflict, match="version 1 is active, but version 2 was expected"):
        await delete_ruleset(context, "spare", 2)
    found = await context.resolve.ruleset(HOST, "viewer", "spare", None)
    await delete_ruleset(context, "spare", 1)  # no application loses access, so a second person is not needed
    with pytest.raises(NotFound, match="ruleset spare was deleted"):
        await rulesets.show.perform(context, HOST, rulesets.ShowRuleset("spare"))
    with pytest.raises(NotFound, match="this ruleset was deleted"):
        await context.store.roll_back(found.ruleset_id, None, None, None)
    assert await context.store.ruleset_text(found.ruleset_id, 1) == RULESET.format(name="spare")
    assert [each.version for each in await context.store.ruleset_versions(found.ruleset_id)] == [1]


async def test_nothing_is_given_to_what_was_deleted_meanwhile(
    context: OperationContext, plane: Plane
) -> None:
    org = await plane.inventory.org("acme")
    spare = await context.resolve.ruleset(HOST, "viewer", "spare", None)
    app = await plane.inventory.app("payroll")
    await delete_ruleset(context, "spare")
    for change in (context.store.bind_app, context.store.set_shadow):
        with pytest.raises(NotFound, match="this ruleset was deleted"):
            await change(app.app_id, spare.ruleset_id)
    proxy = await plane.proxy("edge-1", "acme")
    await delete_app(context, "payroll")
    await perform(deletions.delete_org, context, HOST, orgs.OrgReference("acme"))
    with pytest.raises(NotFound, match="this organisation was deleted"):
        await context.store.grant(proxy.proxy_id, org.org_id)
    with pytest.raises(NotFound, match="this organisation was deleted"):
        await context.store.add_app(app)
    ada = await operators.add.perform(context, HOST, operators.AddOperator("ada"))
    await perform(deletions.delete_operator, context, HOST, operators.OperatorReference("ada"))
    token = OperatorToken(new_id(context.clock), ada.operator_id, "ci", 0, 1)
    for late in (
        context.store.add_stop(Stop(org.org_id, None, "leak", "ada", 0)),
        context.store.set_retention(org.org_id, "7y"),
        context.store.set_approvals(org.org_id, 1),
        context.store.set_role(ada.operator_id, "*", "admin"),
        context.store.set_password(ada.operator_id, None),
        context.store.set_operator_enabled(ada.operator_id, True),
        context.store.add_token(token, b"digest"),
    ):
        with pytest.raises(NotFound, match="was deleted"):
            await late


async def test_an_organisation_with_apps_stays(context: OperationContext, plane: Plane) -> None:
    proxy = await plane.proxy("edge-1", "acme")
    org = await plane.inventory.org("acme")
    with pytest.raises(Conflict, match="has apps, which would lose service: delete payroll first"):
        await perform(deletions.delete_org, context, HOST, orgs.OrgReference("acme"))
    admin = Actor("ada", {org.org_id: "admin"})
    with pytest.raises(Forbidden):
        await deletions.delete_org.perform(context, admin, orgs.OrgReference("acme"))
    (payroll,) = await context.store.apps(org.org_id)
    further = [f"app-{number}" for number in range(11)]
    for name in further:
        request = apps.AddApp(name, "acme", payroll.ruleset_name)
        await apps.add_with(context, HOST, request, apps.ClientSecret("", ""))
    with pytest.raises(Conflict, match="app-8 and 2 more first"):
        await perform(deletions.delete_org, context, HOST, orgs.OrgReference("acme"))
    await operators.add.perform(context, HOST, operators.AddOperator("ada", None, "admin", "acme"))
    for name in ("payroll", *further):
        await delete_app(context, name)
    await perform(deletions.delete_org, context, HOST, orgs.OrgReference("acme"))
    assert (await proxy.sync()).json["orgs"] == []
    shown = await operators.show.perform(context, HOST, operators.OperatorReference("ada"))
    assert shown.roles == ()
    with pytest.raises(NotFound, match="organisation acme was deleted"):
        await orgs.show.perform(context, HOST, orgs.OrgReference("acme"))
    assert (await plane.inventory.add_org("acme", "base")).org_id != org.org_id


async def test_events_that_come_late_are_stored_and_go_on_naming_what_was_deleted(
    context: OperationContext, plane: Plane, commands: Commands, clock: FakeClock
) -> None:
    """Audit events that arrive late still contain the names of objects that were deleted before.

    A proxy that was offline delivers events of an app, a ruleset and an organisation that were deleted.
    """
    proxy = await plane.proxy("edge-1", "acme")
    (org,) = proxy.org_ids
    first = (await plane.inventory.app("payroll")).app_id
    members = {"proxyId": proxy.proxy_id, "rulesetVersion": 1, "ruleId": "r1", "ruleIds": ["r1"]}

    def of(app_id: str, number: int) -> dict[str, Any]:
        at = rfc3339(clock.wall_ms())
        return event(org, number, appId=app_id, time=at, transforms=[], **members)

    assert (await proxy.audit({"batchId": "b1", "events": [of(first, 1)]})).status == 202
    await delete_app(context, "payroll")
    second = (await plane.inventory.add_app("payroll", "acme", "spare")).app.app_id
    assert (await proxy.audit({"batchId": "b2", "events": [of(second, 2)]})).status == 202
    await delete_app(context, "payroll")
    for ruleset in ("hr", "spare"):
        await delete_ruleset(context, ruleset)
    await perform(deletions.delete_org, context, HOST, orgs.OrgReference("acme"))
    assert (await proxy.sync()).json["orgs"] == []
    late = [of(first, 3), of(second, 5)]
    assert (await proxy.audit({"batchId": "b3", "events": late})).status == 202

    for asked, numbers in (
        ("app:payroll", {1, 2, 3, 5}),
        (f"app:{first}", {1, 3}),
        ('app:"payroll (deleted 2026-11-21)"', {1, 2, 3, 5}),
        ("org:acme", {1, 2, 3, 5}),
    ):
        found = await commands.facts("server", "audit", "search", asked)
        assert {each["seq"] for each in found["events"]} == numbers, asked
    shown = await event_details.event.perform(context, HOST, event_details.EventReference(org, "event-3"))
    assert (shown.org_name, shown.app_name) == (
        "acme (deleted 2026-11-21)",
        "payroll (deleted 2026-11-21)",
    )
    assert shown.ruleset is not None
    assert (shown.ruleset.name, shown.ruleset.yaml) == ("hr (deleted 2026-11-21)", RULESET.format(name="hr"))
    wanted = event_explanations.ExplainEvent("acme", "event-3")
    explained = await event_explanations.explain_event.perform(context, HOST, wanted)
    assert (explained.judged_by, explained.fits) == ("hr (deleted 2026-11-21)@1", True)
    status, out, err = await commands.run("server", "audit", "report", "--org", "acme", "--json")
    assert (status, err) == (1, "")  # an event number is missing
    report = json.loads(out)["signed"]["report"]
    assert report["org"] == "acme (deleted 2026-11-21)"
    (trail,) = report["proxies"]
    assert trail["missing"] == [{"first": 4, "last": 4}]
    to_verify = integrity.Verify("acme (deleted 2026-11-21)")
    (verdict,) = (await integrity.verify.perform(context, HOST, to_verify)).orgs
    assert (verdict.misfit, verdict.events, verdict.missing_events) == (None, 4, 1)
    viewer = Actor("bob", {org: "viewer"})  # the actor of an operator with a role in that organisation only
    with pytest.raises(NotFound):
        await deletions.delete_app.perform(context, viewer, apps.AppReference(second))


async def test_a_tombstone_goes_once_its_events_are_gone(
    context: OperationContext, plane: Plane, clock: FakeClock
) -> None:
    context.store.sign_links(chain_key(await context.vault()))
    proxy = await plane.proxy("edge-1", "acme")
    (org,) = proxy.org_ids
    spare = (await context.resolve.ruleset(HOST, "viewer", "spare", None)).ruleset_id
    await proxy.audit({"batchId": "b1", "events": [event(org, 1, time=rfc3339(clock.wall_ms()))]})
    await delete_ruleset(context, "spare")
    await delete_app(context, "payroll")
    await perform(deletions.delete_org, context, HOST, orgs.OrgReference("acme"))
    clock.advance(hours=29 * 24)
    await purge(plane)
    late = {"batchId": "b2", "events": [event(org, 2, time=rfc3339(clock.wall_ms()))]}
    assert (await proxy.audit(late)).status == 202
    clock.advance(hours=2 * 24)
    assert await purge(plane) == 1
    assert await context.store.ruleset_text(spare, 1) is not None
    clock.advance(hours=31 * 24)
    assert await purge(plane) == 1
    assert await context.store.ruleset_text(spare, 1) is None
    assert [each for kind in KINDS for each in await context.store.tombstones_of(kind)] == []
    assert (await proxy.audit(late | {"batchId": "b3"})).status == 403
    (verdict,) = (await integrity.verify.perform(context, HOST, integrity.Verify())).orgs
    assert (verdict.org_id, verdict.misfit, verdict.purged) == (org, None, 2)


async def purge(plane: Plane) -> int:
    witnessed = await agreed_with(plane.store, plane.clock.wall)
    return await Retention(plane.store, NoIndex(), plane.clock, witnessed, 60).purge()


class NoIndex:
    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
        return 0


async def test_an_operator_ends_at_once_but_not_the_last_admin(context: OperationContext) -> None:
    for name in ("ada", "bob"):
        await operators.add.perform(context, HOST, operators.AddOperator(name, None, "admin", "*"))
    token = await operators.add_token.perform(context, HOST, operators.AddToken("ada", "ci"))
    ada = Actor("ada", {"*": "admin"})
    with pytest.raises(Conflict, match="you can't delete yourself"):
        await deletions.delete_operator.perform(context, ada, operators.OperatorReference("ADA"))
    await deletions.delete_operator.perform(context, ada, operators.OperatorReference("bob"))
    with pytest.raises(Conflict, match="the last admin over all organisations"):
        await deletions.delete_operator.perform(context, HOST, operators.OperatorReference("ada"))
    await operators.add.perform(context, HOST, operators.AddOperator("eve", None, "admin", "*"))
    max_ = Actor("max", {"another": "admin"})
    with pytest.raises(Forbidden):
        await deletions.delete_operator.perform(context, max_, operators.OperatorReference("ada"))
    gone = await perform(deletions.delete_operator, context, HOST, operators.OperatorReference("ada"))
    assert gone.name == "ada"
    assert await context.store.tokens(gone.id) == []
    assert token.token.startswith("gwt_")
    with pytest.raises(Forbidden):
        await context.refresh_roles(ada)
    with pytest.raises(NotFound, match="operator ada was deleted"):
        await operators.show.perform(context, HOST, operators.OperatorReference("ada"))


async def test_a_schema_that_active_rules_name_stays(context: OperationContext, plane: Plane) -> None:
    asked = models.FetchModel("/v1.0", SMALL.decode(), "acme")
    fetched = await models.fetch.perform(context, HOST, asked)
    by_things = "version: 1\nname: things\nrules: [{id: r, match: {resource: [user]}, verdict: allow}]\n"
    await rulesets.apply.perform(context, HOST, rulesets.ApplyRuleset(org="acme", yaml=by_things))
    gone = deletions.DeleteModel("acme", "v1.0")
    with pytest.raises(Conflict, match=r"the schema of /v1.0 is in use: things@1 names it"):
        await perform(deletions.delete_model, context, HOST, gone)
    await delete_ruleset(context, "things")
    assert (await perform(deletions.delete_model, context, HOST, gone)).id == fetched.digest
    assert (await models.list_all.perform(context, HOST, models.ListModels())).models == ()
    with pytest.raises(NotFound, match="the organisation has no schema"):
        await perform(deletions.delete_model, context, HOST, gone)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_command_asks_before_it_deletes(
    commands: Commands, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command for a deletion needs `--yes` if there is no terminal, because no operator can confirm."""
    await commands.facts("store", "org", "add", "acme")
    status, _, err = await commands.run("server", "org", "delete", "acme")
    assert status == 2
    assert err.splitlines()[-1] == "--yes: required to delete without a terminal"
    assert "stays: its audit events, kept for 30 days" in err
    await plane.ruleset("acme", "hr")
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    status, _, err = await commands.run("server", "ruleset", "delete", "hr")
    assert (status, err.splitlines()[-1]) == (1, "Delete ruleset hr? [y/N] nothing was changed")
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    status, out, _ = await commands.run("server", "ruleset", "delete", "hr")
    assert (status, "kind" in out) == (0, True)
    gone = await commands.facts("server", "org", "delete", "acme", "--yes")
    assert (gone["kind"], gone["name"]) == ("org", "acme")
    status, _, err = await commands.run("server", "org", "show", gone["id"])
    assert status == 1
    assert f"organisation acme was deleted on {gone['deletedAt']} by" in err


async def test_the_console_says_what_goes_before_and_who_did_it_after(
    context: OperationContext, plane: Plane
) -> None:
    proxy = await plane.proxy("edge-1", "acme")
    app = await plane.inventory.app("payroll")
    sent = event(app.org_id, 3, appId=app.app_id, rulesetVersion=1, time=rfc3339(plane.clock.wall_ms()))
    assert (await proxy.audit({"batchId": "b1", "events": [sent]})).status == 202
    spare = await context.resolve.ruleset(HOST, "viewer", "spare", None)
    async with visiting(plane) as visitor:
        path = f"/delete?kind=app&thing={app.app_id}"
        assert html.escape(path) in (await visitor.get(f"/apps/{app.app_id}")).text
        asked = (await visitor.get(path)).text
        assert f"The client ID {app.client_id} with its secrets and tokens" in asked
        assert "Its audit events, kept for 30 days" in asked
        done = await visitor.post("/delete", {"kind": "app", "thing": app.app_id})
        assert (done.status, done.led_to, done.flash) == (303, "/apps", "The app payroll is deleted.")
        for seen in (
            await visitor.get(f"/apps/{app.app_id}"),  # the link on an event's page
            await visitor.post("/delete", {"kind": "app", "thing": app.app_id}),  # the form is sent twice
        ):
            assert seen.status == 404
            assert "App payroll was deleted on 2026-11-21T12:00:00.000Z by ada" in seen.text
            assert f"/search?q=app%3A{app.app_id}" in seen.text
        await plane.ruleset("acme", "spare", RULESET.format(name="spare").replace("allow", "block"))
        form = {"kind": "ruleset", "thing": spare.ruleset_id, "expected": "1"}
        refused = await visitor.post("/delete", form)
        assert refused.status == 422
        assert "version 2 is active, but version 1 was expected" in refused.text
        assert 'name="expected" value="2"' in refused.text
        assert (await visitor.post("/delete", form | {"expected": "2"})).status == 303
        assert (await visitor.get("/delete?kind=planet&thing=x")).status in (400, 422)
        done = await visitor.post("/delete", {"kind": "org", "thing": app.org_id})
        assert (done.status, done.led_to) == (303, "/orgs")
        gone = await visitor.get(f"/orgs?org={app.org_id}")
        assert gone.status == 200
        for path in ("/search", "/audit/integrity", "/audit/report", f"/events/{app.org_id}/event-3"):
            seen = await visitor.get(f"{path}?org=acme+%28deleted+2026-11-21%29")
            assert (seen.status, path) == (200, path)
        linked = await visitor.get("/rulesets/acme/hr+%28deleted+2026-11-21%29".replace("+", "%20"))
        assert (linked.status, "was deleted on 2026-11-21" in linked.text) == (404, True)
        listed = await deletions.list_all.perform(context, HOST, deletions.ListDeletions())
        assert [(each.kind, each.name) for each in listed.deletions] == [
            ("org", "acme"), ("ruleset", "hr"), ("app", "payroll"), ("ruleset", "spare"),
        ]  # fmt: skip


async def test_deletions_among_syncs_and_changes_leave_no_half(
    context: OperationContext, plane: Plane
) -> None:
    """The first of two operators succeeds, and the second operator gets an error.

    No sync response that the proxy receives names a deleted object.
    """
    proxy = await plane.proxy("edge-1", "acme")
    names = [f"app-{number}" for number in range(6)]
    made = [(await plane.inventory.add_app(name, "acme", "hr")).app for name in names]
    spare = await context.resolve.ruleset(HOST, "viewer", "spare", None)

    async def deleted(app_id: str) -> bool:
        try:
            await context.store.delete_app(app_id, "ada")
        except NotFound:
            return False
        return True

    async def bound(app_id: str) -> None:
        with suppress(NotFound):
            await context.store.bind_app(app_id, spare.ruleset_id)

    async def dropped() -> None:
        with suppress(Conflict):
            await context.store.delete_ruleset(spare.ruleset_id, "ada", None)

    ids = [each.app_id for each in made]
    twice = [deleted(each) for each in ids for _ in range(2)]
    others = [*(bound(each) for each in ids), dropped()]
    results, _, synced = await asyncio.gather(
        asyncio.gather(*twice), asyncio.gather(*others), asyncio.gather(*(proxy.sync() for _ in range(4)))
    )
    assert sum(results) == len(ids)
    for response in (*synced, await proxy.sync()):
        content = response.json
        known = {each["rulesetId"] for each in content["rulesets"]}
        assert {each["rulesetId"] for each in content["apps"]} <= known
    assert {each["name"] for each in content["apps"]} == {"payroll"}


async def test_commands_name_a_deleted_organisation(
    context: OperationContext, plane: Plane, commands: Commands
) -> None:
    proxy = await plane.proxy("edge-1", "acme")
    org = await plane.inventory.org("acme")
    assert (await proxy.audit({"batchId": "b1", "events": [event(org.org_id, 1)]})).status == 202
    await perform(deletions.delete_app, context, HOST, apps.AppReference("payroll"))
    deleted = await perform(deletions.delete_org, context, HOST, orgs.OrgReference("acme"))
    await perform(orgs.add, context, HOST, orgs.AddOrg("acme"))
    verified = await commands.run("server", "audit", "verify")
    assert any(
        line.startswith("acme (deleted 2026-11-21): verified. 1 ") for line in verified[1].splitlines()
    )
    assert deleted.id not in verified[1]
    _, out, err = await commands.run("server", "audit", "search", "--org", "acme")
    said = "a deleted organisation also had the name acme: --org 'acme (deleted 2026-11-21)'"
    assert said in out + err
