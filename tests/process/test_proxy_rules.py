"""Tests in which rules and applications change at the control plane, or the control plane is unreachable."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.rules.snapshot import read_snapshot
from tests.fakes.control_plane import API_KEY, HMAC_SECRET, FakeControlPlane, ruleset_yaml
from tests.fakes.server import Response
from tests.fakes.system import System
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import (
    Client,
    client_of,
    kill_all,
    kill_control_plane,
    log_of,
    metrics,
    processes,
    readiness,
    rules_file,
    status_becomes,
    until,
    whole_system,
)

pytestmark = pytest.mark.process

ECHO = "/v1.0/echo/1"
SECRET = "/v1.0/secrets/1"


async def test_changes_take_effect_on_open_connections(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system, client_of(system) as client:
        assert (await client.get(ECHO)).status == 200
        assert (await client.get(SECRET)).status == 403
        closed = rules_file(tmp_path, default="block")
        await system.cli("ruleset", "apply", str(closed), "--org", system.org_id)
        await status_becomes(client, ECHO, 403)
        opened = rules_file(tmp_path)
        await system.cli("ruleset", "apply", str(opened), "--org", system.org_id)
        await status_becomes(client, ECHO, 200)
        await system.cli("app", "disable", "app", "--org", system.org_id)
        await status_becomes(client, ECHO, 401)
        await system.cli("app", "enable", "app", "--org", system.org_id)
        await status_becomes(client, ECHO, 200)
        assert client.connects == 1
        await until(lambda: metrics(system)["graphward_sync_age_seconds"] < 10)


async def test_with_its_snapshot_a_proxy_starts_and_serves_without_a_control_plane(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system:
        await kill_all(system)
        await kill_control_plane(system)
        await system.start_proxy()
        async with client_of(system) as client:
            assert (await client.get(ECHO)).status == 200
            assert (await client.get(SECRET)).status == 403
            state = readiness(system)
            assert state["ready"]
            assert state["checks"]["sync"]["status"] != "ok"


async def test_without_a_snapshot_it_refuses_and_says_why_until_there_are_rules(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system:
        await kill_all(system)
        await kill_control_plane(system)
        (tmp_path / "snapshot.json").unlink()
        (tmp_path / "snapshot.json.generated-at").unlink()
        await system.start_proxy(until_ready=False)
        client = Client(system, system.client_context(), "none")
        reply = await client.get(ECHO)
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["code"]) == (503, "notReady")
        assert "no rules" in error["message"]
        assert int(reply.headers["retry-after"]) > 0
        state = readiness(system)
        assert state["status"] == 503
        assert "there are no rules" in state["reasons"]
        await system.start_control_plane()
        await until(lambda: readiness(system)["ready"])
        await client.authenticate(system)
        assert (await client.get(ECHO)).status == 200
        client.close()


async def test_a_damaged_snapshot_is_not_applied(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system:
        async with client_of(system) as client:
            token = client.token
        await kill_all(system)
        await kill_control_plane(system)
        snapshot = tmp_path / "snapshot.json"
        whole = snapshot.read_bytes()
        at = whole.index(b"block")
        for damaged in (whole[: len(whole) // 2], whole[:at] + b"alloc" + whole[at + 5 :]):
            snapshot.write_bytes(damaged)
            await system.start_proxy(until_ready=False)
            client = Client(system, system.client_context(), token)
            reply = await client.get(SECRET)
            assert (reply.status, json.loads(reply.body)["error"]["code"]) == (503, "notReady")
            client.close()
            await kill_all(system)
        assert "cannot use the rules snapshot" in log_of(system)
        # While the proxy runs, too, the active rules stay.
        snapshot.write_bytes(whole)
        await system.start_proxy()
        snapshot.write_bytes(whole[:-1])
        worker = processes(system)["worker-0"]
        async with client_of(system) as client:
            assert (await client.get(SECRET)).status == 403
            assert (await client.get(ECHO)).status == 200
        assert processes(system)["worker-0"] == worker


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: os.truncate(file, 100)])
async def test_a_snapshot_that_is_lost_while_the_proxy_runs_is_written_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """The agent already has the current rules when the snapshot file is damaged.

    The control plane's response to a sync says only that the rules are unchanged.
    """
    snapshot = tmp_path / "snapshot.json"
    async with whole_system(tmp_path, workers=1) as system, client_of(system) as client:
        whole = read_snapshot(snapshot)
        damage(snapshot)
        os.kill(processes(system)["worker-0"], signal.SIGKILL)
        client.close()
        await status_becomes(client, ECHO, 200)
        assert read_snapshot(snapshot).rulesets == whole.rulesets


async def test_a_worker_that_could_not_read_new_rules_has_them_soon(tmp_path: Path) -> None:
    """The worker can't open files for a while, so it can't read new rules.

    The operator applies no further rules after this failure, so the worker must read the same rules again.
    """
    async with whole_system(tmp_path, workers=1) as system, client_of(system) as client:
        worker = processes(system)["worker-0"]
        limits = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (3, limits[1]))
        closed = rules_file(tmp_path, default="block")
        await system.cli("ruleset", "apply", str(closed), "--org", system.org_id)
        await until(
            lambda: (
                "cannot use the rules snapshot, so the active rules do not change: "
                "[Errno 24] Too many open files" in log_of(system)
            )
        )
        resource.prlimit(worker, resource.RLIMIT_NOFILE, limits)
        await status_becomes(client, ECHO, 403)


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[tuple[System, FakeControlPlane]]:
    """Start a proxy that uses a scripted fake control plane instead of the system's real control plane."""
    async with FakeControlPlane() as control:
        environment = {
            "RuleSync__SaasBaseUrl": control.base_url,
            "Agent__ApiKey": API_KEY,
            "Agent__HmacSecret": HMAC_SECRET,
        }
        async with whole_system(tmp_path, environment=environment) as system:
            yield system, control


def sync_check(control: FakeControlPlane) -> dict[str, Any]:
    return dict(control.heartbeats[-1]["checks"]["sync"]) if control.heartbeats else {}


async def refusal_is_reported(control: FakeControlPlane, words: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await control.until(lambda: words in sync_check(control).get("detail", ""))
    assert sync_check(control)["status"] != "ok"


async def test_a_bad_ruleset_or_signature_is_refused_and_reported(
    scripted: tuple[System, FakeControlPlane], tmp_path: Path
) -> None:
    system, control = scripted
    snapshot = tmp_path / "snapshot.json"
    good = read_snapshot(snapshot)
    body = json.loads(json.dumps(control.sync_body))

    async def recovers() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await control.until(lambda: sync_check(control).get("status") == "ok")
        assert read_snapshot(snapshot).generation == good.generation

    misspelt = ruleset_yaml().replace("verdict: allow", "verdict: alow")
    control.sync_body = {**body, "rulesets": [{**body["rulesets"][0], "yaml": misspelt}]}
    await refusal_is_reported(control, "line 7")
    assert read_snapshot(snapshot).generation == good.generation
    control.sync_body = body
    await recovers()

    control.spoil_signature = lambda signature: signature[:-1] + ("0" if signature[-1] != "0" else "1")
    changed = {**body["rulesets"][0], "yaml": ruleset_yaml("blocks-more")}
    control.sync_body = {**body, "rulesets": [changed]}
    await refusal_is_reported(control, "signed")
    assert read_snapshot(snapshot).generation == good.generation
    control.spoil_signature = lambda signature: signature
    control.sync_body = body
    await recovers()

    control.sync_script.extend([Response(200, (), b"garbage")] * 2)
    await refusal_is_reported(control, "signed")
    await recovers()
    assert readiness(system)["ready"]


async def test_past_its_stated_age_the_last_good_state_is_refused(tmp_path: Path) -> None:
    environment = {"RuleSync__MaxStalenessSeconds": "3"}
    async with whole_system(tmp_path, environment=environment) as system, client_of(system) as client:
        await kill_control_plane(system)
        assert (await client.get(ECHO)).status == 200
        await status_becomes(client, ECHO, 503)
        assert readiness(system)["status"] == 503
        await system.start_control_plane()
        await status_becomes(client, ECHO, 200)


async def test_the_admin_listener_tells_of_all_workers(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system, client_of(system) as client:
        before = metrics(system)
        clients = [Client(system, system.client_context(), client.token) for _ in range(12)]
        for each in clients:
            assert (await each.get(ECHO)).status == 200
            assert (await each.get(SECRET)).status == 403
        after = metrics(system)
        assert after["graphward_allowed_total"] - before["graphward_allowed_total"] == 12
        assert after["graphward_blocked_total"] - before["graphward_blocked_total"] == 12
        assert after["graphward_connections_open"] == 13
        # Counts survive the worker that counted.
        for pid in processes(system, "worker").values():
            os.kill(pid, signal.SIGKILL)
        await until(lambda: metrics(system)["graphward_starts_total"] == 4)
        await until(lambda: readiness(system)["ready"])
        for each in clients:
            each.close()
        # Ready once both workers run: the second may start between the response above and this one.
        await until(lambda: metrics(system)["graphward_ready"] == 1)
        later = metrics(system)
        assert later["graphward_blocked_total"] == after["graphward_blocked_total"]
        assert later["graphward_connections_open"] == 0
