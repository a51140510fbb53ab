"""Tests that SIGKILL the control plane during delivery: a sink gets each event, in order."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from controlplane.clock import SystemClock
from tests.controlplane.plane import ProxyClient, batch, write_settings
from tests.controlplane.processes import facts, server
from tests.fakes.splunk import splunk_collector

pytestmark = pytest.mark.process


async def test_no_kill_loses_an_event_on_its_way_to_a_sink(tmp_path: Path) -> None:
    async with splunk_collector() as collector, aiohttp.ClientSession() as session:
        sink = f'[[Sinks]]\nName = "siem"\nKind = "splunk"\nUrl = "{collector.url}"\nToken = "hec-token"'
        config = write_settings(tmp_path, Log=f'Level = "info"\n{sink}\nFrom = "beginning"')
        org = facts(config, "org", "add", "acme")["orgId"]
        added = facts(config, "proxy", "add", "edge-1", "--org", "acme")
        keys = added["proxyId"], added["apiKey"], added["hmacSecret"]
        proxy = ProxyClient(session, "", SystemClock(), *keys, [org])
        for is_killed in (True, False):
            async with server(config) as running:
                proxy.base_url = running.address
                if is_killed:  # between the delivery and its response
                    collector.after.append(partial(running.process.send_signal, signal.SIGKILL))
                    assert (await proxy.audit(batch("b1", org, range(3)))).status == 202
                    assert await running.wait() == -signal.SIGKILL
                else:
                    assert (await proxy.audit(batch("b2", org, range(3, 6)))).status == 202
                    while collector.events[-1]["event"]["seq"] != 5:
                        await collector.took.acquire()
    arrived = [each["event"]["seq"] for each in collector.events]
    assert arrived == [0, 1, 2, 0, 1, 2, 3, 4, 5], "a delivery without a response is repeated"
