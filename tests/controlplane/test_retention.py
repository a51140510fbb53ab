"""What goes when its organisation's tier ends, and what must not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controlplane.retention import Retention, WitnessedTime
from controlplane.store.interface import RETENTION_MS, NewRecord, Operator, RecordQuery
from controlplane.store.interface import Retention as Tier
from tests.controlplane.plane import FakeClock, Plane, ProxyClient, batch, event


class _Index:
    def __init__(self) -> None:
        self.purged: list[tuple[str, int]] = []

    async def purge(self, org_id: str, before_ms: int, limit: int) -> int:
        self.purged.append((org_id, before_ms))
        return 0


def _days_ago(clock: FakeClock, days: float) -> str:
    return datetime.fromtimestamp(clock.wall / 1000 - days * 86400, UTC).isoformat()


@pytest.mark.parametrize(("tier", "days"), [("base", 30), ("90d", 90), ("1y", 366), ("7y", 2557)])
async def test_events_go_at_the_end_of_their_tier(
    plane: Plane, clock: FakeClock, tier: Tier, days: int
) -> None:
    org = await plane.org("acme", tier)
    proxy = await plane.proxy("edge-1", "acme")
    ages = [days + 0.01, days - 0.01, 0, days * 2]
    events = [event(org, number, time=_days_ago(clock, age)) for number, age in enumerate(ages)]
    await proxy.audit({"batchId": "b1", "events": events})
    index, witnessed = _Index(), WitnessedTime()
    witnessed.agree(clock.wall)
    assert await Retention(plane.store, index, clock, witnessed, 60).purge() == 2
    assert [each["seq"] for _, each in await plane.stored()] == [1, 2]
    assert index.purged == [(org, clock.wall - RETENTION_MS[tier])]


async def test_many_events_go_in_small_steps(plane: Plane, proxy: ProxyClient, clock: FakeClock) -> None:
    old = _days_ago(clock, 31)
    events = [event(proxy.org_ids[0], number, time=old) for number in range(1201)]
    await proxy.audit({"batchId": "b1", "events": events})
    witnessed = WitnessedTime()
    witnessed.agree(clock.wall)
    assert await Retention(plane.store, _Index(), clock, witnessed, 60).purge() == 1201
    assert await plane.stored() == []


async def test_each_organisation_has_its_own_tier(plane: Plane, clock: FakeClock) -> None:
    short, long = await plane.org("short"), await plane.org("long", "7y")
    proxy = await plane.proxy("both", "short", "long")
    for org in (short, long):
        await proxy.audit({"batchId": org, "events": [event(org, 1, time=_days_ago(clock, 40))]})
    witnessed = WitnessedTime()
    witnessed.agree(clock.wall)
    await Retention(plane.store, _Index(), clock, witnessed, 60).purge()
    assert [org for org, _ in await plane.stored()] == [long]


async def test_nothing_goes_while_no_proxy_has_agreed_with_the_clock(
    plane: Plane, proxy: ProxyClient
) -> None:
    await proxy.audit(batch("b1", proxy.org_ids[0], [1]))
    wrong = FakeClock(plane.clock.wall + 10 * 366 * 86_400_000)
    assert await Retention(plane.store, _Index(), wrong, WitnessedTime(), 60).purge() == 0
    assert len(await plane.stored()) == 1


async def test_sessions_go_when_they_end_and_the_record_after_seven_years(
    plane: Plane, clock: FakeClock
) -> None:
    operator = Operator("id", "ada", None, True, clock.wall, {})
    await plane.store.add_operator(operator)
    await plane.store.add_session(b"old", "id")
    line = NewRecord("ada", "local", "org.add", "{}")
    await plane.store.begin_record(line)
    clock.advance(hours=24 * 2557)
    await plane.store.add_session(b"new", "id")
    await plane.store.begin_record(line)
    witnessed = WitnessedTime()
    retention = Retention(plane.store, _Index(), clock, witnessed, 60)
    await retention.purge()
    assert await plane.store.session(b"old") is None
    assert await plane.store.session(b"new") is not None
    assert len(await plane.store.record(RecordQuery(limit=9))) == 2  # nobody has agreed with the clock
    witnessed.agree(clock.wall + 1)
    await retention.purge()
    assert [each.time_ms for each in await plane.store.record(RecordQuery(limit=9))] == [clock.wall]


async def test_positions_are_never_given_twice(plane: Plane, proxy: ProxyClient) -> None:
    """Else the outbox would pass over an event that came after a purge of the newest."""
    (org,) = proxy.org_ids
    await proxy.audit(batch("b1", org, [1, 2, 3]))
    assert await plane.store.purge_events(org, plane.clock.wall, 10) == 3
    await proxy.audit(batch("b2", org, [4]))
    assert [stored.position for stored in await plane.store.events_after(0, 10)] == [4]


async def test_batch_ids_outlive_every_event(plane: Plane, proxy: ProxyClient, clock: FakeClock) -> None:
    sent = batch("b1", proxy.org_ids[0], [1])
    await proxy.audit(sent)
    witnessed = WitnessedTime()
    clock.advance(hours=24 * 2556)
    witnessed.agree(clock.wall)
    retention = Retention(plane.store, _Index(), clock, witnessed, 60)
    await retention.purge()
    assert await plane.stored() == []
    assert (await proxy.audit(sent)).code == "batchExpired"
    clock.advance(hours=48)
    await retention.purge()
    assert (await proxy.audit(sent)).json["duplicate"] is False
