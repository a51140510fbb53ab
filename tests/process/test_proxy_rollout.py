"""Tests of waiting for a ruleset version: the command returns when all proxies use the version."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.fakes.system import ROOT, System
from tests.process.proxy_parts import Client, client_of, processes, rules_file, until, whole_system

pytestmark = pytest.mark.process


async def command(system: System, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *system.cli_command(*arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def apply_and_wait(system: System, directory: Path, default: str) -> dict[str, object]:
    file = rules_file(directory, default=default)
    status, out, err = await command(
        system, "ruleset", "apply", str(file), "--org", "Contoso", "--wait", "--json"
    )
    assert (status, err) == (0, "")
    found: dict[str, object] = json.loads(out)
    return found


async def test_a_version_that_was_waited_for_evaluates_the_very_next_request(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system, client_of(system) as client:
        clients = [client, *(Client(system, system.client_context(), client.token) for _ in range(7))]
        for version, (default, expected) in enumerate([("block", 403), ("allow", 200)] * 3, 2):
            found = await apply_and_wait(system, tmp_path, default)
            assert (found["version"], found["changed"]) == (version, True)
            # Each request opens a connection, so that both workers receive requests.
            responses = await asyncio.gather(*(each.get("/v1.0/users") for each in clients))
            assert {each.status for each in responses} == {expected}
        for each in clients[1:]:
            each.close()
        shown = await system.cli("proxy", "show", "demo-proxy")
        assert (shown["health"], shown["rulesets"][0]["version"]) == ("ok", 7)
        assert shown["heartbeat"]["rulesets"] == {shown["rulesets"][0]["rulesetId"]: 7}


async def test_when_time_runs_out_the_laggards_are_named(tmp_path: Path) -> None:
    async with whole_system(tmp_path, workers=1) as system:
        await until(lambda: bool(processes(system, "agent")))
        await command(system, "proxy", "add", "edge-next", "--org", "Contoso")
        await command(system, "proxies", "wait", "--ruleset", "open")
        # A proxy that stopped in order would have reported it, and the command does not wait for it.
        system.proxy.process.send_signal(signal.SIGKILL)
        await system.proxy.process.wait()
        await command(
            system, "ruleset", "apply", str(rules_file(tmp_path, default="block")), "--org", "Contoso"
        )
        wait = ("proxies", "wait", "--ruleset", "open", "--version", "2", "--timeout", "1")
        status, out, err = await command(system, *wait)
        assert status == 1
        assert "behind" in out
        report = err.splitlines()
        assert report[0] == "edge-next was not waited for: it has never sent a heartbeat"
        assert report[1].startswith("demo-proxy does not enforce open version 2: it enforces version 1, ")
        assert len(report) == 2
        # The version is 1. The command waits for a proxy that stays silent only if it is requested.
        assert (await command(system, *wait[:4], "--version", "1"))[0] == 0
        status, out, err = await command(
            system, *wait[:4], "--version", "1", "--timeout", "0", "--all", "--json"
        )
        assert status == 1
        assert [each["state"] for each in json.loads(out)["proxies"]] == ["enforced", "lost"]
        assert err.startswith("edge-next does not enforce open version 1: it has never sent a heartbeat")
        status, _, err = await command(system, *wait[:4], "--version", "9")
        assert (status, err) == (1, "ruleset open has no version 9\n")
