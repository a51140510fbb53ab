"""Tests of the emergency stop of a whole system, and of a shadow ruleset on the system's traffic.

An emergency stop at the control plane reaches the proxy within one sync interval. If the control plane is
unreachable, a file on the proxy's host stops applications, also across restarts.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from proxy.rules.snapshot import read_snapshot, write_snapshot
from proxy.rules.stops import EVERYTHING_STOPPED
from tests.fakes.system import System, SystemFailedError
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import (
    Client,
    client_of,
    events,
    kill_all,
    kill_control_plane,
    log_of,
    processes,
    readiness,
    rules_file,
    until,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

LIMITS = {"Audit__RateLimitOrg": "100000", "Audit__RateLimitProxy": "100000"}
INTERVAL = 1.0  # seconds of the sync interval in the system's settings


@asynccontextmanager
async def system_with(directory: Path) -> AsyncIterator[System]:
    """Start a system with two applications and without a local stop file."""
    system = System(
        directory,
        {"app": rules_file(directory), "other": rules_file(directory, "closed", "block")},
        workers=2,
        proxy_environment={"Proxy__KillFile": str(directory / "stop")},
        control_plane_environment=LIMITS,
    )
    async with system:
        yield system


async def code(client: Client, target: str = "/v1.0/me") -> str:
    """Return the error code of the proxy's response, or an empty text for a response of the upstream."""
    reply = await client.get(target)
    return str(json.loads(reply.body)["error"]["code"]) if reply.status == 403 else ""


async def becomes(client: Client, wanted: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await code(client) != wanted:  # noqa: ASYNC110 - of another process, which can't wake us
            await asyncio.sleep(0.05)


async def token(system: System) -> tuple[int, str | None]:
    """Request a token with the correct secret, and return the status and the error."""
    app = system.applications["app"]
    form = urlencode(
        {"grant_type": "client_credentials", "client_id": app.client_id, "client_secret": app.client_secret}
    )
    fields = f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(form)}"
    client = Client(system, system.client_context())
    reply = await client.exchange(f"POST /proxy/token HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n{form}".encode())
    client.close()
    return reply.status, json.loads(reply.body).get("error")


REFUSED = (403, "emergency_stop")


async def test_a_stop_is_in_force_within_one_interval_and_survives_a_restart_alone(tmp_path: Path) -> None:
    async with system_with(tmp_path) as system, client_of(system) as client, client_of(system) as idle:
        assert await code(client) == await code(idle) == ""
        report = await system.cli("kill", "app", "app", "--reason", "leaked secret")
        assert (report["scope"], report["org"], report["app"]) == ("app", "Contoso", "app")
        await becomes(client, "emergencyStop")
        assert await code(idle) == "emergencyStop"  # a connection that was open before the stop
        assert (client.connects, idle.connects) == (1, 1)
        assert await token(system) == REFUSED
        app = next(each for each in (await system.cli("app", "list"))["apps"] if each["name"] == "app")
        report = f"the control plane stops application {app['appId']}"
        assert readiness(system)["checks"]["stops"]["detail"] == report
        assert f"EMERGENCY STOP by the control plane: application {app['appId']}" in log_of(system)
        assert readiness(system)["status"] == 200

        # The control plane is unreachable, and every process is new.
        await kill_control_plane(system)
        await kill_all(system)
        await system.start_proxy()
        client.close()
        assert await code(client) == "emergencyStop"
        assert await token(system) == REFUSED

        # The stop is lifted once the control plane is reachable again.
        await system.start_control_plane()
        left = await system.cli("unkill", "app", "app")
        assert left == {"stops": []}
        await becomes(client, "")
        assert await token(system) == (200, None)
        assert readiness(system)["checks"]["stops"] == {"status": "ok", "detail": ""}
        await until(lambda: "the control plane has lifted all emergency stops" in log_of(system))
        await until(lambda: any(event["reason"] == "stopped" for event in events(system)))
        stopped = [event for event in events(system) if event["reason"] == "stopped"]
        assert {(event["status"], event["verdict"]) for event in stopped} == {(403, "block")}
        assert {event["path"] for event in stopped} == {"/v1.0/me", "/proxy/token"}


async def test_an_organisation_and_everything_are_stopped_and_lifted_apart(tmp_path: Path) -> None:
    async with system_with(tmp_path) as system, client_of(system) as client, client_of(system) as slow:
        await system.cli("org", "add", "Fabrikam")
        await system.cli("kill", "org", "Fabrikam")  # a stop of another organisation has no effect here
        waiting = asyncio.create_task(code(slow, "/v1.0/gate/closed"))
        await until(lambda: any("/v1.0/gate/" in each.target for each in system.graph.requests))
        await system.cli("kill", "org", "Contoso")
        # A client that waits for a response does not get it.
        assert await asyncio.wait_for(waiting, PATIENCE_SECONDS) == "emergencyStop"
        system.graph.gate("closed").set()
        await becomes(client, "emergencyStop")
        await system.cli("kill", "all", "--reason", "incident 7")
        await system.cli("unkill", "org", "Contoso")
        await until(lambda: "stops everything" in readiness(system)["checks"]["stops"]["detail"])
        assert await code(client) == "emergencyStop"
        listed = (await system.cli("kill", "list"))["stops"]
        assert [(each["scope"], each["org"], each["reason"]) for each in listed] == [
            ("org", "Fabrikam", ""),
            ("all", None, "incident 7"),
        ]
        left = (await system.cli("unkill", "all"))["stops"]
        assert [each["org"] for each in left] == ["Fabrikam"]
        await becomes(client, "")
        with pytest.raises(SystemFailedError, match="there is no emergency stop for all organisations"):
            await system.cli("unkill", "all")


async def test_a_stop_that_an_agent_wrote_and_died_of_telling_is_told_by_the_next(tmp_path: Path) -> None:
    """A new agent applies an emergency stop that the killed agent had only written to disk.

    The control plane reports no change after this emergency stop.
    """
    async with system_with(tmp_path) as system, client_of(system) as client:
        assert await code(client) == ""
        agent = processes(system)["agent"]
        os.kill(agent, signal.SIGSTOP)
        await system.cli("kill", "all")
        snapshot = tmp_path / "snapshot.json"
        held = read_snapshot(snapshot)
        stopped = tuple(replace(app, enabled=False) for app in held.apps)
        write_snapshot(
            snapshot, replace(held, generation=held.generation + 1, apps=stopped, stops=EVERYTHING_STOPPED)
        )
        os.kill(agent, signal.SIGKILL)
        await becomes(client, "emergencyStop")


async def test_a_stop_waits_for_no_room_on_disk(tmp_path: Path) -> None:
    """No process of the tested proxy can write another byte to the disk, as if the disk were full."""
    async with system_with(tmp_path) as system, client_of(system) as client:
        agent = processes(system)["agent"]
        limits = resource.prlimit(agent, resource.RLIMIT_FSIZE)
        resource.prlimit(agent, resource.RLIMIT_FSIZE, (0, limits[1]))
        await system.cli("kill", "app", "app")
        await becomes(client, "emergencyStop")
        checks = readiness(system)["checks"]
        assert "stops application " in checks["stops"]["detail"]
        assert "File too large" in checks["sync"]["detail"]
        for pid in processes(system, "worker").values():  # new workers receive the stop, too
            os.kill(pid, signal.SIGKILL)
        client.close()
        assert await code(client) == "emergencyStop"

        resource.prlimit(agent, resource.RLIMIT_FSIZE, limits)
        await until(lambda: readiness(system)["checks"]["sync"]["status"] == "ok")
        assert len(read_snapshot(tmp_path / "snapshot.json").stops.apps) == 1
        await system.cli("unkill", "app", "app")
        await becomes(client, "")


async def test_a_stop_needs_no_rules_of_the_agent(tmp_path: Path) -> None:
    """The rules snapshot is lost and can't be written. The workers have rules, but a new agent has none."""
    async with system_with(tmp_path) as system, client_of(system) as client:
        assert await code(client) == ""
        snapshot = tmp_path / "snapshot.json"
        snapshot.unlink()
        snapshot.mkdir()
        os.kill(processes(system)["agent"], signal.SIGKILL)
        await until(lambda: "there are no rules yet" in log_of(system))
        assert await code(client) == ""
        await system.cli("kill", "all")
        await becomes(client, "emergencyStop")
        await until(lambda: "stops everything" in readiness(system)["checks"]["stops"]["detail"])

        snapshot.rmdir()
        await until(lambda: readiness(system)["checks"]["sync"]["status"] == "ok")
        await system.cli("unkill", "all")
        await becomes(client, "")


async def test_a_local_file_stops_without_a_control_plane(tmp_path: Path) -> None:
    file = tmp_path / "stop"
    async with system_with(tmp_path) as system, client_of(system) as client:
        await kill_control_plane(system)
        os.kill(processes(system, "agent")["agent"], signal.SIGSTOP)  # the stop does not need the agent
        file.write_text("# by hand\napp nobody\napp app\n", "utf-8")
        await becomes(client, "emergencyStop")
        assert "EMERGENCY STOP" in log_of(system)
        await until(lambda: "names app nobody, which is not in the proxy's rules" in log_of(system))
        file.write_text("app other\n", "utf-8")
        await becomes(client, "")
        os.kill(processes(system, "agent")["agent"], signal.SIGCONT)

        file.write_text("", "utf-8")
        await becomes(client, "emergencyStop")
        await until(lambda: "everything, at 2 of 2 workers" in readiness(system)["checks"]["stops"]["detail"])
        await kill_all(system)
        await system.start_proxy()
        client.close()
        assert await code(client) == "emergencyStop"  # the stop applies to the first request
        assert await token(system) == REFUSED

        file.unlink()
        file.mkdir()  # an unreadable file stops everything
        await until(lambda: "the path is not a regular file" in log_of(system))
        assert await code(client) == "emergencyStop"
        file.rmdir()
        await becomes(client, "")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await token(system) != (200, None):  # each worker reads the file itself
                pass


async def test_a_ruleset_is_tried_on_traffic_found_by_search_and_promoted(tmp_path: Path) -> None:
    async with system_with(tmp_path) as system, client_of(system) as client:
        assert (await system.cli("app", "shadow", "app", "--ruleset", "closed"))["shadowRuleset"] == "closed"

        def tried() -> bool:
            return any(event.get("shadowVerdict") == "block" for event in events(system))

        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await asyncio.to_thread(tried):
                assert await code(client) == ""
        found = await system.cli("audit", "search", "shadow:block verdict:allow", "--limit", "1")
        (event,) = found["events"]
        assert (event["shadowRuleId"], event["shadowRulesetVersion"]) == ("default", 1)
        assert (event["ruleId"], event["rulesetVersion"], event["status"]) == ("default", 1, 404)
        promoted = await system.cli("app", "promote-shadow", "app")
        assert (promoted["ruleset"], promoted["shadowRuleset"]) == ("closed", None)
        await becomes(client, "policyBlocked")
        with pytest.raises(SystemFailedError, match="has no shadow ruleset"):
            await system.cli("app", "promote-shadow", "app")
        with pytest.raises(SystemFailedError, match="give either --ruleset NAME or --off"):
            await system.cli("app", "shadow", "app")
