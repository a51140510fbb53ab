"""Tests of a log reader that stalls or exits: the proxy and control plane do not wait for the reader."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.fakes.system import System
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import (
    client_of,
    get,
    processes,
    readiness,
    rules_file,
    status_becomes,
    until,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

STRANGERS = 40  # unauthenticated requests; each writes a log line


class Pipe:
    """A pipe that replaces a log file. The test's process reads from the pipe."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def fill(self) -> None:
        writer = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        for piece in (bytes(4096), b"\n"):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(writer, piece)
        os.close(writer)

    def read(self) -> str:
        found = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._reader, 1 << 20):
                found += piece
        return found.replace(b"\0", b"").decode()

    def close(self) -> None:
        os.close(self._reader)


async def test_nothing_waits_for_a_log_that_nobody_reads(tmp_path: Path) -> None:
    logs = {name: Pipe(tmp_path / f"{name}.log") for name in ("proxy", "controlplane")}
    async with (
        System(tmp_path, {"app": rules_file(tmp_path)}, workers=2, warm=False) as system,
        client_of(system) as client,
    ):
        assert (await client.get("/v1.0/users")).status == 200
        for log in logs.values():
            log.read()
            log.fill()
        context = system.client_context()
        for _ in range(STRANGERS):
            client.close()
            reply = await client.exchange(
                b"GET /v1.0/users HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n"
            )
            assert reply.status == 401
            status, _ = await asyncio.to_thread(get, f"{system.control_plane_url}/api/v1/agent/sync", context)
            assert status == 401
        before = processes(system, "worker")
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        await until(lambda: len(set(processes(system, "worker").values()) - set(before.values())) == 2)
        client.close()
        await status_becomes(client, "/v1.0/users", 200)
        await until(lambda: readiness(system)["status"] == 200)
        await system.cli("kill", "all")
        await status_becomes(client, "/v1.0/users", 403)

        # When it is read again, the log continues and reports the lost lines.
        logs["proxy"].read()
        await system.cli("unkill", "all")
        await status_becomes(client, "/v1.0/users", 200)
        report = ""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "lines before this one: the log was not read in time" not in report:
                report += logs["proxy"].read()
                await asyncio.sleep(0.05)

        logs["proxy"].fill()
        for child in (system.proxy, system.control_plane):
            os.kill(child.process.pid, signal.SIGTERM)
            assert await asyncio.wait_for(child.process.wait(), PATIENCE_SECONDS) == 0
    for log in logs.values():
        log.close()
