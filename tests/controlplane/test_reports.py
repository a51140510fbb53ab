"""Tests of heartbeats and metrics, and of gaps in the sequence numbers."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from controlplane.store.database import REGISTRY, Connection
from controlplane.store.interface import Gap
from controlplane.store.sequences import fold, ranges
from tests.controlplane.plane import HEARTBEAT, METRICS, Plane, ProxyClient, batch, event

ENGINES = ("sqlite", "postgres")
GOOD_HEARTBEAT: dict[str, Any] = {
    "version": "0.1.0",
    "uptimeSeconds": 12.5,
    "loadedRules": 3,
    "syncVersion": "7-abc",
    "checks": {"upstream": {"status": "ok", "detail": ""}, "vault": {"status": "degraded", "detail": "slow"}},
    "lastSeq": {},
    "auditPending": 4,
    "oldestPendingSeconds": 1.5,
}
GOOD_METRICS: dict[str, Any] = {
    "windowStart": "2026-11-21T12:00:00.000Z",
    "windowEnd": "2026-11-21T12:01:00.000Z",
    "evaluated": 10,
    "allowed": 5,
    "blocked": 1,
    "filtered": 3,
    "loggedOnly": 1,
    "upstreamErrors": 0,
    "auditPending": 0,
    "latencyMs": {"buckets": [[0.5, 3], [1, 9]], "sum": 7.25, "count": 10},
}


async def test_a_heartbeat_is_kept_and_counts_as_a_sign_of_life(plane: Plane, proxy: ProxyClient) -> None:
    assert (await plane.inventory.proxy("edge-1")).last_seen_ms is None
    response = await proxy.send(HEARTBEAT, json.dumps(GOOD_HEARTBEAT).encode())
    assert (response.status, response.json) == (200, {"status": "ok"})
    (report,) = await plane.store.heartbeats(proxy.proxy_id, 10)
    assert json.loads(report.body) == GOOD_HEARTBEAT
    assert (await plane.inventory.proxy("edge-1")).last_seen_ms == plane.clock.wall


async def test_a_window_that_is_reported_twice_counts_once(plane: Plane, proxy: ProxyClient) -> None:
    for _ in range(2):
        assert (await proxy.send(METRICS, json.dumps(GOOD_METRICS).encode())).status == 200
    (report,) = await plane.store.metrics(proxy.proxy_id, 10)
    assert json.loads(report.body) == GOOD_METRICS


async def test_the_history_is_short(plane: Plane, proxy: ProxyClient) -> None:
    for number in range(203):
        plane.clock.advance(seconds=30)
        await plane.store.add_heartbeat(proxy.proxy_id, f'{{"loadedRules":{number}}}')
    reports = await plane.store.heartbeats(proxy.proxy_id, 1000)
    assert len(reports) == 200
    assert json.loads(reports[0].body) == {"loadedRules": 202}


@pytest.mark.parametrize("path", [HEARTBEAT, METRICS])
@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b'{"a": NaN}', b'{"\xff": 1}', b'{"x": "\\ud800"}', b"[" * 9999]
)
async def test_a_report_that_is_no_object_is_400(proxy: ProxyClient, path: str, body: bytes) -> None:
    response = await proxy.send(path, body)
    assert (response.status, response.code) == (400, "invalidPayload")


@pytest.mark.parametrize(
    ("path", "member", "value"),
    [
        (HEARTBEAT, "uptimeSeconds", "long"),
        (HEARTBEAT, "loadedRules", 1.5),
        (HEARTBEAT, "checks", {"upstream": {"status": "fine"}}),
        (HEARTBEAT, "checks", {"upstream": "ok"}),
        (HEARTBEAT, "lastSeq", {"org": "7"}),
        (HEARTBEAT, "version", "A" * 201),
        (HEARTBEAT, "checks", {"upstream": {"status": "ok", "detail": "A" * 4001}}),
        (HEARTBEAT, "checks", {str(number): {"status": "ok"} for number in range(101)}),
        (METRICS, "windowStart", "A" * 201),
        (METRICS, "windowStart", 7),
        (METRICS, "windowStart", "a\0b"),
        (METRICS, "evaluated", "7"),
        (METRICS, "latencyMs", {"buckets": [[1]]}),
    ],
)
async def test_a_member_of_another_type_is_400(
    proxy: ProxyClient, path: str, member: str, value: object
) -> None:
    good = GOOD_HEARTBEAT if path == HEARTBEAT else GOOD_METRICS
    response = await proxy.send(path, json.dumps({**good, member: value}).encode())
    assert (response.status, response.code) == (400, "invalidPayload")


@pytest.mark.parametrize(("path", "bound"), [(HEARTBEAT, 33 * 1024), (METRICS, 32 * 1024)])
async def test_a_report_is_bounded(proxy: ProxyClient, path: str, bound: int) -> None:
    good = GOOD_HEARTBEAT if path == HEARTBEAT else GOOD_METRICS
    whole = json.dumps(good).encode().ljust(bound)
    assert (await proxy.send(path, whole)).status == 200
    response = await proxy.send(path, whole + b" ")
    assert (response.status, response.code) == (413, "payloadTooLarge")


async def test_a_proxy_that_reports_all_the_time_waits(plane: Plane, proxy: ProxyClient) -> None:
    """One stolen key must not be able to fill the store or to block the writes of other proxies."""
    sent = [(await proxy.send(HEARTBEAT, b"{}")).status for _ in range(61)]
    assert sent == [200] * 60 + [429]
    refused = await proxy.send(HEARTBEAT, b"{}")
    assert (refused.code, refused.headers["Retry-After"]) == ("rateLimited", "1")
    assert (await proxy.send(METRICS, b"{}")).status == 200
    plane.clock.advance(seconds=1)
    assert [(await proxy.send(HEARTBEAT, b"{}")).status for _ in range(2)] == [200, 429]


async def test_a_proxy_of_ten_thousand_organisations_can_tell_of_all_of_them(
    plane: Plane, proxy: ProxyClient
) -> None:
    organisations = [str(uuid.UUID(int=number)) for number in range(10_000)]

    def serve(connection: Connection) -> None:
        added = "INSERT INTO orgs (org_id, name, retention, created_ms) VALUES (?1, ?1, 'base', 1)"
        connection.many(added, [(each,) for each in organisations])
        served = "INSERT INTO proxy_orgs (proxy_id, org_id) VALUES (?, ?)"
        connection.many(served, [(proxy.proxy_id, each) for each in organisations])

    await plane.store._database.write(serve, REGISTRY)
    heartbeat = GOOD_HEARTBEAT | {
        "lastSeq": dict.fromkeys(organisations, 123_456_789),
        "rulesets": dict.fromkeys(organisations, 1234),
    }
    body = json.dumps(heartbeat, separators=(",", ":")).encode()  # the encoding that a proxy uses
    assert (await proxy.send(HEARTBEAT, body)).status == 200
    (report,) = await plane.store.heartbeats(proxy.proxy_id, 10)
    assert json.loads(report.body) == heartbeat


# Sequence numbers


async def _sequence(plane: Plane, proxy: ProxyClient) -> tuple[int, list[tuple[int, int]]]:
    (state,) = await plane.store.sequences(proxy.proxy_id, 100)
    return state.highest, [(gap.first, gap.last) for gap in state.gaps]


async def test_a_gap_is_named_and_filled_by_what_comes_late(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    await proxy.audit(batch("b1", org, [1, 2, 3]))
    assert await _sequence(plane, proxy) == (3, [])
    await proxy.audit(batch("b2", org, [10, 7]))
    assert await _sequence(plane, proxy) == (10, [(4, 6), (8, 9)])
    await proxy.audit(batch("b3", org, [5]))
    assert await _sequence(plane, proxy) == (10, [(4, 4), (6, 6), (8, 9)])
    await proxy.audit(batch("b4", org, [4, 6, 8, 9, 11]))
    assert await _sequence(plane, proxy) == (11, [])


async def test_sequences_are_of_one_proxy_and_one_organisation(plane: Plane) -> None:
    first, second = await plane.org("one"), await plane.org("two")
    proxy, other = await plane.proxy("both", "one", "two"), await plane.proxy("other", "one")
    await proxy.audit(batch("b1", first, [1, 3]))
    await proxy.audit(batch("b2", second, [1]))
    await other.audit({"batchId": "b", "events": [{**batch("", first, [5])["events"][0], "id": "x"}]})
    states = {state.org_id: state for state in await plane.store.sequences(proxy.proxy_id, 9)}
    assert [(states[org].highest, states[org].gaps) for org in (first, second)] == [(3, ((2, 2),)), (1, ())]
    (state,) = await plane.store.sequences(other.proxy_id, 9)
    assert state.gaps == ((1, 4),)
    received = await plane.store.received_numbers(first, 9)
    assert {proxy_id: (each.highest, each.gaps) for proxy_id, each in received.items()} == {
        proxy.proxy_id: (3, ((2, 2),)),
        other.proxy_id: (5, ((1, 4),)),
    }


async def test_numbers_that_are_given_out_twice_are_told(plane: Plane, proxy: ProxyClient) -> None:
    """Two reports have equal numbers if a proxy lost its journals, or if two proxies have one name."""
    (org,) = proxy.org_ids

    async def repeated() -> tuple[int, int | None]:
        (state,) = await plane.store.sequences(proxy.proxy_id, 9)
        return state.repeated, state.repeated_ms

    def others(batch_id: str, numbers: Iterable[int | None]) -> dict[str, Any]:
        made = [{**event(org, 1), "id": f"{batch_id}-{at}", "seq": seq} for at, seq in enumerate(numbers)]
        return {"batchId": batch_id, "events": made}

    await proxy.audit(batch("b1", org, [1, 2, 3, 6]))
    await proxy.audit(batch("b2", org, [2, 3, 4]))  # two of them arrived before, with the same ids
    await proxy.audit(others("b3", [None, None, 0]))
    assert await repeated() == (0, None)
    when = plane.clock.wall_ms()
    assert (await proxy.audit(others("b4", [1, 2, 3, 4, 5, 6, 7, None]))).status == 202
    assert await repeated() == (5, when)  # 5 and 7 are new
    plane.clock.advance(seconds=5)
    await proxy.audit(others("b5", [8]))
    assert await repeated() == (5, when)


async def test_where_numbers_are_missing_that_no_range_names_none_counts_as_repeated(
    plane: Plane, proxy: ProxyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.store.audit._MOST_GAPS", 3)
    (org,) = proxy.org_ids
    await proxy.audit(batch("b1", org, range(2, 22, 2)))
    await proxy.audit(batch("b2", org, [1, 19]))
    (state,) = await plane.store.sequences(proxy.proxy_id, 9)
    assert state.repeated == 0


async def test_ranges_beyond_reason_are_counted_rather_than_kept(
    plane: Plane, proxy: ProxyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.store.audit._MOST_GAPS", 3)
    await proxy.audit(batch("b1", proxy.org_ids[0], range(2, 22, 2)))
    (state,) = await plane.store.sequences(proxy.proxy_id, 2)
    assert (state.highest, state.gaps, state.unlisted) == (20, ((1, 1), (3, 3)), 8)
    received = (await plane.store.received_numbers(proxy.org_ids[0], 2))[proxy.proxy_id]
    assert (received.highest, received.gaps, received.unlisted) == (20, ((1, 1), (3, 3)), 8)


def test_gaps_are_what_a_set_says() -> None:
    """The gaps are exactly the missing sequence numbers below the highest one, in any order of arrival."""
    generator = random.Random(7)
    for _ in range(200):
        highest, gaps, came = 0, list[Gap](), set[int]()
        for _ in range(generator.randint(1, 8)):
            numbers = [generator.randint(0, 40) for _ in range(generator.randint(1, 10))]
            came.update(numbers)
            highest, gaps = fold(highest, gaps, ranges(numbers))
            missing = set(range(1, max(came) + 1)) - came
            assert highest == max(came)
            assert gaps == ranges(missing)
