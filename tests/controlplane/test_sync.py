"""Tests of sync: a proxy receives signed rules, and never receives an older state after a newer state."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from controlplane.operations import apps
from controlplane.operations.actor import local_actor
from controlplane.operations.operation import InvalidRequest
from controlplane.store.interface import Conflict, NotFound, Stop
from proxy.wire.audit_event import rfc3339
from tests.controlplane.plane import RULESET, FakeClock, Plane, ProxyClient, Response, context_of, started

HOUR_MS = 3_600_000


async def test_a_proxy_is_given_its_organisations_apps_and_rulesets(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    ruleset = await plane.ruleset("acme", "hr-sync")
    created = await plane.inventory.add_app("payroll", "acme", "hr-sync")
    response = await proxy.sync()
    assert response.status == 200
    content = response.json
    assert content["orgs"] == [{"orgId": org, "name": "acme"}]
    (app,) = content["apps"]
    (secret_hash,) = app.pop("secretHashes")
    ((credential_id, credential),) = ((each.pop("id"), each) for each in app.pop("credentials"))
    assert credential == {"kind": "secret", "hash": secret_hash, "endsAt": None}
    assert re.fullmatch("crd-[0-9a-f]{12}", credential_id)
    assert app == {
        "appId": created.app.app_id,
        "orgId": org,
        "name": "payroll",
        "clientId": created.app.client_id,
        "secretVersion": 1,
        "rulesetId": ruleset,
        "enabled": True,
    }
    assert secret_hash.startswith("$argon2id$")
    assert PasswordHasher().verify(secret_hash, created.client_secret)
    assert content["rulesets"] == [
        {
            "rulesetId": ruleset,
            "orgId": org,
            "name": "hr-sync",
            "version": 1,
            "yaml": RULESET.format(name="hr-sync"),
        }
    ]
    assert content["metadata"] == {
        "syncIntervalSeconds": 30,
        "proxyId": proxy.proxy_id,
        "provesUnchanged": True,
        "linger": {"seconds": 1.5, "orgs": {org: 1.5}},
    }
    assert content["generatedAt"] == "2026-11-21T12:00:00.000Z"
    assert created.client_secret not in response.body.decode()


async def test_proxies_linger_longer_as_they_become_more(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    before = await proxy.sync()
    others = [await plane.proxy(f"other-{number}", "acme") for number in range(7)]
    after = await proxy.sync(before.headers["ETag"])
    assert (after.status, after.json["metadata"]["linger"]["orgs"]) == (200, {org: 6.0})
    await plane.inventory.set_proxy_enabled(others[0].proxy_id, False)
    # Seven have the time of eight, so the report needs no warning.
    assert (await proxy.sync(after.headers["ETag"])).status == 304


async def test_nothing_of_another_tenant_is_sent(plane: Plane, proxy: ProxyClient) -> None:
    foreign = await plane.org("rival")
    await plane.ruleset("rival", "secret-rules")
    await plane.inventory.add_app("secret-app", "rival", "secret-rules")
    response = await proxy.sync()
    assert response.json["apps"] == response.json["rulesets"] == []
    assert foreign not in response.body.decode()
    # A new version does not reveal either that something happened there.
    await plane.inventory.add_app("second", "rival", "secret-rules")
    assert (await proxy.sync(response.headers["ETag"])).status == 304


def _assert_signed(proxy: ProxyClient, response: Response, request_signature: str) -> None:
    payload = b"response." + request_signature.encode() + b"." + response.body
    expected = hmac.new(proxy.hmac_secret.encode(), payload, hashlib.sha256).hexdigest()
    assert response.headers["X-Hmac-Signature"] == expected


async def test_the_response_is_signed_for_this_very_request(proxy: ProxyClient) -> None:
    headers = proxy.headers(b"")
    response = await proxy.send("/api/v1/agent/sync", headers=headers)
    _assert_signed(proxy, response, headers["X-Hmac-Signature"])
    headers["If-None-Match"] = response.headers["ETag"]
    unchanged = await proxy.send("/api/v1/agent/sync", headers=headers)
    assert (unchanged.status, unchanged.body) == (304, b"")
    _assert_signed(proxy, unchanged, headers["X-Hmac-Signature"])


async def test_if_none_match_may_name_several_and_be_weak_or_strong(proxy: ProxyClient) -> None:
    etag = (await proxy.sync()).headers["ETag"]
    strong = etag.removeprefix("W/")
    for match in (etag, strong, f'"x", {etag}', f'"x" ,W/"y",{strong}'):
        assert (await proxy.sync(match)).status == 304
    for match in ("", '"x"', "*", etag[:-2], "é", ",,,", '"' * 1000):
        assert (await proxy.sync(match)).status == 200


async def test_each_change_is_a_new_version(plane: Plane, proxy: ProxyClient) -> None:
    inventory = plane.inventory
    await plane.ruleset("acme", "one")
    await plane.ruleset("acme", "two")
    await inventory.add_app("payroll", "acme", "one")
    seen = [(await proxy.sync()).headers["ETag"]]

    async def changed() -> None:
        assert (await proxy.sync(seen[-1])).status == 200
        seen.append((await proxy.sync()).headers["ETag"])
        assert (await proxy.sync(seen[-1])).status == 304

    await inventory.set_app_enabled("payroll", None, False)
    await changed()
    assert (await proxy.sync()).json["apps"][0]["enabled"] is False
    await inventory.set_app_enabled("payroll", None, True)
    await changed()
    await inventory.bind_app("payroll", None, "two")
    await changed()
    await inventory.rotate_secret("payroll", None, 0)
    await changed()
    await plane.ruleset("acme", "one", RULESET.format(name="one") + "# changed\n")
    await changed()
    await inventory.roll_back("one", "acme")
    await changed()
    # A state that was there before gets a new version too: a version is never used again.
    assert len(set(seen)) == len(seen)


async def test_generated_at_never_goes_back(tmp_path: Path, clock: FakeClock) -> None:
    times = []
    async with started(tmp_path, clock) as plane:
        await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        times.append((await proxy.sync()).json["generatedAt"])
        clock.wall -= 24 * HOUR_MS
        times.append((await proxy.sync()).json["generatedAt"])
        await plane.ruleset("acme", "one")
        times.append((await proxy.sync()).json["generatedAt"])
    async with started(tmp_path, clock) as plane:
        proxy.base_url, proxy.session = plane.base_url, plane.session
        await plane.ruleset("acme", "two")
        times.append((await proxy.sync()).json["generatedAt"])
    assert times == sorted(times)
    assert len(set(times)) == 4


async def test_generated_at_recovers_from_a_clock_that_was_days_ahead(
    plane: Plane, proxy: ProxyClient, clock: FakeClock
) -> None:
    """Proxies refuse rules from the future, so rules with a time in the future would never be active."""
    begun = clock.wall
    clock.wall += 3 * 24 * HOUR_MS
    assert (await proxy.sync()).json["generatedAt"] == rfc3339(clock.wall)
    clock.wall = begun
    assert (await proxy.sync()).json["generatedAt"] == rfc3339(begun)


async def test_a_rotation_without_grace_revokes_the_old_secret_and_its_version(
    plane: Plane, proxy: ProxyClient
) -> None:
    await plane.ruleset("acme", "one")
    old = await plane.inventory.add_app("payroll", "acme", "one")
    new = await plane.inventory.rotate_secret("payroll", "acme", 0)
    (app,) = (await proxy.sync()).json["apps"]
    assert app["secretVersion"] == 2
    (secret_hash,) = app["secretHashes"]
    assert PasswordHasher().verify(secret_hash, new.client_secret)
    assert new.client_secret != old.client_secret


async def test_a_rotation_with_grace_keeps_the_old_secret_and_its_tokens_until_the_grace_ends(
    plane: Plane, proxy: ProxyClient, clock: FakeClock
) -> None:
    await plane.ruleset("acme", "one")
    await plane.inventory.add_app("payroll", "acme", "one")
    await plane.inventory.rotate_secret("payroll", "acme", 24 * HOUR_MS)
    response = await proxy.sync()
    (app,) = response.json["apps"]
    assert (app["secretVersion"], len(app["secretHashes"])) == (1, 2)
    clock.advance(hours=23.9)
    assert (await proxy.sync(response.headers["ETag"])).status == 304
    clock.advance(hours=0.1)
    # The end of a credential is a change by itself, even if no operator changed the application.
    ended = await proxy.sync(response.headers["ETag"])
    (after,) = ended.json["apps"]
    assert (after["secretVersion"], after["secretHashes"]) == (2, app["secretHashes"][:1])


async def test_a_secret_that_was_given_an_end_is_refused_from_then_on(
    plane: Plane, proxy: ProxyClient, clock: FakeClock
) -> None:
    async def synced(etag: str | None = None) -> tuple[int, int, str]:
        response = await proxy.sync(*([etag] if etag else []))
        (app,) = response.json["apps"]
        return app["secretVersion"], len(app["secretHashes"]), response.headers["ETag"]

    context, owner = context_of(plane), local_actor("owner")
    await plane.ruleset("acme", "one")
    ends = rfc3339(clock.wall_ms() + 10 * HOUR_MS)
    await apps.add.perform(context, owner, apps.AddApp("payroll", "acme", "one", expires=ends))
    version, secrets, etag = await synced()
    assert (version, secrets) == (1, 1)
    clock.advance(hours=9.9)
    assert (await proxy.sync(etag)).status == 304
    clock.advance(hours=0.1)
    assert (await synced(etag))[:2] == (0, 0), "no secret is right, and no token has version 0"
    shown = await apps.show.perform(context, owner, apps.AppReference("payroll"))
    assert (shown.secrets, shown.newest_secret, shown.secret_expires_at) == ((), 1, ends)
    with pytest.raises(Conflict):
        await apps.rotate_secret.perform(context, owner, apps.RotateSecret("payroll", expected=2))
    again = apps.RotateSecret("payroll", grace_seconds=86_400, expected=1, expires="2h")
    assert (await apps.rotate_secret.perform(context, owner, again)).secret_version == 2
    assert (await synced())[:2] == (2, 1)
    clock.advance(hours=2)
    assert (await synced())[:2] == (0, 0)
    for wrong in ("-7d", "soon", "2026-01-01", "99999d", rfc3339(clock.wall_ms())):
        with pytest.raises(InvalidRequest, match="expires: "):
            await apps.rotate_secret.perform(context, owner, apps.RotateSecret("payroll", expires=wrong))


async def test_an_emergency_rotation_ends_a_running_grace(plane: Plane, proxy: ProxyClient) -> None:
    await plane.ruleset("acme", "one")
    await plane.inventory.add_app("payroll", "acme", "one")
    await plane.inventory.rotate_secret("payroll", "acme", 24 * HOUR_MS)
    await plane.inventory.rotate_secret("payroll", "acme", 0)
    (app,) = (await proxy.sync()).json["apps"]
    assert (app["secretVersion"], len(app["secretHashes"])) == (3, 1)
    # A clock that is set back does not make an ended credential valid again.
    plane.clock.wall -= 365 * 24 * HOUR_MS
    (app,) = (await proxy.sync()).json["apps"]
    assert (app["secretVersion"], len(app["secretHashes"])) == (3, 1)


async def test_a_revoked_organisation_is_no_longer_sent(plane: Plane, proxy: ProxyClient) -> None:
    await plane.ruleset("acme", "one")
    assert len((await proxy.sync()).json["rulesets"]) == 1
    await plane.inventory.revoke("edge-1", "acme")
    content = (await proxy.sync()).json
    assert content["orgs"] == content["apps"] == content["rulesets"] == []


async def test_what_is_stopped_is_told_and_not_enabled_for_older_proxies(
    plane: Plane, proxy: ProxyClient
) -> None:
    (org,) = proxy.org_ids
    await plane.ruleset("acme", "one")
    payroll = (await plane.inventory.add_app("payroll", "acme", "one")).app
    crm = (await plane.inventory.add_app("crm", "acme", "one")).app
    foreign_org = await plane.org("rival")
    await plane.ruleset("rival", "rules")
    foreign = (await plane.inventory.add_app("crm", "rival", "rules")).app

    async def report() -> tuple[dict[str, bool], Any]:
        content = (await proxy.sync()).json
        return {app["name"]: app["enabled"] for app in content["apps"]}, content.get("stops")

    async def stop(org_id: str | None, app_id: str | None) -> None:
        await plane.store.add_stop(Stop(org_id, app_id, "", "ada", 7))

    assert await report() == ({"crm": True, "payroll": True}, None)
    before = (await proxy.sync()).headers["ETag"]
    await stop(foreign_org, None)
    await stop(foreign_org, foreign.app_id)
    assert (await proxy.sync(before)).status == 304  # a stop of another organisation is not visible
    await stop(org, payroll.app_id)
    one = {"everything": False, "orgs": [], "apps": [payroll.app_id]}
    assert await report() == ({"crm": True, "payroll": False}, one)
    await stop(org, None)
    assert await report() == ({"crm": False, "payroll": False}, one | {"orgs": [org]})
    await plane.store.lift_stop(org, None)
    await stop(None, None)
    assert await report() == ({"crm": False, "payroll": False}, one | {"everything": True})
    await plane.store.lift_stop(None, None)
    await plane.store.lift_stop(org, payroll.app_id)
    await plane.inventory.set_app_enabled(crm.app_id, None, False)
    # lifting the stop enables no disabled app
    assert await report() == ({"crm": False, "payroll": True}, None)


async def test_a_shadow_ruleset_is_told_where_there_is_one(plane: Plane, proxy: ProxyClient) -> None:
    await plane.ruleset("acme", "one")
    other = await plane.ruleset("acme", "two")
    await plane.inventory.add_app("payroll", "acme", "one")
    seen = [(await proxy.sync()).headers["ETag"]]
    assert (await plane.inventory.set_shadow("payroll", None, "two")).shadow_ruleset_name == "two"
    response = await proxy.sync(seen[-1])
    assert response.json["apps"][0]["shadowRulesetId"] == other
    assert response.json["apps"][0]["rulesetId"] != other
    promoted = await plane.inventory.promote_shadow("payroll", None)
    assert (promoted.ruleset_id, promoted.shadow_ruleset_id) == (other, None)
    response = await proxy.sync(response.headers["ETag"])
    assert response.json["apps"][0]["rulesetId"] == other
    assert "shadowRulesetId" not in response.json["apps"][0]
    with pytest.raises(NotFound, match="no shadow ruleset"):
        await plane.inventory.promote_shadow("payroll", None)


async def test_a_foreign_ruleset_can_not_be_tried_out(plane: Plane, proxy: ProxyClient) -> None:
    await plane.org("rival")
    foreign = await plane.ruleset("rival", "theirs")
    await plane.ruleset("acme", "one")
    await plane.inventory.add_app("payroll", "acme", "one")
    for reference in ("theirs", foreign):
        with pytest.raises(NotFound):
            await plane.inventory.set_shadow("payroll", None, reference)
