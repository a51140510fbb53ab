"""A full disk for audit events: requests are refused, none is answered unrecorded, service returns by
itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.proxy_parts import (
    Client,
    Load,
    assert_no_gap,
    client_of,
    events,
    kill_all,
    kill_control_plane,
    log_of,
    metrics,
    processes,
    readiness,
    stored_paths,
    until,
    whole_system,
)
from tests.standins.system import System

pytestmark = pytest.mark.process

ENVIRONMENT = {"Audit__SegmentBytes": "262144"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few MB where the events go."""
    disk = tmp_path / "audit"
    disk.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"a small disk can't be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Takes every byte that is left."""
    filler = disk / "something-else"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return filler


async def until_refused(load: Load) -> None:
    async with asyncio.timeout(60):
        while 503 not in load.statuses():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def served(load: Load) -> set[str]:
    return {path for path, status in load.answered.items() if status == 200}


async def settled(system: System, load: Load) -> None:
    """Every answer has its event, and no request that was refused has one or reached the upstream."""
    await until(lambda: served(load) <= stored_paths(system))
    found = events(system)
    assert_no_gap(found)
    paths = [event["path"] for event in found if event["path"].startswith("/v1.0/echo/")]
    assert len(paths) == len(set(paths))
    refused = {path for path, status in load.answered.items() if status == 503}
    assert refused.isdisjoint(paths)
    assert refused.isdisjoint(request.path for request in system.graph.requests)
    assert load.statuses() == {200, 503}


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path, small_disk: Path) -> None:
    async with whole_system(tmp_path, environment=ENVIRONMENT) as system:
        before = processes(system)
        await kill_control_plane(system)  # so that nothing makes room meanwhile
        async with Load(system) as load:
            await load.answers(50)
            filler = fill(small_disk)
            await until_refused(load)
            await until(lambda: readiness(system)["status"] == 503)
            assert readiness(system)["reasons"] == ["there is no room for audit events"]
            stranger = Client(system, system.client_context(), "no-token")
            reply = await stranger.get("/v1.0/echo/1")
            assert (reply.status, json.loads(reply.body)["error"]["code"]) == (503, "notReady")
            assert int(reply.headers["retry-after"]) > 0
            stranger.close()
            assert metrics(system)["graphward_not_ready_total"] > 0
            filler.unlink()
            await system.start_control_plane()
            count = load.served
            await until(lambda: load.served > count + 50)
            await until(lambda: readiness(system)["ready"])
        await settled(system, load)
        assert processes(system) == before  # nobody had to be restarted
    assert "no room for audit events" in log_of(system)
    assert "there is room for audit events again" in log_of(system)
    assert "Traceback" not in log_of(system)
    assert "SIGBUS" not in log_of(system)


async def test_a_disk_that_events_alone_have_filled_empties_again(tmp_path: Path, small_disk: Path) -> None:
    async with whole_system(tmp_path, environment=ENVIRONMENT) as system:
        await kill_control_plane(system)
        os.kill(processes(system)["agent"], signal.SIGSTOP)  # the workers alone fill it, until it is replaced
        async with Load(system) as load:
            await until_refused(load)
            await system.start_control_plane()
            count = load.served
            await until(lambda: load.served > count + 50)
        await settled(system, load)
        await until(lambda: readiness(system)["ready"])


async def test_a_proxy_that_starts_on_a_full_disk_serves_once_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    async with whole_system(tmp_path, environment=ENVIRONMENT) as system:
        await kill_all(system)
        filler = fill(small_disk)
        await system.start_proxy(until_ready=False)
        await until(lambda: "there is no room for audit events" in readiness(system)["reasons"])
        filler.unlink()
        await until(lambda: readiness(system)["ready"])
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/1")).status == 200
        await until(lambda: "/v1.0/echo/1" in stored_paths(system))
