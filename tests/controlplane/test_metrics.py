"""Tests of the metrics of the control plane, as Prometheus reads them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.names import new_id
from controlplane.search.interface import IndexUnavailableError
from controlplane.search.sqlite_index import SqliteIndex
from controlplane.store.database import REGISTRY
from controlplane.store.interface import AppCredential, Enrolment, EnrolmentToken, NewKeys
from controlplane.store.sqlite import SqliteStore
from tests.controlplane.plane import HEARTBEAT, FakeClock, Plane, ProxyClient, batch, started
from tests.fakes.ports import free_port
from tests.patience import PATIENCE_SECONDS

_PREFIX = "graphward_controlplane_"


async def scraped(plane: Plane) -> dict[tuple[str, ...], float]:
    """Return each metric sample by its name without the prefix, and by the values of its labels."""
    address = plane.settings.metrics.listen[0]
    async with plane.session.get(f"http://{address}/metrics") as response:
        assert response.status == 200
        assert "Server" not in response.headers
        text = await response.text()
    return {
        (sample.name.removeprefix(_PREFIX), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def listening() -> dict[str, str]:
    return {"Metrics": f'Listen = "127.0.0.1:{free_port()}"'}


async def test_batches_are_counted_by_what_became_of_them(
    tmp_path: Path, clock: FakeClock, listening: dict[str, str]
) -> None:
    async with started(tmp_path, clock, **listening) as plane:
        acme = await plane.org("acme")
        other = await plane.org("other")
        proxy = await plane.proxy("edge-1", "acme")
        for body in (batch("a", acme, range(1, 4)), batch("a", acme, range(1, 4)), batch("b", other, [1])):
            await proxy.audit(body)
        found = await scraped(plane)
    assert found["events_accepted_total",] == 3
    assert found["batches_total", "stored"] == 1
    assert found["batches_total", "duplicate"] == 1
    assert found["batches_total", "notAuthorisedForTenant"] == 1
    assert found["requests_total", "audit", "202"] == 2
    assert found["requests_total", "audit", "403"] == 1
    assert found["request_duration_seconds_count", "audit"] == 3


async def test_a_path_that_is_no_endpoint_makes_no_series_of_its_own(
    tmp_path: Path, clock: FakeClock, listening: dict[str, str]
) -> None:
    async with started(tmp_path, clock, **listening) as plane:
        for path in ("/a", "/b"):
            async with plane.session.get(plane.base_url + path):
                pass
        found = await scraped(plane)
    assert found["requests_total", "other", "404"] == 2


async def test_a_proxy_is_told_with_what_it_lacks_while_it_is_enabled(
    tmp_path: Path, clock: FakeClock, listening: dict[str, str]
) -> None:
    async with started(tmp_path, clock, **listening) as plane:
        acme = await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        never_seen = await plane.proxy("edge-2", "acme")
        made = clock.wall / 1000
        clock.advance(seconds=5)
        await proxy.audit(batch("a", acme, [1, 2, 5, 9]))
        found = await scraped(plane)
        assert found["proxy_last_seen_timestamp_seconds", "edge-1"] == clock.wall / 1000
        assert found["proxy_last_seen_timestamp_seconds", "edge-2"] == made
        assert found["proxy_missing_events", "edge-1"] == 2 + 3
        assert found["proxy_repeated_numbers", "edge-1"] == 0
        assert (found["proxies", "no heartbeat"], found["proxies", "ok"]) == (2, 0)
        again = batch("b", acme, [2, 9])
        await proxy.audit({**again, "events": [{**each, "id": each["id"] + "x"} for each in again["events"]]})
        assert (await scraped(plane))["proxy_repeated_numbers", "edge-1"] == 2
        await proxy.send(HEARTBEAT, b'{"ended": true, "auditPending": 0}')
        ended = await scraped(plane)  # an orderly stop: no alert
        assert ("proxy_last_seen_timestamp_seconds", "edge-1") not in ended
        assert ended["proxy_missing_events", "edge-1"] == 2 + 3
        clock.advance(seconds=1)
        await proxy.send(HEARTBEAT, b'{"auditPending": 0}')
        assert ("proxy_last_seen_timestamp_seconds", "edge-1") in await scraped(plane)
        await plane.store.set_proxy_enabled(never_seen.proxy_id, False)
        assert ("proxy_last_seen_timestamp_seconds", "edge-2") not in await scraped(plane)


async def test_an_enrolment_token_is_told_with_what_is_left_of_it(
    tmp_path: Path, clock: FakeClock, listening: dict[str, str]
) -> None:
    async with started(tmp_path, clock, **listening) as plane:
        now_ms = clock.wall_ms()
        acme = await plane.org("acme")
        token = EnrolmentToken("t1", "pods", (acme,), 50, 0, now_ms, "ada", now_ms + 1000, 1, 1)
        await plane.store.add_enrolment_token(token, b"digest")
        asked = Enrolment(b"digest", str(uuid4()), new_id(clock), "pod-1", "192.0.2.1", "{}")
        await plane.store.enrol(asked, lambda _: NewKeys(b"key", b"sealed"))
        found = await scraped(plane)
        assert found["enrolment_token_uses", "pods"] == 50
        assert found["enrolment_token_uses_left", "pods"] == 49
        assert found["enrolment_token_expires_timestamp_seconds", "pods"] == now_ms / 1000 + 1
        clock.advance(seconds=1)
        assert ("enrolment_token_uses_left", "pods") not in await scraped(plane)


async def test_credentials_of_apps_are_counted_by_the_time_until_they_end(
    tmp_path: Path, clock: FakeClock, listening: dict[str, str]
) -> None:
    async with started(tmp_path, clock, **listening) as plane:
        await plane.org("acme")
        await plane.ruleset("acme", "one")
        made = await plane.inventory.add_app("payroll", "acme", "one")
        found = await scraped(plane)
        assert found["credentials_ending", "later"] == 0
        assert ("credential_soonest_end_timestamp_seconds",) not in found
        for at, days in enumerate((1, 7, 30, 31)):
            ends_ms = clock.wall_ms() + days * 86_400_000
            credential = AppCredential(f"crd-{at}", "federated", "{}", clock.wall_ms(), ends_ms)
            await plane.store.add_credential(made.app.app_id, credential, str(at))
        found = await scraped(plane)
        by_time = {left: found["credentials_ending", left] for left in ("ended", "1d", "7d", "30d", "later")}
        assert by_time == {"ended": 0, "1d": 1, "7d": 1, "30d": 1, "later": 1}
        soonest = clock.wall / 1000 + 86_400
        assert found["credential_soonest_end_timestamp_seconds",] == soonest
        clock.advance(seconds=86_400)
        found = await scraped(plane)
        assert (found["credentials_ending", "ended"], found["credentials_ending", "30d"]) == (1, 2)
        assert found["credentials_ended_in_use",] == 0  # this credential was never used
        note = "INSERT INTO credential_uses (app_id, credential_id, last_ms) VALUES (?, ?, ?)"
        used = (made.app.app_id, "crd-0", clock.wall_ms() - 86_400_000)
        await plane.store._database.write(lambda connection: connection.run(note, used), REGISTRY)
        assert (await scraped(plane))["credentials_ended_in_use",] == 1
        clock.advance(seconds=8 * 86_400)
        assert (await scraped(plane))["credentials_ended_in_use",] == 1  # until it is removed


async def test_the_lag_is_what_the_index_has_not_taken(
    tmp_path: Path, clock: FakeClock, listening: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteIndex, "write_parsed", AsyncMock(side_effect=IndexUnavailableError("full")))
    async with started(tmp_path, clock, **listening) as plane:
        acme = await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        await proxy.audit(batch("a", acme, range(1, 8)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while ("index_lag_events",) not in (found := await scraped(plane)):
                pass
    assert found["index_lag_events",] == 7


async def test_the_lag_is_left_out_until_it_was_measured(
    tmp_path: Path, clock: FakeClock, listening: dict[str, str]
) -> None:
    """The search index is unreachable, because no process listens at its address."""
    away = {"SearchIndex": 'Kind = "clickhouse"\nUrl = "http://127.0.0.1:9"'}
    async with started(tmp_path, clock, **listening, **away) as plane:
        acme = await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        await proxy.audit(batch("a", acme, range(1, 8)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (found := await scraped(plane))["index_failing",]:
                pass
    assert ("index_lag_events",) not in found


async def test_sizes_and_room_are_those_of_the_store(
    tmp_path: Path, clock: FakeClock, listening: dict[str, str]
) -> None:
    async with started(tmp_path, clock, **listening) as plane:
        found = await scraped(plane)
    assert found["store_bytes",] >= (tmp_path / "var" / "controlplane.db").stat().st_size > 0
    assert found["store_free_bytes",] > 0
    assert found["store_readable",] == 1
    assert (found["instances",], found["leads",]) == (1, 1)


async def test_with_the_store_away_what_is_known_without_it_is_told(
    tmp_path: Path, clock: FakeClock, listening: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(store: SqliteStore, most: int) -> None:
        await store._database.fetch("SELECT * FROM no_such_table")

    monkeypatch.setattr(SqliteStore, "tally", damaged)
    async with started(tmp_path, clock, **listening) as plane:
        found = await scraped(plane)
    assert found["store_readable",] == 0
    assert found["events_accepted_total",] == 0
    assert ("index_lag_events",) not in found


async def test_the_agent_api_does_not_give_it(plane: Plane, proxy: ProxyClient) -> None:
    async with plane.session.get(f"{plane.base_url}/metrics") as response:
        assert response.status == 404
