"""Tests of rate limits: 60 batches a minute per proxy, 100 per organisation, and exact Retry-After."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controlplane.rate_limits import linger_seconds, retry_after_seconds
from controlplane.settings import read_settings
from tests.controlplane.plane import (
    AUDIT,
    FakeClock,
    Plane,
    ProxyClient,
    Response,
    batch,
    started,
    write_settings,
)

ENGINES = ("sqlite", "postgres")
_numbers = iter(range(10**9))


async def _send(proxy: ProxyClient, count: int = 1) -> list[int]:
    """Send `count` new batches of audit events, one after the other. Return their statuses."""
    return [(await _one(proxy)).status for _ in range(count)]


async def _one(proxy: ProxyClient, org: int = 0) -> Response:
    number = next(_numbers)
    return await proxy.audit(batch(f"b{number}", proxy.org_ids[org], [number]))


@pytest.mark.parametrize("limit", [60, 100, 1000])
def test_proxies_that_linger_as_asked_leave_a_fifth_of_the_limit(limit: int) -> None:
    for senders in range(1, limit + 1):
        assert senders * 60 / linger_seconds(limit, senders) <= 0.8 * limit


async def test_the_61st_batch_of_a_proxy_within_a_minute_is_429(proxy: ProxyClient, clock: FakeClock) -> None:
    assert await _send(proxy, 60) == [202] * 60
    response = await _one(proxy)
    assert (response.status, response.code, response.headers["Retry-After"]) == (429, "rateLimited", "60")


async def test_retry_after_is_true_to_the_second(proxy: ProxyClient, clock: FakeClock) -> None:
    await _send(proxy, 30)
    clock.advance(seconds=10.4)
    await _send(proxy, 30)
    clock.advance(seconds=19.8)
    response = await _one(proxy)
    # The first 30 batches are 30.2 s old: their slots are free in 29.8 s.
    assert response.headers["Retry-After"] == "30"
    clock.advance(seconds=29)
    assert (await _one(proxy)).headers["Retry-After"] == "1"
    clock.advance(seconds=0.799)
    assert (await _one(proxy)).headers["Retry-After"] == "1"
    clock.advance(seconds=0.001)
    assert await _send(proxy, 31) == [202] * 30 + [429]


async def test_100_batches_of_an_organisation_over_all_its_proxies(plane: Plane) -> None:
    await plane.org("acme")
    first, second = await plane.proxy("p1", "acme"), await plane.proxy("p2", "acme")
    assert await _send(first, 60) == [202] * 60
    plane.clock.advance(seconds=5)
    assert await _send(second, 41) == [202] * 40 + [429]
    # The proxy's own limit has room. The organisation's oldest slot is free in 55 s.
    assert (await _one(second)).headers["Retry-After"] == "55"
    # If both limits apply, Retry-After is the longer wait.
    plane.clock.advance(seconds=55)
    assert await _send(second, 21) == [202] * 20 + [429]


async def test_a_tenant_at_its_limit_does_not_touch_another(plane: Plane) -> None:
    await plane.org("one")
    await plane.org("two")
    both = await plane.proxy("both", "one", "two")
    other = await plane.proxy("p2", "one")
    assert await _send(both, 60) == [202] * 60
    assert await _send(other, 41) == [202] * 40 + [429]
    # Organisation `one` reached its limit. Organisation `two` and its proxy did not.
    assert (await _one(await plane.proxy("p3", "two"))).status == 202


async def test_concurrent_batches_do_not_get_past_the_limit(proxy: ProxyClient) -> None:
    responses = await asyncio.gather(*(_one(proxy) for _ in range(100)))
    statuses = [response.status for response in responses]
    assert (statuses.count(202), statuses.count(429)) == (60, 40)


async def test_only_stored_batches_count(plane: Plane, proxy: ProxyClient) -> None:
    """A batch that is duplicate, refused or over the limit does not count towards the rate limit."""
    sent = batch("same", proxy.org_ids[0], [0])
    assert (await proxy.audit(sent)).status == 202
    for _ in range(70):
        assert (await proxy.audit(sent)).json["duplicate"] is True
        assert (await proxy.send(AUDIT, b"{}")).status == 400
        assert (await proxy.audit(batch("foreign", "nobody", [0]))).status == 403
    assert await _send(proxy, 60) == [202] * 59 + [429]
    plane.clock.advance(seconds=59)
    assert await _send(proxy, 10) == [429] * 10
    plane.clock.advance(seconds=1)
    assert await _send(proxy, 61) == [202] * 60 + [429]


async def test_a_limited_batch_leaves_no_trace_and_a_duplicate_passes_a_full_window(
    plane: Plane, proxy: ProxyClient, clock: FakeClock
) -> None:
    stored = batch("stored", proxy.org_ids[0], [10**6])
    await proxy.audit(stored)
    await _send(proxy, 59)
    limited = batch("limited", proxy.org_ids[0], [10**7])
    assert (await proxy.audit(limited)).status == 429
    assert (await proxy.audit(stored)).json["duplicate"] is True
    clock.advance(seconds=60)
    assert (await proxy.audit(limited)).json == {"batchId": "limited", "accepted": 1, "duplicate": False}


async def test_the_window_holds_across_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    async with started(tmp_path, clock) as plane:
        await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        assert await _send(proxy, 60) == [202] * 60
    clock.advance(seconds=20)
    async with started(tmp_path, clock) as plane:
        proxy.base_url, proxy.session = plane.base_url, plane.session
        response = await _one(proxy)
        assert (response.status, response.headers["Retry-After"]) == (429, "40")


@pytest.mark.parametrize("jump_hours", [-24 * 365, 24 * 365])
async def test_a_jump_of_the_host_clock_frees_no_slot(
    proxy: ProxyClient, clock: FakeClock, jump_hours: int
) -> None:
    await _send(proxy, 60)
    clock.wall += jump_hours * 3_600_000
    assert (await _one(proxy)).headers["Retry-After"] == "60"
    clock.advance(seconds=60)
    assert (await _one(proxy)).status == 202


async def test_a_clock_set_back_at_a_restart_frees_no_slot(tmp_path: Path, clock: FakeClock) -> None:
    async with started(tmp_path, clock) as plane:
        await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        await _send(proxy, 60)
    proxy.clock = clock = FakeClock(clock.wall - 86_400_000)
    async with started(tmp_path, clock) as plane:
        proxy.base_url, proxy.session = plane.base_url, plane.session
        assert (await _one(proxy)).headers["Retry-After"] == "60"


async def test_the_limits_are_settings(tmp_path: Path, clock: FakeClock) -> None:
    async with started(tmp_path, clock, Audit="RateLimitProxy = 2\nRateLimitOrg = 3") as plane:
        await plane.org("acme")
        first, second = await plane.proxy("p1", "acme"), await plane.proxy("p2", "acme")
        assert await _send(first, 3) == [202, 202, 429]
        assert await _send(second, 2) == [202, 429]


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    path = write_settings(tmp_path, Audit="RateLimitProxy = 2\nRateLimitOrg = 3")
    environment = {"AUDIT_RATE_LIMIT_ORG": "500", "AUDIT_RATE_LIMIT_PROXY": "300", "Audit__RateLimitOrg": "9"}
    audit = read_settings(path, environment).audit
    assert (audit.rate_limit_org, audit.rate_limit_proxy) == (500, 300)


@pytest.mark.parametrize(
    ("blocking", "wait"),
    [((None, None), 0), ((0, None), 60), ((None, 1), 61), ((-59_999, 0), 60), ((-59_999, None), 1)],
)
def test_the_wait_is_the_longest_in_whole_seconds(blocking: tuple[int | None, ...], wait: int) -> None:
    assert retry_after_seconds(0, blocking) == wait
