"""Tests of the fleet overview, which is computed from signed heartbeats, metrics and batches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.operations import fleet
from controlplane.operations.actor import Actor, Role, local_actor
from controlplane.store.interface import NotFound
from tests.controlplane.plane import HEARTBEAT, METRICS, RULESET, Plane, ProxyClient, batch, context_of
from tests.controlplane.test_admin import call, operator
from tests.controlplane.test_reports import GOOD_HEARTBEAT, GOOD_METRICS

OPERATOR = local_actor("test")


async def beat(proxy: ProxyClient, **members: Any) -> None:
    body = {**GOOD_HEARTBEAT, "checks": {}, "oldestPendingSeconds": 0, **members}
    response = await proxy.send(HEARTBEAT, json.dumps(body).encode())
    assert response.status == 200, response.body


async def listed(plane: Plane, actor: Actor = OPERATOR, **members: Any) -> dict[str, fleet.ProxyHealth]:
    found = await fleet.list_all.perform(context_of(plane), actor, fleet.ListFleet(**members))
    return {each.name: each for each in found.proxies}


async def shown(plane: Plane, proxy: str, actor: Actor = OPERATOR) -> fleet.ProxyDetails:
    return await fleet.show.perform(context_of(plane), actor, fleet.ProxyReference(proxy=proxy))


async def rollout(plane: Plane, actor: Actor = OPERATOR, **members: Any) -> dict[str, fleet.ProxyRollout]:
    found = await fleet.rollout.perform(
        context_of(plane), actor, fleet.RolloutRequest(ruleset="hr", **members)
    )
    return {each.name: each for each in found.proxies}


async def test_health_follows_the_age_of_the_last_heartbeat(plane: Plane, proxy: ProxyClient) -> None:
    assert (await listed(plane))["edge-1"].health == "no heartbeat"
    await beat(proxy)
    assert (await listed(plane))["edge-1"].health == "ok"
    plane.clock.advance(seconds=91)
    one = (await listed(plane))["edge-1"]
    assert (one.health, one.reasons, one.heartbeat_age_seconds) == ("stale", ("no heartbeat for 91 s",), 91)
    plane.clock.advance(seconds=300)
    assert (await listed(plane))["edge-1"].health == "failed"
    await beat(proxy)
    assert (await listed(plane))["edge-1"].health == "ok"


@pytest.mark.parametrize(
    ("seconds", "skew", "health"), [(0, 0, "ok"), (120, 120, "degraded"), (-120, -119, "degraded")]
)
async def test_the_clock_of_a_proxy_is_measured_by_its_timestamp(
    plane: Plane, proxy: ProxyClient, seconds: int, skew: int, health: str
) -> None:
    timestamp = str(plane.clock.wall_ms() // 1000 + seconds)
    body = json.dumps({**GOOD_HEARTBEAT, "checks": {}}).encode()
    assert (await proxy.send(HEARTBEAT, body, timestamp=timestamp)).status == 200
    one = (await listed(plane))["edge-1"]
    assert (one.clock_skew_seconds, one.health) == (skew, health)


async def test_a_proxy_that_names_its_rulesets_is_known_version_by_version(
    plane: Plane, proxy: ProxyClient
) -> None:
    ruleset_id = await plane.ruleset("acme", "hr")
    await beat(proxy, rulesets={ruleset_id: 1, "foreign": 7}, syncVersion="1-x")
    (rules,) = (await listed(plane))["edge-1"].rulesets
    assert (rules.name, rules.state, rules.version, rules.in_force) == ("hr", "enforced", 1, 1)
    plane.clock.advance(seconds=10)
    await plane.ruleset("acme", "hr", RULESET.format(name="hr") + "# 2\n")
    plane.clock.advance(seconds=10)
    await plane.ruleset("acme", "hr", RULESET.format(name="hr") + "# 3\n")
    await beat(proxy, rulesets={ruleset_id: 1})
    (rules,) = (await listed(plane))["edge-1"].rulesets
    # A proxy is outdated since the first version that it lacks became active, not since the last one.
    assert (rules.state, rules.version, rules.in_force, rules.behind_seconds) == ("behind", 1, 3, 10)
    plane.clock.advance(seconds=85)
    await beat(proxy, rulesets={ruleset_id: 1})
    one = (await listed(plane))["edge-1"]
    assert (one.health, one.reasons) == (
        "degraded",
        ("it has been behind the active rules for 95 s",),
    )
    await beat(proxy, rulesets={})
    assert (await listed(plane))["edge-1"].rulesets[0].state == "missing"


async def test_an_older_proxy_is_known_by_its_sync_version_and_else_unknown(
    plane: Plane, proxy: ProxyClient
) -> None:
    await plane.ruleset("acme", "hr")
    version = (await proxy.sync()).json["version"]
    await beat(proxy, syncVersion=version)
    (rules,) = (await listed(plane))["edge-1"].rulesets
    assert (rules.state, rules.version) == ("enforced", 1)
    await plane.ruleset("acme", "hr", RULESET.format(name="hr") + "# 2\n")
    (rules,) = (await listed(plane))["edge-1"].rulesets
    assert (rules.state, rules.version) == ("unknown", None)
    # The proxy fetched the new rules. Its next heartbeat reports whether they are active.
    assert (await proxy.sync()).status == 200
    assert (await listed(plane))["edge-1"].rulesets[0].state == "unknown"


async def test_a_rollout_names_who_has_arrived_and_who_has_not(plane: Plane, proxy: ProxyClient) -> None:
    second, third, cut_off = [await plane.proxy(f"edge-{number}", "acme") for number in (2, 3, 4)]
    await plane.org("beta")
    await plane.proxy("of-others", "beta")
    ruleset_id = await plane.ruleset("acme", "hr")
    await beat(third, rulesets={ruleset_id: 1})
    plane.clock.advance(seconds=310)
    await plane.ruleset("acme", "hr", RULESET.format(name="hr") + "# 2\n")
    plane.clock.advance(seconds=5)
    await beat(proxy, rulesets={ruleset_id: 2})
    await beat(second, rulesets={ruleset_id: 1})
    await beat(cut_off, rulesets={ruleset_id: 1})
    await plane.inventory.set_proxy_enabled("edge-4", False)
    found = await rollout(plane)
    assert {name: (each.state, each.version) for name, each in found.items()} == {
        "edge-1": ("enforced", 2),
        "edge-2": ("behind", 1),
        "edge-3": ("lost", 1),
        "edge-4": ("disabled", 1),
    }
    assert (found["edge-1"].behind_seconds, found["edge-2"].behind_seconds) == (None, 5)
    # A later version than the requested one is accepted.
    assert (await rollout(plane, version=1))["edge-2"].state == "enforced"
    with pytest.raises(NotFound, match="ruleset hr has no version 9"):
        await rollout(plane, version=9)


async def test_curves_restarts_and_gaps_of_one_proxy(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    for number in range(3):
        window = {
            **GOOD_METRICS,
            "windowStart": f"2026-11-21T12:0{number}:00.000Z",
            "windowEnd": f"2026-11-21T12:0{number + 1}:00.000Z",
            "evaluated": 60 * (number + 1),
        }
        assert (await proxy.send(METRICS, json.dumps(window).encode())).status == 200
        plane.clock.advance(seconds=60)
    await beat(proxy, uptimeSeconds=100)
    plane.clock.advance(seconds=30)
    await beat(proxy, uptimeSeconds=4, lastSeq={org: 12})
    await proxy.audit(batch("b1", org, [1, 2, 7, 9]))
    one = await shown(plane, "edge-1")
    assert [each.requests_per_second for each in one.windows] == [1.0, 2.0, 3.0]
    assert one.requests_per_second == (1.0, 2.0, 3.0)
    assert one.windows[0].p50_ms == pytest.approx(0.5 + 0.5 * 2 / 6, abs=0.001)
    assert one.restarts == ("2026-11-21T12:03:26.000Z",)
    (sequence,) = one.sequences
    assert (sequence.highest_seq, sequence.missing, sequence.missing_count) == (9, ((3, 6), (8, 8)), 5)
    assert (sequence.unlisted_count, sequence.undelivered) == (0, 3)
    assert [each.uptime_seconds for each in one.heartbeats] == [4, 100]


async def test_the_address_that_a_proxy_reports_is_pasted_into_no_shell_unless_it_is_one(
    plane: Plane, proxy: ProxyClient
) -> None:
    found = {}
    for said in (
        "https://graph.contoso.example:8443",
        "http://[2001:db8::1]",
        "https://x/$(id)",
        "x y",
        None,
    ):
        await beat(proxy, publicBaseUrl=said)
        found[said] = (await listed(plane))["edge-1"].public_base_url
    assert list(found.values()) == ["https://graph.contoso.example:8443", "http://[2001:db8::1]", *[None] * 3]


async def _viewer(plane: Plane, org: str, role: Role = "viewer") -> Actor:
    return Actor("someone", {(await plane.inventory.org(org)).org_id: role})


async def test_who_sees_one_organisation_learns_nothing_of_the_others_on_the_same_proxy(plane: Plane) -> None:
    acme, beta = await plane.org("acme"), await plane.org("beta")
    shared, foreign = await plane.proxy("shared", "acme", "beta"), await plane.proxy("foreign", "beta")
    await plane.ruleset("beta", "secret-rules")
    await plane.ruleset("acme", "hr")
    checks = {"audit": {"status": "degraded", "detail": f"organisation {beta}: refused"}}
    await beat(shared, checks=checks, lastSeq={acme: 3, beta: 4})
    await beat(foreign)
    assert (await shared.send(METRICS, json.dumps(GOOD_METRICS).encode())).status == 200
    await shared.audit(batch("b1", beta, [1, 3]))
    viewer = await _viewer(plane, "acme")
    assert list(await listed(plane, viewer)) == ["shared"]
    with pytest.raises(NotFound):
        await shown(plane, "foreign", viewer)
    with pytest.raises(NotFound):
        await listed(plane, viewer, org="beta")
    with pytest.raises(NotFound):
        await fleet.rollout.perform(context_of(plane), viewer, fleet.RolloutRequest(ruleset="secret-rules"))
    one = await shown(plane, "shared", viewer)
    text = repr(one)
    assert beta not in text
    assert "beta" not in text
    assert "secret-rules" not in text
    assert (one.health, one.orgs, one.windows, one.metrics, one.audit_pending) == (
        "degraded",
        ("acme",),
        (),
        None,
        None,
    )
    whole = await shown(plane, "shared")
    assert beta in repr(whole)
    assert len(whole.windows) == 1


async def test_the_admin_api_tells_the_same(plane: Plane, proxy: ProxyClient) -> None:
    ruleset_id = await plane.ruleset("acme", "hr")
    await beat(proxy, rulesets={ruleset_id: 1})
    token = await operator(plane, "ada", {"acme": "viewer"})
    response = await call(plane, token, "GET", "/fleet?org=acme")
    (one,) = response.json["proxies"]
    assert (one["name"], one["health"], one["rulesets"][0]["state"]) == ("edge-1", "ok", "enforced")
    assert (await call(plane, token, "GET", "/fleet/edge-1")).json["proxyId"] == proxy.proxy_id
    found = (await call(plane, token, "GET", "/rulesets/hr/rollout?version=1")).json
    assert (found["name"], found["version"], found["proxies"][0]["state"]) == ("hr", 1, "enforced")
