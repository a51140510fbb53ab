"""Tests of proxies that enrol at a real control plane, as whole processes; one is killed during enrolment."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from proxy.startup.identity_file import Enrolled, Enrolling, read_identity
from tests.fakes.system import System
from tests.process.proxy_parts import (
    assert_no_gap,
    client_of,
    events,
    kill_all,
    log_of,
    readiness,
    until,
    whole_system,
)

pytestmark = pytest.mark.process


def enrols_with(system: System, token: str) -> Path:
    """Start a proxy with the given enrolment token, and wait until the proxy has keys.

    Return the file that holds the proxy's keys.
    """
    text = system.proxy_config.read_text("utf-8")
    text = re.sub(r"(?m)^(ApiKey|HmacSecret|EnrolmentToken|IdentityPath) = .*\n", "", text)
    path = system.directory / "identity.json"
    agent = f'[Agent]\nEnrolmentToken = "{token}"\nIdentityPath = "{path}"\n'
    system.proxy_config.write_text(text.replace("[Agent]\n", agent), "utf-8")
    return path


async def enrolled(system: System) -> list[dict[str, Any]]:
    """Return the proxies that enrolled with a token, oldest first."""
    listed = await system.cli("proxy", "list")
    named = [each for each in listed["proxies"] if each["name"] != "demo-proxy"]
    return sorted(named, key=lambda each: each["proxyId"])


async def test_a_proxy_killed_while_it_enrols_is_one_proxy_and_loses_no_event(tmp_path: Path) -> None:
    """A proxy that is killed during its enrolment counts as one proxy and loses no events.

    The proxy that replaces the revoked proxy delivers the backlog of events.

    No event of the revoked proxy is missing.
    """
    async with whole_system(tmp_path, workers=1) as system:
        async with client_of(system) as client:
            for number in range(5):
                assert (await client.get(f"/v1.0/users/{number}")).status == 404
        await until(lambda: len(events(system)) == 6)
        await system.proxy.stop()

        made = await system.cli(
            "proxy", "enrol-token", "add", "--org", "Contoso", "--uses", "2", "--name", "pods"
        )
        identity = enrols_with(system, made["token"])
        await system.start_proxy(until_ready=False)
        await until(identity.exists)
        await kill_all(system)
        assert isinstance(read_identity(identity), Enrolling | Enrolled)
        await system.start_proxy()
        (first,) = await enrolled(system)
        assert readiness(system)["checks"]["identity"] == {"status": "ok", "detail": ""}
        async with client_of(system) as client:
            assert (await client.get("/v1.0/users/first")).status == 404
            await until(lambda: len(events(system)) == 8)
            system.control_plane.process.send_signal(signal.SIGSTOP)
            assert (await client.get("/v1.0/users/owed")).status == 404
        await kill_all(system)
        system.control_plane.process.send_signal(signal.SIGCONT)

        await system.cli("proxy", "disable", first["name"])
        await system.start_proxy(until_ready=False)
        await until(lambda: "are revoked, or the proxy was disabled or deleted" in log_of(system))
        await system.proxy.stop()
        assert len(await enrolled(system)) == 1

        identity.unlink()
        await system.start_proxy()
        await until(lambda: len(events(system)) == 9)
        first, second = await enrolled(system)
        assert first["name"] != second["name"]
        found = events(system)
        by_proxy: dict[str, list[dict[str, Any]]] = {each["proxyId"]: [] for each in found}
        for each in found:
            by_proxy[each["proxyId"]].append(each)
        assert len(by_proxy) == 3
        for of_one in by_proxy.values():
            assert_no_gap(of_one)
        (owed,) = [each for each in found if each["path"] == "/v1.0/users/owed"]
        assert (owed["proxyId"], owed["claimedProxyId"]) == (second["proxyId"], first["proxyId"])
        assert made["token"] not in log_of(system)

        system.proxy.process.send_signal(signal.SIGHUP)
        await until(lambda: "proxy.supervisor: reloaded" in log_of(system))
        assert readiness(system)["checks"]["identity"] == {"status": "ok", "detail": ""}
        assert "another proxy uses this identity file" not in log_of(system)
