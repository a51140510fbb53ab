"""Tests of a wall clock that jumps an hour forward and back while all processes of the proxy run.

A clock jump affects only the tokens, and the proxy replaces its tokens at once. Events that the control plane
refuses during the clock jump arrive later, once and in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.system import System
from tests.process.proxy_parts import (
    Client,
    assert_no_gap,
    client_of,
    events,
    kill_control_plane,
    log_of,
    processes,
    readiness,
    status_becomes,
    stored_paths,
    until,
    whole_system,
)

pytestmark = pytest.mark.process

HOUR = 3600
# Every process of the proxy reads the wall clock through this library; the monotonic clock is the kernel's.
SHIM = """
import mmap, os, struct, time
_page = mmap.mmap(os.open(os.environ["CLOCK_OFFSET"], os.O_RDONLY), 8, prot=mmap.PROT_READ)
_offset, _time, _time_ns = struct.Struct("<q"), time.time, time.time_ns
time.time = lambda: _time() + _offset.unpack(_page)[0]
time.time_ns = lambda: _time_ns() + _offset.unpack(_page)[0] * 1_000_000_000
"""


@dataclass
class WallClock:
    """A wall clock that only the proxy's own processes read, so that a test can change its time.

    Programs other than the proxy read the real clock of the host, which the test does not change.
    """

    offset: Path
    environment: dict[str, str]

    def set(self, seconds: int) -> None:
        with self.offset.open("r+b") as file:
            file.write(struct.pack("<q", seconds))


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    offset = tmp_path / "offset"
    offset.write_bytes(struct.pack("<q", 0))
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(SHIM, "utf-8")
    return WallClock(offset, {"PYTHONPATH": str(shim), "CLOCK_OFFSET": str(offset)})


@dataclass
class Application:
    """An application that gets a new token after a 401, and sends the request again, as clients do."""

    system: System
    client: Client
    seen: Counter[int]
    responded: list[str]

    async def ask(self, count: int) -> None:
        for _ in range(count):
            path = f"/v1.0/echo/{len(self.responded)}-{sum(self.seen.values())}"
            reply = await self.client.get(path)
            self.seen[reply.status] += 1
            self.responded.append(path)
            if reply.status == 401:
                assert json.loads(reply.body)["error"]["code"] == "InvalidAuthenticationToken"
                await self.client.authenticate(self.system)


async def test_a_clock_that_is_set_back_makes_no_old_rules_good_again(
    tmp_path: Path, clock: WallClock
) -> None:
    """Rules that have expired stay invalid in running processes and in processes that start later."""
    environment = clock.environment | {"RuleSync__MaxStalenessSeconds": "3"}
    async with (
        whole_system(tmp_path, workers=1, environment=environment) as system,
        client_of(system) as client,
    ):
        await kill_control_plane(system)
        await until(lambda: readiness(system)["status"] == 503)
        await status_becomes(client, "/v1.0/echo/1", 503)
        clock.set(-HOUR)
        with pytest.raises(AssertionError, match="too old"):
            await client.authenticate(system)
        for name in ("worker-0", "agent", "worker-0"):
            os.kill(processes(system)[name], signal.SIGKILL)
            await until(lambda: {"worker-0", "agent"} == processes(system).keys())
            await until(lambda: readiness(system)["status"] != 0)
            assert readiness(system)["status"] == 503
            client.close()
            with pytest.raises(AssertionError, match="too old"):
                await client.authenticate(system)
        assert "confirmed at a time in the future" in str(readiness(system))


async def test_jumps_of_an_hour_cost_a_token_and_nothing_else(tmp_path: Path, clock: WallClock) -> None:
    async with (
        whole_system(tmp_path, environment=clock.environment) as system,
        client_of(system) as client,
        client_of(system) as slow,
    ):
        application = Application(system, client, Counter(), [])
        await application.ask(20)
        for jump, offset in enumerate((HOUR, 0, -HOUR, 0), 1):
            in_flight = asyncio.create_task(slow.get("/v1.0/slow/1500"))
            await system.graph.received(1)
            clock.set(offset)
            await application.ask(50)
            assert (await in_flight).status in (200, 401)  # 401 only because of the token
            await slow.authenticate(system)
            assert application.seen[401] <= jump
            if offset:
                await until(lambda: "timestampOutOfRange" in readiness(system)["checks"]["sync"]["detail"])
                assert "set this machine's clock" in readiness(system)["checks"]["sync"]["detail"]
            # Processes that start during the wrong hour serve like those that ran during the jump.
            for name, pid in processes(system).items():
                if name in ("worker-0", "agent"):
                    os.kill(pid, signal.SIGKILL)
            await until(lambda: readiness(system)["ready"])
            await until(lambda: readiness(system)["checks"]["workers"]["status"] == "ok")
            client.close()
            slow.close()
            for _ in range(8):  # connections may reach either worker
                await application.ask(2)
                client.close()
            await until(lambda: readiness(system)["checks"]["credentials"]["status"] == "ok")
        assert set(application.seen) <= {200, 401}
        assert application.seen[200] > 250
        await until(lambda: set(application.responded) <= stored_paths(system))
        await until(lambda: readiness(system)["checks"]["sync"]["status"] == "ok")
        assert_no_gap(events(system))
        assert len({event["id"] for event in events(system)}) == len(events(system))
    assert "Traceback" not in log_of(system)
