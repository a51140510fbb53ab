"""Tests of a control plane's full disk: batches are refused, and emergency stops still work."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from controlplane.store.reserve import SIZE
from tests.controlplane.plane import FakeClock, Plane, ProxyClient, batch, started
from tests.controlplane.test_admin import Browser, call, operator
from tests.controlplane.test_enrolment import client, enrol, renew
from tests.controlplane.test_enrolment import token as enrolment_token


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk takes privileges")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
async def plane(disk: Path, clock: FakeClock) -> AsyncIterator[Plane]:
    async with started(disk, clock) as plane:
        yield plane


def fill(disk: Path) -> None:
    """Use all free bytes of the disk.

    A second call of `fill` also uses the disk bytes that other programs freed since the first call.
    """
    with (disk / "something-else").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


def leave(disk: Path, room: int) -> None:
    filler = disk / "something-else"
    os.truncate(filler, filler.stat().st_size - room)


def reserve_size(disk: Path) -> int:
    return (disk / "var" / "controlplane.db.reserve").stat().st_size


async def test_operators_stop_and_disable_and_proxies_hear_of_it(
    plane: Plane, proxy: ProxyClient, disk: Path, clock: FakeClock
) -> None:
    token = await operator(plane, "ada", {"*": "admin"})
    await operator(plane, "eve", {"*": "viewer"})
    assert (await proxy.audit(batch("first", proxy.org_ids[0], [1]))).status == 202
    assert reserve_size(disk) == SIZE
    found = (await call(plane, token, "GET", "/audit/events")).json
    assert (len(found["events"]), found["behind"]) == (1, False)
    fill(disk)

    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        assert (await Browser(session, plane.console_url).sign_in("ada")).status == 200
    for _ in range(20):
        fill(disk)
        assert (await call(plane, token, "POST", "/stops/all", {"reason": "a leak"})).status == 200
        assert (await proxy.sync()).json["stops"]["everything"]
        fill(disk)
        assert (await call(plane, token, "DELETE", "/stops/all")).status == 200
        assert "stops" not in (await proxy.sync()).json
    assert (await call(plane, token, "POST", "/operators/eve/disable", {})).status == 200
    leave(disk, 128 * 1024)
    assert (await proxy.audit(batch("second", proxy.org_ids[0], [2]))).status == 202
    fill(disk)
    assert (await proxy.audit(batch("third", proxy.org_ids[0], range(3, 503)))).status == 503
    found = (await call(plane, token, "GET", "/audit/events")).json
    assert (len(found["events"]), found["behind"]) == (1, True)
    assert 0 < reserve_size(disk) < SIZE

    (disk / "something-else").unlink()
    clock.advance(seconds=60)
    assert (await proxy.audit(batch("third", proxy.org_ids[0], range(3, 503)))).status == 202
    assert reserve_size(disk) == SIZE


async def test_who_has_not_signed_in_uses_none_of_the_reserve(
    plane: Plane, proxy: ProxyClient, disk: Path
) -> None:
    assert (await proxy.audit(batch("first", proxy.org_ids[0], [1]))).status == 202
    await operator(plane, "ada", {"*": "admin"})
    fill(disk)
    kept = reserve_size(disk)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        for _ in range(4):
            fill(disk)
            assert (await Browser(session, plane.console_url).sign_in("ada", "a guess of it")).status == 401
    assert reserve_size(disk) == kept


async def test_proxies_that_ask_for_keys_use_none_of_the_reserve(plane: Plane, disk: Path) -> None:
    await plane.org("acme")
    made = await enrolment_token(plane, uses=1)
    proxy = client(plane, (await enrol(plane, made.token)).json)
    await proxy.sync()
    fill(disk)
    kept = reserve_size(disk)
    for _ in range(12):
        fill(disk)
        plane.clock.advance(seconds=1)
        assert (await renew(proxy)).status in (200, 429, 503)
        assert "used up" in (await enrol(plane, made.token)).json["error"]["message"]
    assert reserve_size(disk) == kept
    assert (await proxy.sync()).status == 200  # the renewals may have any result

    (disk / "something-else").unlink()
    plane.clock.advance(hours=1)
    assert (await renew(proxy)).status == 200
