"""Tests that retention removes the data that an organisation no longer keeps, and no other data."""

from __future__ import annotations

import json
from typing import Final

import pytest

from controlplane.index_writer import IndexWriter
from controlplane.retention import PurgeableIndex, Retention, WitnessedTime
from controlplane.search import open_index
from controlplane.search.interface import IndexUnavailableError, SearchQuery
from controlplane.search.query import parse_filter
from controlplane.store.interface import RETENTION_MS, LogQuery, NewLogLine, Operator
from controlplane.store.interface import Retention as Tier
from proxy.wire.audit_event import rfc3339
from tests.controlplane.plane import HEARTBEAT, FakeClock, Plane, ProxyClient, agreed_with, batch, event
from tests.controlplane.test_reports import GOOD_HEARTBEAT

DAY_MS: Final = 86_400_000


class _Index:
    def __init__(self) -> None:
        self.purged: list[tuple[str, int, int | None]] = []

    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
        self.purged.append((org_id, before_ms, newest))
        return 0


def _days_from(clock: FakeClock, days: float) -> str:
    return rfc3339(clock.wall + round(days * DAY_MS))


async def _purge(plane: Plane, index: PurgeableIndex | None = None) -> int:
    """Purge old audit events once, with a proxy whose clock agrees with the control plane's clock."""
    witnessed = await agreed_with(plane.store, plane.clock.wall)
    return await Retention(plane.store, index or _Index(), plane.clock, witnessed, 60).purge()


async def _seqs(plane: Plane) -> list[int]:
    return [each["seq"] for _, each in await plane.stored()]


@pytest.mark.parametrize(("tier", "days"), [("base", 30), ("90d", 90), ("1y", 366), ("7y", 2557)])
async def test_events_go_at_the_end_of_their_tier(
    plane: Plane, clock: FakeClock, tier: Tier, days: int
) -> None:
    org = await plane.org("acme", tier)
    proxy = await plane.proxy("edge-1", "acme")
    await proxy.audit({"batchId": "b1", "events": [event(org, 1), event(org, 2)]})
    clock.advance(hours=1)
    await proxy.audit(batch("b2", org, [3]))
    clock.advance(hours=24 * days)
    index = _Index()
    assert await _purge(plane, index) == 2
    assert await _seqs(plane) == [3]
    assert index.purged == [(org, clock.wall - RETENTION_MS[tier], 2)]


async def test_an_event_is_kept_for_its_tier_after_it_was_received(plane: Plane, clock: FakeClock) -> None:
    """A slow clock or an old backlog of a proxy must not shorten the retention that the customer paid for."""
    org = await plane.org("acme")
    proxy = await plane.proxy("edge-1", "acme")
    late = [event(org, at, time=_days_from(clock, -age)) for at, age in enumerate((29, 31, 400, 20_000), 1)]
    await proxy.audit({"batchId": "b1", "events": late})
    clock.advance(hours=24 * 30 - 1)
    assert await _purge(plane) == 0
    assert await _seqs(plane) == [1, 2, 3, 4]
    clock.advance(hours=2)
    assert await _purge(plane) == 4


async def test_receipt_decides_for_an_event_from_the_future(plane: Plane, clock: FakeClock) -> None:
    """If a proxy's clock is ahead, its events are still deleted after their retention."""
    org = await plane.org("acme")
    proxy = await plane.proxy("edge-1", "acme")
    ahead = [event(org, at, time=_days_from(clock, days)) for at, days in enumerate((1, 400, 200_000), 1)]
    await proxy.audit({"batchId": "b1", "events": [event(org, 4), *ahead]})
    clock.advance(hours=24 * 30 - 1)
    assert await _purge(plane) == 0
    clock.advance(hours=2)
    assert await _purge(plane) == 4
    assert await _seqs(plane) == []


async def test_the_index_loses_what_the_store_loses(plane: Plane, clock: FakeClock) -> None:
    org = await plane.org("acme")
    proxy = await plane.proxy("edge-1", "acme")
    times = (0, -400, 400)
    for first in (1, 4):
        made = [event(org, first + at, time=_days_from(clock, days)) for at, days in enumerate(times)]
        await proxy.audit({"batchId": f"b{first}", "events": made})
        clock.advance(hours=24)
    index = await open_index(plane.settings.search_index, plane.store, plane.settings.store.path)
    await IndexWriter(plane.store, index).drain()
    clock.advance(hours=24 * 28.5)
    assert await _purge(plane, index) == 3
    found = await index.search(SearchQuery((org,), parse_filter("")))
    assert sorted(json.loads(each)["seq"] for each in found.events) == await _seqs(plane) == [4, 5, 6]
    facets = await index.facets(SearchQuery((org,), parse_filter("")), ["implausible"])
    assert dict(facets.fields["implausible"]) == {"future": 1, "past": 1}
    await index.close()


async def test_an_index_that_is_away_keeps_nothing_in_the_store(plane: Plane, clock: FakeClock) -> None:
    for name in ("acme", "beta"):
        org = await plane.org(name)
        await (await plane.proxy(f"edge-{name}", name)).audit(batch(f"b-{name}", org, [1]))
    clock.advance(hours=24 * 31)

    class Away(_Index):
        async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
            raise IndexUnavailableError("away")

    with pytest.raises(IndexUnavailableError):
        await _purge(plane, Away())
    assert await _seqs(plane) == []


async def test_a_receipt_that_lies_ahead_is_corrected(plane: Plane, clock: FakeClock) -> None:
    """Test a batch that arrives while the clocks of the control plane and the proxy are a year ahead.

    After the arrival of this batch, both clocks are corrected.
    """
    org = await plane.org("acme")
    proxy = await plane.proxy("edge-1", "acme")
    right = clock.wall
    clock.advance(hours=24 * 365)
    await proxy.audit({"batchId": "b1", "events": [event(org, 1, time=_days_from(clock, 0))]})
    clock.wall = right
    assert await _purge(plane) == 0
    clock.advance(hours=24 * 30 + 1)
    assert await _purge(plane) == 1


async def test_many_events_go_in_small_steps(plane: Plane, proxy: ProxyClient, clock: FakeClock) -> None:
    events = [event(proxy.org_ids[0], number) for number in range(1201)]
    await proxy.audit({"batchId": "b1", "events": events})
    clock.advance(hours=24 * 31)
    assert await _purge(plane) == 1201
    assert await plane.stored() == []


async def test_each_organisation_has_its_own_tier(plane: Plane, clock: FakeClock) -> None:
    short, long = await plane.org("short"), await plane.org("long", "7y")
    proxy = await plane.proxy("both", "short", "long")
    for org in (short, long):
        await proxy.audit({"batchId": org, "events": [event(org, 1)]})
    clock.advance(hours=24 * 40)
    await _purge(plane)
    assert [org for org, _ in await plane.stored()] == [long]


async def test_nothing_goes_while_no_proxy_has_agreed_with_the_clock(
    plane: Plane, proxy: ProxyClient
) -> None:
    await proxy.audit(batch("b1", proxy.org_ids[0], [1]))
    wrong = FakeClock(plane.clock.wall + 10 * 366 * 86_400_000)
    assert await Retention(plane.store, _Index(), wrong, WitnessedTime(), 60).purge() == 0
    assert len(await plane.stored()) == 1


async def test_sessions_go_when_they_end_and_the_record_after_seven_years(
    plane: Plane, proxy: ProxyClient, clock: FakeClock
) -> None:
    await proxy.send(HEARTBEAT, b"{}")
    operator = Operator("id", "ada", None, True, clock.wall, {})
    await plane.store.add_operator(operator)
    await plane.store.add_session(b"old", "id")
    line = NewLogLine("ada", "local", "org.add", "{}")
    await plane.store.begin_log_line(line)
    clock.advance(hours=24 * 2557)
    await plane.store.add_session(b"new", "id")
    await plane.store.begin_log_line(line)
    witnessed = WitnessedTime()
    retention = Retention(plane.store, _Index(), clock, witnessed, 60)
    await retention.purge()
    assert await plane.store.session(b"old") is None
    assert await plane.store.session(b"new") is not None
    assert len(await plane.store.operator_log(LogQuery(limit=9))) == 2  # no proxy agrees with the clock yet
    clock.advance(seconds=0.001)
    witnessed.agree(proxy.proxy_id, clock.wall)
    await retention.purge()
    assert [each.time_ms for each in await plane.store.operator_log(LogQuery(limit=9))] == [clock.wall - 1]


async def test_positions_are_never_given_twice(plane: Plane, proxy: ProxyClient) -> None:
    """After a purge of the newest event, the outbox must not skip the next event that arrives."""
    (org,) = proxy.org_ids
    await proxy.audit(batch("b1", org, [1, 2, 3]))
    assert await plane.store.purge_events(org, plane.clock.wall + 1, 10) == 3
    await proxy.audit(batch("b2", org, [4]))
    assert [stored.position for stored in await plane.store.events_after(0, 10)] == [4]


async def test_batch_ids_outlive_every_event(plane: Plane, proxy: ProxyClient, clock: FakeClock) -> None:
    sent = batch("b1", proxy.org_ids[0], [1])
    await proxy.audit(sent)
    witnessed = WitnessedTime()
    clock.advance(hours=24 * 2556)
    witnessed.agree(proxy.proxy_id, clock.wall)
    retention = Retention(plane.store, _Index(), clock, witnessed, 60)
    await retention.purge()
    assert await plane.stored() == []
    assert (await proxy.audit(sent)).code == "batchExpired"
    clock.advance(hours=48)
    witnessed.agree(proxy.proxy_id, clock.wall)
    await retention.purge()
    assert (await proxy.audit(sent)).json["duplicate"] is False


async def test_a_proxy_that_agrees_with_a_wrong_clock_purges_nothing(plane: Plane, clock: FakeClock) -> None:
    org = await plane.org("acme")
    honest, rogue = [await plane.proxy(name, "acme") for name in ("honest", "rogue")]
    for seq, proxy in enumerate((honest, rogue)):
        await proxy.audit(batch(f"b{seq}", org, [seq + 1]))
    witnessed = WitnessedTime()
    retention = Retention(plane.store, _Index(), clock, witnessed, 60)
    year_ahead = clock.wall + 366 * DAY_MS
    for proxy in (honest, rogue):  # this control plane is another one, whose clock is ahead
        witnessed.agree(proxy.proxy_id, year_ahead)
    assert await retention.purge() == 0

    witnessed.agree(honest.proxy_id, clock.wall)
    clock.wall = year_ahead  # our own clock is wrong now, and only the rogue proxy agrees
    assert await retention.purge() == 0
    assert retention.problem is not None
    assert "only one proxy has agreed with this host's clock" in retention.problem
    witnessed.agree(honest.proxy_id, year_ahead)
    assert await retention.purge() == 2
    assert retention.problem is None


async def test_a_proxy_that_stopped_in_order_keeps_no_event_from_its_end(
    plane: Plane, clock: FakeClock
) -> None:
    """A proxy that reported its shutdown does not count as a proxy in use.

    Retention removes events only if the clocks of all proxies in use agree with the control plane's clock.
    """
    org = await plane.org("acme")
    staying, ending = [await plane.proxy(name, "acme") for name in ("staying", "ending")]
    await staying.audit(batch("b1", org, [1]))
    said = {**GOOD_HEARTBEAT, "checks": {}, "lastSeq": {}, "auditPending": 0}
    assert (await ending.send(HEARTBEAT, json.dumps({**said, "ended": True}).encode())).status == 200
    witnessed = WitnessedTime()
    retention = Retention(plane.store, _Index(), clock, witnessed, 60)
    clock.advance(hours=31 * 24)
    witnessed.agree(staying.proxy_id, clock.wall)
    assert await retention.purge() == 1
    await ending.send(HEARTBEAT, json.dumps(said).encode())
    assert set(await plane.store.hands_of_proxies()) == {staying.proxy_id, ending.proxy_id}
