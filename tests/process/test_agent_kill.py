"""Tests that SIGKILL workers and agents at random times, with failures of the control plane."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

from tests.fakes.control_plane import FakeControlPlane, Script, break_off, error
from tests.fakes.server import Response
from tests.patience import PATIENCE_SECONDS
from tests.process.agent_parts import AUDITING_AGENT, WORKER, start

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


async def acknowledged(worker: asyncio.subprocess.Process) -> int:
    """Return the number of recorded events that the worker reported in complete lines of its output."""
    assert worker.stdout is not None
    lines = (await worker.stdout.read()).split(b"\n")[:-1]
    return max((int(line) for line in lines if line.isdigit()), default=0)


async def killed(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def agent_for(directory: Path, control: FakeControlPlane) -> asyncio.subprocess.Process:
    agent = await start(AUDITING_AGENT, str(directory), control.base_url + "/api/v1/agent/audit")
    assert agent.stdout is not None
    await agent.stdout.readline()
    return agent


async def test_no_kill_of_worker_or_agent_loses_or_doubles_an_event(tmp_path: Path) -> None:
    chance = random.Random(11)
    failures: list[Script] = [Response(202), Response(503), break_off, error(429, "rateLimited")]
    async with FakeControlPlane() as control:
        recorded = 0
        worker = await start(WORKER, str(tmp_path), "1", "2000")
        agent = await agent_for(tmp_path, control)
        for kill in range(16):
            control.audit_script.extend(chance.choices(failures, k=4))
            await asyncio.sleep(chance.uniform(0.05, 0.9))
            if kill % 4 == 3:
                await killed(worker)
                recorded += await acknowledged(worker)
                worker = await start(WORKER, str(tmp_path), str(kill + 2), "2000")
            else:
                await killed(agent)
                agent = await agent_for(tmp_path, control)
        await killed(worker)
        recorded += await acknowledged(worker)
        arrived = control.until(lambda: sum(map(len, control.events.values())) >= recorded)
        await asyncio.wait_for(arrived, PATIENCE_SECONDS)
        agent.send_signal(signal.SIGTERM)
        await agent.wait()
        assert agent.returncode == 0
        assert control.problems == []
        assert {len(bodies) for bodies in control.bodies.values()} == {1}
        ids = []
        for org_id, events in control.events.items():
            assert control.seqs(org_id) == list(range(1, len(events) + 1))
            ids += [event["id"] for event in events]
        assert len(ids) == len(set(ids)) >= recorded > 1000


async def test_sigterm_delivers_what_workers_that_have_ended_left(tmp_path: Path) -> None:
    async with FakeControlPlane() as control:
        worker = await start(WORKER, str(tmp_path), "1", "2000")
        agent = await agent_for(tmp_path, control)
        await control.until(lambda: bool(control.events))
        await killed(worker)
        recorded = await acknowledged(worker)
        agent.send_signal(signal.SIGTERM)
        await agent.wait()
        assert agent.returncode == 0
        assert sum(map(len, control.events.values())) >= recorded


async def test_a_second_agent_on_the_directory_waits_for_the_first(tmp_path: Path) -> None:
    async with FakeControlPlane() as control:
        first = await agent_for(tmp_path, control)
        second = await agent_for(tmp_path, control)
        worker = await start(WORKER, str(tmp_path), "1", "2000")
        await control.until(lambda: sum(map(len, control.events.values())) > 200)
        await killed(first)
        before = sum(map(len, control.events.values()))
        await control.until(lambda: sum(map(len, control.events.values())) > before + 200)
        await killed(worker)
        await killed(second)
        for org_id, events in control.events.items():
            assert control.seqs(org_id) == list(range(1, len(events) + 1))
