"""Tests of rules about resources, from reading the schema to serving requests, and of damaged schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from proxy.rules.snapshot import SnapshotDamaged, read_snapshot
from tests.fakes.system import System
from tests.process.proxy_parts import (
    Client,
    client_of,
    kill_all,
    kill_control_plane,
    log_of,
    metrics,
    status_becomes,
    until,
    whole_system,
)

pytestmark = pytest.mark.process

MESSAGES = "/v1.0/users/ada@contoso.com/messages"
USERS = "/v1.0/users"
RULES = """
version: 1
name: open
default: allow
rules:
  - {id: no-mail, match: {resource: [message]}, verdict: block}
"""


async def fetch_schema(system: System) -> None:
    source = Path(__file__).parents[1] / "fakes" / "graph.csdl"
    await system.cli("model", "fetch", str(source), "--root", "/v1.0", "--org", system.org_id)


async def apply(system: System, directory: Path) -> None:
    file = directory / "things.yaml"
    file.write_text(RULES)
    await system.cli("ruleset", "apply", str(file), "--org", system.org_id)


async def test_a_rule_about_things_holds_from_the_sync_that_brings_its_schema(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system, client_of(system) as client:
        assert (await client.get(MESSAGES)).status == 200
        await fetch_schema(system)
        await apply(system, tmp_path)
        await status_becomes(client, MESSAGES, 403)
        assert (await client.get(USERS)).status == 200
        assert client.connects == 1
        snapshot = read_snapshot(tmp_path / "snapshot.json")
        assert [list(held.schemas) for held in snapshot.rulesets] == [["/v1.0"]]
        assert len(snapshot.schemas) == 1


async def test_a_proxy_starts_with_its_schema_and_without_a_control_plane(tmp_path: Path) -> None:
    async with whole_system(tmp_path) as system:
        async with client_of(system) as client:
            await fetch_schema(system)
            await apply(system, tmp_path)
            await status_becomes(client, MESSAGES, 403)
        await kill_all(system)
        await kill_control_plane(system)
        await system.start_proxy()
        async with client_of(system) as client:
            assert (await client.get(MESSAGES)).status == 403
            assert (await client.get(USERS)).status == 200
            token = client.token
        await kill_all(system)
        # A damaged schema lets no request pass.
        snapshot = tmp_path / "snapshot.json"
        whole = snapshot.read_bytes()
        found = re.search(rb'"schemas":\{"[0-9a-f]{64}":"', whole)
        assert found is not None
        at = found.end() + 100
        snapshot.write_bytes(whole[:at] + (b"A" if whole[at : at + 1] != b"A" else b"B") + whole[at + 1 :])
        await system.start_proxy(until_ready=False)
        client = Client(system, system.client_context(), token)
        for target in (MESSAGES, USERS):
            reply = await client.get(target)
            assert (reply.status, json.loads(reply.body)["error"]["code"]) == (503, "notReady")
        client.close()
        assert "cannot use the rules snapshot" in log_of(system)


async def test_a_schema_damaged_under_way_keeps_the_rules_in_force(tmp_path: Path) -> None:
    """The agent has the undamaged schema, and writes the snapshot again for its workers."""
    async with whole_system(tmp_path, workers=1) as system, client_of(system) as client:
        await fetch_schema(system)
        await apply(system, tmp_path)
        await status_becomes(client, MESSAGES, 403)
        snapshot = tmp_path / "snapshot.json"
        good = read_snapshot(snapshot).generation
        snapshot.write_bytes(snapshot.read_bytes()[:-200])
        await system.cli("app", "shadow", "app", "--org", system.org_id, "--ruleset", "open")
        await until(lambda: _generation(snapshot) > good)
        assert (await client.get(MESSAGES)).status == 403
        await until(lambda: metrics(system)["graphward_sync_age_seconds"] < 10)


def _generation(snapshot: Path) -> int:
    try:
        return read_snapshot(snapshot).generation
    except (OSError, SnapshotDamaged):
        return 0
