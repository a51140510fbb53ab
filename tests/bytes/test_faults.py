"""Tests of unexpected faults: the exchange ends at once, and the audit event names the proxy as the cause."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.bytes.data_path import CLIENT_ID, CLIENT_SECRET, data_path, ok, responding, until
from tests.patience import PATIENCE_SECONDS

UNAUTHORISED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"


def faults() -> list[dict[str, Any]]:
    """Collect the faults that are reported to the event loop from now on."""
    report: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: report.append(context))
    return report


async def test_a_fault_while_a_response_is_read_is_the_proxys_own(tmp_path: Path) -> None:
    def broken(generation: int) -> None:
        raise RuntimeError("a fault")

    async with data_path(responding(UNAUTHORISED, ok(b"{}")), tmp_path) as proxy:
        report = faults()
        proxy.credential._ask_for_another = broken
        assert await asyncio.wait_for(proxy.raw(proxy.request()), PATIENCE_SECONDS) == b""
        (event,) = proxy.events()
        assert (event["status"], event["reason"], event["upstreamStatus"]) == (500, "internalError", 401)
        assert [str(each["exception"]) for each in report] == ["a fault"]
        await until(lambda: proxy.context.pool.open_connections == 0)


async def test_a_fault_while_a_request_is_read_is_the_proxys_own(tmp_path: Path) -> None:
    form = f"grant_type=client_credentials&client_id={CLIENT_ID}&client_secret={CLIENT_SECRET}".encode()
    fields = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n" % len(form)
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        report = faults()
        proxy.context.executor.shutdown()
        for pieces in ([form], [b"", form]):
            reader, writer = await proxy.connect()
            writer.write(proxy.request("/proxy/token", "POST", fields) + pieces[0])
            if len(pieces) > 1:
                await until(lambda: proxy.context.in_flight() == 1)
                writer.write(pieces[1])
            assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
            writer.close()
        assert [(each["status"], each["reason"]) for each in proxy.events()] == [(500, "internalError")] * 2
        assert len(report) == 2
