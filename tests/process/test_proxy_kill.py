"""Tests that send SIGKILL to each process under load: each response has exactly one event."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.system import System
from tests.process.proxy_parts import (
    LONG,
    Client,
    Load,
    Reply,
    alive,
    assert_no_gap,
    client_of,
    events,
    kill_all,
    kill_control_plane,
    log_of,
    processes,
    readiness,
    stored_paths,
    until,
    whole_system,
)

# Loaded into the proxy by Python at its start: a read of a certain body never returns.
HANGING = """
import json
loads = json.loads
def hanging(text, **options):
    while isinstance(text, str) and "hang forever" in text:
        pass
    return loads(text, **options)
json.loads = hanging
"""
EVALUATED = """
version: 1
name: evaluated
default: allow
rules:
  - {id: no, match: {path: [/v1.0/evaluated]}, verdict: block, conditions: [{body: a, equals: b}]}
"""

KILLS = int(os.environ.get("GRAPHWARD_KILLS", "200" if LONG else "12"))

pytestmark = [pytest.mark.process, pytest.mark.timeout(max(1800 if LONG else 300, 10 * KILLS))]


async def test_no_kill_loses_or_doubles_the_event_of_a_completed_response(tmp_path: Path) -> None:
    chance = random.Random(7)
    victims = ["worker", "agent", "supervisor", "everything", "worker"]
    # Small segments, because a killed worker's segment stays until an agent runs long enough to remove it.
    async with whole_system(tmp_path, environment={"Audit__SegmentBytes": "262144"}) as system:
        async with Load(system) as load:
            for kill in range(KILLS):
                await asyncio.sleep(chance.uniform(0.05, 0.5))
                await _kill(system, victims[kill % len(victims)], chance)
                await load.responses(10)  # it serves again
        await arrived(system, load)
        await until(lambda: readiness(system)["checks"].get("audit", {}).get("status") == "ok")
        found = events(system)
        passed = [event for event in found if event["path"].startswith("/v1.0/echo/")]
        assert len(passed) == len({event["path"] for event in passed})
        assert len(found) == len({event["id"] for event in found})
        assert_no_gap(found)
        assert list(load.responded.values()).count(200) > 10 * KILLS
        for event in passed:  # 503 if the agent died again before it had an upstream token
            assert event["status"] == load.responded.get(event["path"], event["status"])


async def arrived(system: System, load: Load) -> None:
    """Wait until the control plane has the event of every complete response."""
    # A 503 of a proxy that can't serve yet has no event, because no exchange was begun.
    responded = {path for path, status in load.responded.items() if status == 200}
    assert set(load.responded.values()) <= {200, 503}
    missing = responded - stored_paths(system)
    rounds_without_progress = 0
    while missing and rounds_without_progress < 20:
        await asyncio.sleep(1)
        before, missing = missing, responded - stored_paths(system)
        rounds_without_progress = 0 if missing < before else rounds_without_progress + 1
    assert len(missing) == 0, readiness(system)


async def _kill(system: System, victim: str, chance: random.Random) -> None:
    if victim == "everything":
        await kill_all(system)
        await system.start_proxy()
    elif victim == "supervisor":
        os.kill(system.proxy.process.pid, signal.SIGKILL)
        await system.proxy.process.wait()
        await system.start_proxy()
    else:
        await until(lambda: processes(system, victim))
        os.kill(chance.choice(list(processes(system, victim).values())), signal.SIGKILL)


async def test_a_dead_worker_loses_no_connection_that_waits_to_be_accepted(tmp_path: Path) -> None:
    async with whole_system(tmp_path, workers=1) as system, client_of(system) as known:
        worker = processes(system)["worker-0"]
        os.kill(worker, signal.SIGSTOP)
        waiting = [Client(system, system.client_context(), known.token) for _ in range(20)]
        responses = [asyncio.create_task(each.get(f"/v1.0/echo/{at}")) for at, each in enumerate(waiting)]
        port = int(system.proxy_url.rpartition(":")[2])
        await until(lambda: _established(port) >= 21)  # the kernel accepts them, although no worker does
        os.kill(worker, signal.SIGKILL)
        assert [(await response).status for response in responses] == [200] * 20
        for each in waiting:
            each.close()


async def test_a_worker_that_is_ended_for_hanging_records_what_is_under_way(tmp_path: Path) -> None:
    """The upstream may have processed the request, although the client gets no response."""
    async with whole_system(tmp_path, workers=1) as system, client_of(system) as known:
        await _under_way(system, known, lambda: os.kill(processes(system)["worker-0"], signal.SIGABRT))


@pytest.mark.skipif(not LONG, reason="a quarter of a minute of a busy processor: GRAPHWARD_LONG=1")
async def test_a_worker_that_hangs_is_replaced_and_what_was_under_way_is_on_record(tmp_path: Path) -> None:
    places = tmp_path / "python"
    places.mkdir()
    (places / "sitecustomize.py").write_text(HANGING, "utf-8")
    rules = tmp_path / "evaluated.yaml"
    rules.write_text(EVALUATED, "utf-8")
    system = System(tmp_path, {"app": rules}, workers=1, proxy_environment={"PYTHONPATH": str(places)})
    async with system, client_of(system) as known:
        killer = Client(system, system.client_context(), known.token)
        body = '{"a":"hang forever"}'
        fields = f"Host: x\r\nAuthorization: Bearer {known.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        request = f"POST /v1.0/evaluated HTTP/1.1\r\n{fields}{body}".encode()
        hanging: list[asyncio.Task[Reply]] = []
        await _under_way(system, known, lambda: hanging.append(asyncio.create_task(killer.exchange(request))))
        await asyncio.gather(*hanging, return_exceptions=True)
        # including the request in which the worker hung
        await until(lambda: "/v1.0/evaluated" in stored_paths(system))
        killer.close()


async def _under_way(system: System, known: Client, end_worker: Callable[[], None]) -> None:
    before = processes(system)["worker-0"]
    clients = [Client(system, system.client_context(), known.token) for _ in range(5)]
    paths = [f"/v1.0/gate/{at}" for at in range(5)]
    asked = [asyncio.create_task(each.get(path)) for each, path in zip(clients, paths, strict=True)]
    await until(lambda: {each.target for each in system.graph.requests} >= set(paths))
    end_worker()
    await asyncio.gather(*asked, return_exceptions=True)
    await until(lambda: processes(system).get("worker-0", before) != before)
    await until(lambda: stored_paths(system) >= set(paths))
    found = [event for event in events(system) if event["path"] in paths]
    assert len(found) == len(paths)
    assert {(event["status"], event["reason"]) for event in found} == {(499, "clientAborted")}
    assert_no_gap(events(system))
    for at, each in enumerate(clients):
        system.graph.gate(str(at)).set()
        each.close()


def _established(port: int) -> int:
    """Return the kernel's count of the server's connections at the port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(1 for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01")


async def test_a_killed_supervisor_leaves_no_process_behind(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system, Load(system, clients=2) as load:
        children = processes(system)
        assert set(children) == {"worker-0", "worker-1", "agent"}
        await load.responses(20)
        os.kill(system.proxy.process.pid, signal.SIGKILL)
        await system.proxy.process.wait()
        await until(lambda: not any(alive(pid) for pid in children.values()), seconds=15)
        await system.start_proxy()
        await load.responses(20)
    assert load.statuses() == {200}


async def test_a_control_plane_killed_while_it_takes_events_has_each_of_them_once(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with whole_system(tmp_path) as system:
        async with Load(system) as load:
            for _ in range(20 if LONG else 4):
                await asyncio.sleep(chance.uniform(0.2, 1.2))
                await kill_control_plane(system)
                await load.responses(50)
                await system.start_control_plane()
        await until(lambda: set(load.responded) <= stored_paths(system))
        found = events(system)
        assert len([event for event in found if event["path"] in load.responded]) == len(load.responded)
        assert_no_gap(found)
        assert load.broken == []
        assert load.statuses() == {200}
        assert readiness(system)["ready"]


async def test_a_dead_worker_is_replaced_and_a_crash_loop_slows_down(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system, client_of(system) as client:
        before = processes(system)["worker-1"]
        os.kill(before, signal.SIGKILL)
        await until(lambda: processes(system).get("worker-1", before) != before)
        await until(lambda: readiness(system)["checks"]["workers"]["status"] == "ok")
        for _ in range(5):  # each dies at its start
            await until(lambda: processes(system, "worker-1"))
            os.kill(processes(system)["worker-1"], signal.SIGKILL)
            await until(lambda: "worker-1" not in processes(system))
        # The sixth start is delayed by seconds, and the other worker serves.
        assert "worker-1" not in processes(system)
        client.close()
        statuses = set()
        for at in range(10):
            statuses |= await _asked_once(client, at)
        assert statuses == {200}
        await until(lambda: readiness(system)["checks"]["workers"]["status"] == "ok")
    assert log_of(system).count("worker-1 ended with signal SIGKILL") == 6


async def _asked_once(client: Client, at: int) -> set[int]:
    """Connections in the queue of a dead worker wait for the worker that replaces it."""
    try:
        return {(await client.get(f"/v1.0/echo/{at}")).status}
    finally:
        client.close()


async def test_hung_processes_are_replaced(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system, client_of(system) as client:
        hung = processes(system)
        for name in ("worker-0", "agent"):
            os.kill(hung[name], signal.SIGSTOP)
        await until(lambda: not alive(hung["worker-0"]) and not alive(hung["agent"]))
        await until(lambda: readiness(system)["ready"])
        await until(lambda: readiness(system)["checks"]["workers"]["status"] == "ok")
        assert "replacing worker-0: it does not respond" in log_of(system)
        assert "replacing agent: it does not respond" in log_of(system)
        assert processes(system)["worker-1"] == hung["worker-1"]
        client.close()
        assert (await client.get("/v1.0/echo/1")).status == 200
        await until(lambda: "/v1.0/echo/1" in stored_paths(system))
