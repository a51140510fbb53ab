"""Tests of a proxy with a fault in its audit trail: unhealthy until an operator acknowledges the fault."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.cli.integrity import _sentence
from controlplane.cli.moments import Clock
from controlplane.integrity import chain_key
from controlplane.master_key import open_vault
from controlplane.operations import fleet, integrity, proxies
from controlplane.operations.actor import local_actor
from controlplane.operations.fleet import ProxyHealth
from controlplane.operations.integrity import in_words
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.operator_log import SearchOperatorLog
from controlplane.operations.operator_log import search as search_operator_log
from controlplane.operations.perform import perform
from controlplane.store.interface import Conflict
from proxy.wire.audit_event import rfc3339
from tests.controlplane.plane import (
    HEARTBEAT,
    FakeClock,
    Plane,
    ProxyClient,
    batch,
    context_of,
    event,
    started,
)
from tests.controlplane.test_metrics import scraped
from tests.controlplane.visitor import visiting
from tests.fakes.ports import free_port

ADA = local_actor("ada")
DAY_MS = 86_400_000


async def _healths(plane: Plane) -> list[ProxyHealth]:
    found = await perform(fleet.list_all, context_of(plane), ADA, fleet.ListFleet())
    return list(found.proxies)


async def _health(plane: Plane) -> tuple[str, tuple[str, ...]]:
    (found,) = await _healths(plane)
    return found.health, found.reasons


async def _acknowledge(plane: Plane, **members: Any) -> proxies.Acknowledged:
    asked = proxies.AcknowledgeLosses(proxy="edge-1", **{"note": "its disk failed", **members})
    return await perform(proxies.acknowledge, context_of(plane), ADA, asked)


@pytest.fixture
async def well(proxy: ProxyClient) -> ProxyClient:
    """Return a proxy that has sent heartbeats and the events with the numbers 1 to 3."""
    checks = {"sync": {"status": "ok"}}
    assert (await proxy.send(HEARTBEAT, json.dumps({"checks": checks}).encode())).status == 200
    assert (await proxy.audit(batch("b1", proxy.org_ids[0], [1, 2, 3]))).status == 202
    return proxy


async def test_a_proxy_with_missing_events_is_degraded_until_they_come(
    plane: Plane, well: ProxyClient
) -> None:
    (org,) = well.org_ids
    assert await _health(plane) == ("ok", ())
    await well.audit(batch("b2", org, [6, 9]))
    health, reasons = await _health(plane)
    assert health == "degraded"
    assert reasons == ("4 events never arrived: their sequence numbers are missing",)
    assert (await _healths(plane))[0].missing_events == 4
    await well.audit(batch("b3", org, [4, 5, 7, 8]))
    assert await _health(plane) == ("ok", ())


async def test_a_clock_that_was_ahead_for_a_while_hides_no_later_report(
    plane: Plane, well: ProxyClient
) -> None:
    """The control plane's own clock was ahead for a while before the test."""
    plane.clock.wall += 400 * DAY_MS
    beat = json.dumps({"checks": {"audit": {"status": "failed"}}}).encode()
    assert (await well.send(HEARTBEAT, beat)).status == 200
    assert (await _health(plane))[0] == "failed"
    plane.clock.wall -= 400 * DAY_MS - 1000
    beat = json.dumps({"checks": {"audit": {"status": "ok"}}}).encode()
    assert (await well.send(HEARTBEAT, beat)).status == 200
    assert await _health(plane) == ("ok", ())


async def test_events_under_numbers_of_others_count_against_the_proxy(
    plane: Plane, well: ProxyClient
) -> None:
    (org,) = well.org_ids
    await well.audit({"batchId": "b2", "events": [event(org, 2, id="another")]})
    assert await _health(plane) == (
        "degraded",
        ("1 event reused sequence numbers of earlier events",),
    )


async def test_a_loss_that_was_acknowledged_no_longer_counts_and_later_ones_do(
    plane: Plane, well: ProxyClient
) -> None:
    (org,) = well.org_ids
    await well.audit(batch("b2", org, [6]))
    await well.audit({"batchId": "b3", "events": [event(org, 2, id="another")]})
    done = await _acknowledge(plane)
    assert (done.missing, done.repeated, done.implausible) == (2, 1, 0)
    assert await _health(plane) == ("ok", ())
    await well.audit(batch("b4", org, [9]))
    assert await _health(plane) == (
        "degraded",
        ("2 events never arrived: their sequence numbers are missing",),
    )
    details = await perform(fleet.show, context_of(plane), ADA, fleet.ProxyReference(proxy="edge-1"))
    (sequence,) = details.sequences
    assert sequence.missing == ((4, 5), (7, 8))
    assert (sequence.missing_count, sequence.unacknowledged.missing) == (4, 2)
    assert (sequence.acknowledged_by, sequence.acknowledged_note) == ("local:ada", "its disk failed")


async def test_an_acknowledged_gap_that_closes_in_part_stays_acknowledged(
    plane: Plane, well: ProxyClient
) -> None:
    (org,) = well.org_ids
    await well.audit(batch("b2", org, [10]))
    await _acknowledge(plane)
    await well.audit(batch("b3", org, [6]))  # splits the range into two
    assert await _health(plane) == ("ok", ())


async def test_an_acknowledgement_is_in_the_operator_log_with_its_note(
    plane: Plane, well: ProxyClient
) -> None:
    await _acknowledge(plane, org=well.org_ids[0])
    found = await perform(
        search_operator_log, context_of(plane), ADA, SearchOperatorLog(operation="proxy.acknowledge")
    )
    (line,) = found.lines
    assert (line.operator, line.outcome, line.orgs) == ("local:ada", "done", tuple(well.org_ids))
    assert line.request["note"] == "its disk failed"


async def test_losses_that_nobody_saw_are_not_acknowledged(plane: Plane, well: ProxyClient) -> None:
    (org,) = well.org_ids
    await well.audit(batch("b2", org, [6]))
    seen = proxies.ExpectedLosses(missing=2, repeated=0, implausible=0)
    await well.audit(batch("b3", org, [9]))
    with pytest.raises(Conflict):
        await _acknowledge(plane, org=org, expected=seen)
    assert (await _health(plane))[0] == "degraded"


async def test_an_acknowledgement_says_why(plane: Plane, well: ProxyClient) -> None:
    with pytest.raises(InvalidRequest, match="note"):
        await _acknowledge(plane, note=" ")


async def test_metrics_have_what_is_not_acknowledged(tmp_path: Path, clock: FakeClock) -> None:
    listen = {"Metrics": f'Listen = "127.0.0.1:{free_port()}"'}
    async with started(tmp_path, clock, **listen) as plane:
        org = await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        await proxy.audit(batch("b1", org, [1, 4]))
        found = await scraped(plane)
        assert found["proxy_losses", "missing", "edge-1"] == 2
        assert (found["retention_failing",], found["broken_chains",]) == (0, 0)
        await _acknowledge(plane)
        found = await scraped(plane)
        assert found["proxy_losses", "missing", "edge-1"] == 0
        assert found["proxy_missing_events", "edge-1"] == 2


async def test_what_a_proxy_lost_stays_visible_after_it_was_disabled(
    tmp_path: Path, clock: FakeClock
) -> None:
    listen = {"Metrics": f'Listen = "127.0.0.1:{free_port()}"'}
    async with started(tmp_path, clock, **listen) as plane:
        org = await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        await proxy.audit(batch("b1", org, [1, 4]))
        await plane.store.set_proxy_enabled(proxy.proxy_id, False)
        found = await scraped(plane)
        assert found["proxy_losses", "missing", "edge-1"] == 2
        assert ("proxy_last_seen_timestamp_seconds", "edge-1") not in found
        async with visiting(plane) as visitor:
            assert "2 events never arrived" in (await visitor.get("/")).text
            await _acknowledge(plane)
            assert "2 events never arrived" not in (await visitor.get("/")).text


async def test_a_scrape_that_names_not_every_proxy_names_those_with_losses(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.metrics.MOST_PROXIES", 1)
    listen = {"Metrics": f'Listen = "127.0.0.1:{free_port()}"'}
    async with started(tmp_path, clock, **listen) as plane:
        org = await plane.org("acme")
        await plane.proxy("edge-1", "acme")
        clock.advance(seconds=5)
        proxy = await plane.proxy("edge-2", "acme")
        await proxy.audit(batch("b1", org, [1, 4]))
        assert (await scraped(plane))["proxy_losses", "missing", "edge-2"] == 2


# -- impossible times --------------------------------------------------------------------------------


async def _mark(plane: Plane, proxy: ProxyClient, ms: int, **members: Any) -> dict[str, Any]:
    made = event(proxy.org_ids[0], 1, time=rfc3339(plane.clock.wall + ms), **members)
    assert (await proxy.audit({"batchId": "b1", "events": [made]})).status == 202
    ((_, stored),) = await plane.stored()
    assert stored.items() >= {name: made[name] for name in ("id", "time", "seq")}.items()
    return stored


@pytest.mark.parametrize(
    ("ms", "mark"),
    [
        (0, None),
        (300_000, None),
        (300_001, "future"),
        (400 * DAY_MS, "future"),
        (-30 * DAY_MS, None),
        (-30 * DAY_MS - 1, "past"),
        (-20_000 * DAY_MS, "past"),
    ],
)
async def test_an_event_with_an_implausible_time_is_marked_and_counted(
    plane: Plane, proxy: ProxyClient, ms: int, mark: str | None
) -> None:
    await proxy.send(HEARTBEAT, b"{}")
    stored = await _mark(plane, proxy, ms)
    assert stored.get("implausibleTime") == mark
    assert stored.get("receivedAt") == (None if mark is None else rfc3339(plane.clock.wall))
    (found,) = await _healths(plane)
    assert found.implausible_times == (mark is not None)
    assert found.health == ("ok" if mark is None else "degraded")
    if mark is not None:
        assert found.reasons == ("1 event arrived with an implausible time",)
        assert (await _acknowledge(plane)).implausible == 1
        assert await _health(plane) == ("ok", ())


async def test_a_mark_that_a_proxy_made_itself_is_none(plane: Plane, proxy: ProxyClient) -> None:
    stored = await _mark(plane, proxy, 0, implausibleTime="past", receivedAt="yesterday")
    assert "implausibleTime" not in stored
    assert stored["claimedImplausibleTime"] == "past"
    assert stored["claimedReceivedAt"] == "yesterday"


async def test_an_event_that_comes_again_is_counted_once(plane: Plane, proxy: ProxyClient) -> None:
    made = event(proxy.org_ids[0], 1, time=rfc3339(plane.clock.wall + DAY_MS))
    for batch_id in ("b1", "b1", "b2"):
        assert (await proxy.audit({"batchId": batch_id, "events": [made]})).status == 202
    assert (await _healths(plane))[0].implausible_times == 1


# -- result of a verification ------------------------------------------------------------------------


async def test_a_verification_names_what_never_came_and_the_period(
    plane: Plane, well: ProxyClient, clock: FakeClock
) -> None:
    (org,) = well.org_ids
    began = rfc3339(clock.wall)
    clock.advance(hours=5)
    await well.audit(batch("b2", org, [6]))
    found = await perform(integrity.verify, context_of(plane), ADA, integrity.Verify())
    (verdict,) = found.orgs
    assert (found.intact, found.complete) == (True, False)
    assert verdict.missing_events == 2
    assert (verdict.received_from, verdict.received_to) == (began, rfc3339(clock.wall))
    said, absent = in_words(verdict)
    assert began in said
    assert absent == "2 events never arrived: their sequence numbers are missing"
    checks = await perform(integrity.checks, context_of(plane), ADA, integrity.HeadsAsked())
    assert (checks.orgs[0].missing_events, checks.orgs[0].received_from) == (2, began)


async def test_a_purge_is_no_receipt(plane: Plane, well: ProxyClient, clock: FakeClock) -> None:
    """The period of received events ends with the last received event, even if a purge removed that event."""
    (org,) = well.org_ids
    came = rfc3339(clock.wall)
    clock.advance(hours=31 * 24)
    plane.store.sign_links(chain_key(await open_vault(plane.settings.secrets, plane.store)))
    assert await plane.store.purge_events(org, clock.wall - 30 * DAY_MS, 99) == 3
    (verdict,) = (await perform(integrity.verify, context_of(plane), ADA, integrity.Verify())).orgs
    assert (verdict.received_from, verdict.received_to) == (came, came)
    assert in_words(verdict)[0].endswith("are stored unchanged, except 3 events that retention removed")
    utc = Clock("UTC", datetime(2026, 12, 22, tzinfo=UTC), UTC)
    said = _sentence("acme", verdict, utc)
    assert said.startswith("acme: verified. Of 3 events, received from ")
    assert "retention removed 3; none is left." in said
    one_left = msgspec.structs.replace(verdict, events=4)
    assert "retention removed 3; 1 event is left, unchanged since" in _sentence("acme", one_left, utc)


async def test_a_whole_trail_is_intact_and_complete(plane: Plane, well: ProxyClient) -> None:
    found = await perform(integrity.verify, context_of(plane), ADA, integrity.Verify())
    assert (found.intact, found.complete) == (True, True)
    assert in_words(found.orgs[0])[1] is None


async def test_the_console_shows_losses_and_takes_their_acknowledgement(
    plane: Plane, well: ProxyClient
) -> None:
    (org,) = well.org_ids
    ahead = rfc3339(plane.clock.wall + DAY_MS)
    await well.audit({"batchId": "b2", "events": [event(org, 6, time=ahead)]})
    page, form = f"/proxies/{well.proxy_id}", {"org": org, "note": "ticket 1", "repeated": "0"}
    async with visiting(plane) as visitor:
        assert "never arrived" in (await visitor.get("/proxies")).text
        seen = await visitor.get(page)
        assert (seen.status, "Acknowledge losses" in seen.text) == (200, True)
        stale = await visitor.post(f"{page}/acknowledge", {**form, "missing": "1", "implausible": "1"})
        assert stale.status == 422
        await visitor.post(f"{page}/acknowledge", {**form, "missing": "2", "implausible": "1"})
        assert "ticket 1" in (await visitor.get(page)).text
        await visitor.post(f"/audit/integrity/{org}", {})
        assert "2 events missing" in (await visitor.get("/audit/integrity?page=7")).text
        sentence = (await visitor.post("/audit/integrity", {})).flash
        assert sentence == (
            "Verified 1 organisation. Stored events are unchanged. Events of 1 organisation are missing."
        )
    assert await _health(plane) == ("ok", ())
