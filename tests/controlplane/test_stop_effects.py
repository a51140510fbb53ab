"""Tests of an emergency stop: refused requests, proxies that applied the stop, and texts about them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from controlplane.operations import emergency, stop_effects
from controlplane.operations.context import OperationContext
from controlplane.operations.emergency import StopFacts
from controlplane.operations.stop_effects import StopEffect
from controlplane.operations.stop_words import consequences, remaining, what_stops
from controlplane.search.interface import SearchIndex
from controlplane.store.interface import NotFound, Said, StoreBusy
from tests.controlplane.plane import HEARTBEAT, Plane, ProxyClient, context_of
from tests.controlplane.test_emergency import OWNER, actor
from tests.controlplane.visitor import visiting

EFFECT = StopEffect(org="acme", app="payroll", apps=1, requests=412, proxies=3, sync_interval_seconds=10)


@pytest.fixture
def context(plane: Plane) -> OperationContext:
    return context_of(plane)


def test_the_words_name_what_will_fail() -> None:
    assert consequences(EFFECT) == (
        "payroll sent 412 requests in the last hour.",
        "All requests will get 403 from each of 3 proxies within about 10 s.",
    )
    assert what_stops(EFFECT) == "payroll"
    org = msgspec.structs.replace(EFFECT, app=None, apps=2, requests=None, proxies=1)
    assert consequences(org) == (
        "The number of requests that the 2 apps of acme sent in the last hour is not known now.",
        "All requests will get 403 from the one proxy within about 10 s.",
    )
    everything = msgspec.structs.replace(EFFECT, app=None, org=None, apps=1, requests=0, proxies=0)
    assert consequences(everything) == (
        "The 1 app of every organisation sent no request in the last hour.",
        "No proxy serves them now; a proxy that is added later refuses them.",
    )


def test_who_lifts_a_stop_reads_what_stays_stopped() -> None:
    def stop(org: str | None, app: str | None) -> StopFacts:
        scope = "app" if app else "org" if org else "all"
        return StopFacts(scope, org, org, app, app, "", "eve", "2026-11-21T12:00:00.000Z")  # type: ignore[arg-type]

    own, whole, other = stop("acme", "payroll"), stop("acme", None), stop("rival", "crm")
    assert remaining(own, [own]) == ("No other stop remains.",)
    assert remaining(own, [own, other]) == ("1 stop will remain: crm.",)
    assert remaining(own, [own, whole, other]) == (
        "2 stops will remain: organisation acme, crm.",
        "So payroll stays stopped.",
    )
    assert remaining(whole, [own, whole]) == ("1 stop will remain: payroll.",)


async def test_a_stop_to_come_covers_what_its_asker_sees_and_waits_for_no_search(
    plane: Plane, context: OperationContext
) -> None:
    async def busy() -> SearchIndex:
        raise StoreBusy("others search")

    context = replace(context, index=busy)
    for org in ("acme", "rival"):
        await plane.org(org)
        await plane.ruleset(org, f"{org}-rules")
        await plane.inventory.add_app(f"{org}-app", org, f"{org}-rules")
    viewer = await actor(context, "viewer")
    found = await stop_effects.effect.perform(context, viewer, stop_effects.StopToCome(app="acme-app"))
    assert (found.app, found.org, found.apps, found.requests, found.proxies) == (
        "acme-app",
        "acme",
        1,
        None,
        0,
    )
    with pytest.raises(NotFound):
        await stop_effects.effect.perform(context, viewer, stop_effects.StopToCome(app="rival-app"))
    everything = stop_effects.StopToCome()
    for name, org in (("edge", "acme"), ("far", "rival"), ("farther", "rival")):
        await plane.inventory.add_proxy(name, [org])
    found = await stop_effects.effect.perform(context, viewer, everything)
    assert (found.apps, found.proxies) == (1, 1), "of those that the viewer sees"
    found = await stop_effects.effect.perform(context, OWNER, everything)
    assert (found.apps, found.proxies) == (2, 3)


async def test_a_proxy_that_stops_by_its_own_file_is_named(plane: Plane, context: OperationContext) -> None:
    await plane.org("acme")
    file = "/var/stop stops what its lines name, at 2 of 2 workers"
    everything = "/var/stop stops everything, at 2 of 2 workers"
    details = {
        "edge-1": f"the control plane stops everything; {file}",
        "edge-2": "the control plane stops everything",
        "edge-3": None,
        "edge-4": everything,
    }
    for name, detail in details.items():
        added = await plane.inventory.add_proxy(name, ["acme"])
        check = {"status": "degraded", "detail": detail} if detail else {"status": "ok"}
        body = {"version": "1", "syncVersion": "x", "checks": {"stops": check}}
        said = Said(health="degraded" if detail else "ok")
        await plane.store.add_heartbeat(added.proxy_id, json.dumps(body), 0, said)
    found = await stop_effects.stop_files.perform(context, OWNER, stop_effects.StopFilesRequest())
    assert [(each.name, each.stops, each.everything) for each in found.proxies] == [
        ("edge-1", file, False),
        ("edge-4", everything, True),
    ]
    await plane.ruleset("acme", "hr")
    await plane.inventory.add_app("payroll", "acme", "hr")
    async with visiting(plane) as visitor:
        assert "stopped at 1 proxy" in (await visitor.get("/apps")).text


async def test_a_large_fleet_confirms_a_stop_without_making_the_version_of_every_proxy(
    plane: Plane, context: OperationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plane.org("acme")
    await emergency.stop_org.perform(context, OWNER, emergency.OrgToStop("acme"))
    plane.clock.advance(seconds=60)
    for number in range(50):
        added = await plane.inventory.add_proxy(f"edge-{number:02}", ["acme"])
        body = {"version": "1", "syncVersion": "x", "syncAgeSeconds": 90 if number < 20 else 1}
        await plane.store.add_heartbeat(added.proxy_id, json.dumps(body), None)
    made: list[str] = []
    make = plane.store.sync_version

    async def counted(proxy_id: str, *more: Any) -> str | None:
        made.append(proxy_id)
        return await make(proxy_id, *more)

    monkeypatch.setattr(plane.store, "sync_version", counted)
    found = await stop_effects.reach.perform(context, OWNER, stop_effects.StopPlace(org="acme"))
    assert found.in_force == 30
    assert [each.state for each in found.proxies] == ["waiting"] * 20 + ["inForce"] * 30
    assert len(made) == 20
    assert set(made) == {each.proxy_id for each in found.proxies[:20]}, "the others say it by themselves"


async def test_a_proxy_confirms_a_stop_by_the_version_that_it_has(
    plane: Plane, proxy: ProxyClient, context: OperationContext
) -> None:
    place = stop_effects.StopPlace(org="acme")

    async def states() -> list[tuple[str, str, str | None]]:
        found = await stop_effects.reach.perform(context, OWNER, place)
        return [(each.name, each.state, each.in_force_at) for each in found.proxies]

    async def beat(version: str, age: float | None = None) -> None:
        said = {"version": "1", "syncVersion": version}
        if age is not None:
            said["syncAgeSeconds"] = age  # type: ignore[assignment]
        assert (await proxy.send(HEARTBEAT, json.dumps(said).encode())).status < 300

    assert await states() == [], "there is no stop"
    before = (await proxy.sync()).json["version"]
    await beat(before)
    await emergency.stop_org.perform(context, OWNER, emergency.OrgToStop("acme"))
    (name, state, at) = (await states())[0]
    assert (state, at) == ("waiting", None), "its heartbeat is older than the stop"
    plane.clock.advance(seconds=7)
    await beat(before)
    assert (await states())[0][1] == "waiting", "it still has the version before"
    current = (await proxy.sync()).json["version"]
    assert current != before
    await beat(current)
    assert await states() == [(name, "inForce", "2026-11-21T12:00:07.000Z")]
    plane.clock.advance(seconds=60)
    await beat(before, age=50)
    assert await states() == [(name, "inForce", "2026-11-21T12:00:07.000Z")], "confirmed since, so it has it"
    current = (await proxy.sync()).json["version"]
    await emergency.lift_org.perform(context, OWNER, emergency.StoppedOrg("acme"))
    plane.clock.advance(seconds=1)
    await emergency.stop_org.perform(context, OWNER, emergency.OrgToStop("acme"))
    await plane.store.set_proxy_enabled(proxy.proxy_id, False)
    assert (await states())[0][1] == "disabled", "it is told nothing any more"
    await plane.store.set_proxy_enabled(proxy.proxy_id, True)
    plane.clock.advance(hours=1)
    assert (await states())[0][1] == "unreachable"
