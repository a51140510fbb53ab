"""A wall clock that jumps by an hour, forth and back, under the whole proxy: nothing but tokens may notice,
and those are had again at once; what the control plane refuses meanwhile arrives later, once and in order."""

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
# Every process of the proxy reads the wall clock through this; the monotonic one is the kernel's.
SHIM = """
import mmap, os, struct, time
_page = mmap.mmap(os.open(os.environ["CLOCK_OFFSET"], os.O_RDONLY), 8, prot=mmap.PROT_READ)
_offset, _time, _time_ns = struct.Struct("<q"), time.time, time.time_ns
time.time = lambda: _time() + _offset.unpack(_page)[0]
time.time_ns = lambda: _time_ns() + _offset.unpack(_page)[0] * 1_000_000_000
"""


@dataclass
class WallClock:
    """Of the proxy's processes; the control plane, Graph and the identity provider have the true one."""

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
    """What every client of the token endpoint does: a new token on 401, then the request again."""

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
    """Neither for those who see it, nor for those who are born into it."""
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
        assert "confirmed at a time still to come" in str(readiness(system))


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
            assert (await in_flight).status in (200, 401)  # the latter by the token alone
            await slow.authenticate(system)
            assert application.seen[401] <= jump
            if offset:
                await until(lambda: "timestampOutOfRange" in readiness(system)["checks"]["sync"]["detail"])
                assert "set this machine's clock" in readiness(system)["checks"]["sync"]["detail"]
            # Processes that are born into the wrong hour serve like those that saw the jump.
            for name, pid in processes(system).items():
                if name in ("worker-0", "agent"):
                    os.kill(pid, signal.SIGKILL)
            await until(lambda: readiness(system)["ready"])
            await until(lambda: readiness(system)["checks"]["workers"]["status"] == "ok")
            client.close()
            slow.close()
            for _ in range(8):  # whichever worker has the connection
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
