"""Tests of a reused batch id: the same events are a replay, and other events are reported as a fault."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.plane import AUDIT, HEARTBEAT, FakeClock, Plane, ProxyClient, batch, event, started
from tests.controlplane.test_fleet import shown
from tests.controlplane.test_metrics import scraped
from tests.fakes.ports import free_port


async def reused(plane: Plane, proxy: ProxyClient) -> tuple[int, int | None]:
    (state,) = await plane.store.sequences(proxy.proxy_id, 9)
    return state.reused, state.reused_ms


def with_id(batch_id: str, *events: dict[str, Any]) -> dict[str, Any]:
    return {"batchId": batch_id, "events": list(events)}


@pytest.mark.parametrize("others", ["other ids", "other content", "one more", "without numbers"])
async def test_other_events_under_a_known_batch_id_are_told(
    plane: Plane, proxy: ProxyClient, caplog: pytest.LogCaptureFixture, others: str
) -> None:
    (org,) = proxy.org_ids
    first = event(org, 1)
    again = {
        "other ids": with_id("b1", event(org, 2)),
        "other content": with_id("b1", {**first, "path": "/v1.0/groups"}),
        "one more": with_id("b1", first, event(org, 2)),
        "without numbers": with_id("b1", event(org, 2, seq=None)),
    }[others]
    await proxy.audit(with_id("b1", first))
    response = await proxy.audit(again)
    assert (response.status, response.json) == (
        202,
        {"batchId": "b1", "accepted": 1, "duplicate": True, "contentDiffers": True},
    )
    assert await plane.stored() == [(org, first)]
    assert await reused(plane, proxy) == (1, plane.clock.wall_ms())
    assert f"proxy {proxy.proxy_id} reused batch id 'b1' for other events" in caplog.text
    # With a new id the batch is stored.
    response = await proxy.audit({**again, "batchId": "b2"})
    assert response.json["duplicate"] is False


async def test_other_content_under_a_known_event_id_is_told(
    plane: Plane, proxy: ProxyClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch in this test has a new batch id, so the control plane does not treat it as a replay."""
    (org,) = proxy.org_ids
    first = event(org, 1)
    await proxy.audit(with_id("b1", first))
    await proxy.audit(with_id("b2", first, event(org, 2)))
    assert await reused(plane, proxy) == (0, None)  # sent again with a new batch id
    response = await proxy.audit(with_id("b3", {**first, "path": "/v1.0/groups"}, event(org, 3)))
    assert response.json == {"batchId": "b3", "accepted": 1, "duplicate": False}
    assert await reused(plane, proxy) == (1, plane.clock.wall_ms())
    assert f"proxy {proxy.proxy_id} reused event ids in batch 'b3' for other content" in caplog.text


async def test_a_replay_may_be_written_another_way(plane: Plane, proxy: ProxyClient) -> None:
    """A proxy may write the JSON of a repeated batch with other white space, key order and escapes."""
    (org,) = proxy.org_ids
    events = [event(org, number, note="é", x=[1, {"a": 1.0, "b": None}]) for number in range(100)]
    await proxy.audit(with_id("b1", *events))
    turned = [dict(reversed(each.items())) for each in events]
    body = json.dumps(with_id("b1", *turned), indent=1, ensure_ascii=False).encode()
    response = await proxy.send(AUDIT, body)
    assert response.json == {"batchId": "b1", "accepted": 100, "duplicate": True}
    assert await reused(plane, proxy) == (0, None)


@pytest.mark.parametrize("depth", [100, 600, 900, 980])
async def test_no_depth_of_an_event_fails_the_comparison(
    plane: Plane, proxy: ProxyClient, depth: int
) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    sent = json.dumps(with_id("b1", event(proxy.org_ids[0], 1, x="DEEP"))).replace('"DEEP"', deep)
    first = await proxy.send(AUDIT, sent.encode())
    again = await proxy.send(AUDIT, sent.replace(": ", ":").encode())
    assert (first.status, again.status) in ((202, 202), (400, 400))


async def test_a_replay_is_none_the_less_one_once_its_events_are_gone(
    plane: Plane, proxy: ProxyClient
) -> None:
    sent = batch("b1", proxy.org_ids[0], range(3))
    await proxy.audit(sent)
    assert await plane.store.purge_events(proxy.org_ids[0], plane.clock.wall_ms() * 2, 99) == 3
    assert (await proxy.audit(sent)).json == {"batchId": "b1", "accepted": 3, "duplicate": True}


async def test_a_replay_of_events_in_another_proxy_s_name_is_one(plane: Plane, proxy: ProxyClient) -> None:
    sent = with_id("b1", event(proxy.org_ids[0], 1, proxyId="another"))
    await proxy.audit(sent)
    assert "contentDiffers" not in (await proxy.audit(sent)).json


async def test_concurrent_batches_under_one_id_differ_from_the_first(
    plane: Plane, proxy: ProxyClient
) -> None:
    (org,) = proxy.org_ids
    responses = await asyncio.gather(*(proxy.audit(with_id("b1", event(org, n))) for n in range(8)))
    assert (
        sorted(response.json.get("contentDiffers", False) for response in responses) == [False] + [True] * 7
    )
    assert len(await plane.stored()) == 1
    assert (await reused(plane, proxy))[0] == 7


async def test_a_batch_that_an_earlier_release_stored_is_not_compared(
    plane: Plane, proxy: ProxyClient
) -> None:
    (org,) = proxy.org_ids
    await proxy.audit(with_id("b1", event(org, 1)))
    with closing(sqlite3.connect(plane.settings.store.path)) as connection, connection:
        connection.execute("UPDATE batches SET content = NULL")
    response = await proxy.audit(with_id("b1", event(org, 2)))
    assert response.json == {"batchId": "b1", "accepted": 1, "duplicate": True}


async def test_past_the_window_it_is_expired_whatever_it_holds(
    plane: Plane, proxy: ProxyClient, clock: FakeClock
) -> None:
    (org,) = proxy.org_ids
    await proxy.audit(with_id("b1", event(org, 1)))
    clock.advance(hours=48, seconds=1)
    response = await proxy.audit(with_id("b1", event(org, 2)))
    assert (response.status, response.code) == (409, "batchExpired")


async def test_it_shows_in_metrics_and_in_the_proxy_s_health_for_a_day(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with started(tmp_path, clock, Metrics=f'Listen = "127.0.0.1:{free_port()}"') as plane:
        org = await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        await proxy.audit(with_id("b1", event(org, 1)))
        await proxy.send(HEARTBEAT, b'{"version": "1"}')
        assert (await scraped(plane))["proxy_reused_batch_ids", "edge-1"] == 0
        await proxy.audit(with_id("b1", event(org, 2)))
        found = await scraped(plane)
        assert found["proxy_reused_batch_ids", "edge-1"] == 1
        assert found["batches_total", "reused"] == 1
        details = await shown(plane, "edge-1")
        assert details.health == "degraded"
        assert details.reasons == ("it reused the ID of a batch or an event for other content, 0 s ago",)
        assert (details.sequences[0].reused_count, bool(details.sequences[0].reused_at)) == (1, True)
        clock.advance(hours=24)
        await proxy.send(HEARTBEAT, b'{"version": "1"}')
        details = await shown(plane, "edge-1")
        assert (details.health, details.sequences[0].reused_count) == ("ok", 1)
