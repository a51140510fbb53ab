"""Tests of a control plane that was down for a day: the backlog arrives once, in order, within limits.

The agent's memory does not grow with the backlog.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.fakes.control_plane import FakeControlPlane, error
from tests.fakes.server import Response
from tests.process.agent_parts import AUDITING_AGENT, payload, spool_writer, start
from tests.process.proxy_parts import LONG

pytestmark = [pytest.mark.process, pytest.mark.timeout(600 if LONG else 300)]

EVENTS = 400_000 if LONG else 30_000
DAY_MS = 24 * 3600 * 1000
# Batches in a burst, and seconds of the pause after it: the real 60 a minute would take a minute.
LIMIT, PAUSE = 3, 2
MOST_MEMORY_KIB = 150 * 1024


class LimitedControlPlane(FakeControlPlane):
    """Control plane that accepts a few batches per pause.

    The control plane is unreachable until the test starts it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = True
        self._taken = 0
        self.too_early: list[float] = []  # attempts before the end of a Retry-After
        self._not_before = 0.0

    async def _audit_response(self, org_id: str) -> Response:
        now = time.monotonic()
        if self.down:
            return Response(503)
        if now < self._not_before:
            self.too_early.append(self._not_before - now)
        if self._taken < LIMIT:
            self._taken += 1
            return Response(202)
        self._taken = 0
        self._not_before = now + PAUSE
        return error(429, "rateLimited", ("Retry-After", str(PAUSE)))


def peak_memory_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("no VmHWM")


async def test_a_day_of_events_arrives_once_in_order_within_the_limits(tmp_path: Path) -> None:
    began = int(time.time() * 1000) - DAY_MS
    spool = spool_writer(tmp_path, segment_bytes=1 << 20)
    for n in range(EVENTS):
        if spool.needs_maintenance:
            spool.maintain()
        spool.append("org-1", payload(n, time_ms=began + n * (DAY_MS // EVENTS - 1)))
    spool.close()
    async with LimitedControlPlane() as control:
        agent = await start(AUDITING_AGENT, str(tmp_path), control.base_url + "/api/v1/agent/audit")
        try:
            await _back_after_a_day(control, agent.pid)
        finally:
            agent.send_signal(signal.SIGTERM)
            await agent.wait()


async def _back_after_a_day(control: LimitedControlPlane, agent: int) -> None:
    await control.until(lambda: len(control.attempts) >= 3)  # it is unreachable, and the agent retries
    control.down = False
    await asyncio.wait_for(control.until(lambda: len(control.events.get("org-1", [])) == EVENTS), 500)
    memory = peak_memory_kib(agent)
    assert control.problems == []
    assert control.seqs("org-1") == list(range(1, EVENTS + 1))  # the events arrived in order
    times = [event["time"] for event in control.events["org-1"]]
    assert times == sorted(times)
    assert len({event["id"] for event in control.events["org-1"]}) == EVENTS
    assert {len(bodies) for bodies in control.bodies.values()} == {1}  # each id stands for one body
    assert all(len(body) <= 5 * 1024 * 1024 for bodies in control.bodies.values() for body in bodies)
    assert control.too_early == []
    assert 429 in {status for _, _, _, status in control.attempts}
    assert memory < MOST_MEMORY_KIB
    print(f"{EVENTS} events in {len(control.bodies)} batches, {memory} KiB at most")
