"""Write files in the formats of this release, which later releases must still be able to open.

Run `python -m tests.formats` once for each release that changes a format. The program `tests.formats` writes
its files to a new directory. The module test_formats.py opens the directories of all releases. The keys and
hashes in the written files are not secret, because no other system uses them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import aiohttp

from controlplane.clock import SystemClock
from proxy.agent.collector import Collector
from proxy.agent.journal import Journal
from proxy.audit.spool import MIN_SEGMENT_BYTES, SpoolWriter
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.rules.snapshot import App, Snapshot, SnapshotRuleset, write_snapshot
from tests.controlplane.plane import RULESET, ProxyClient, batch, write_settings
from tests.controlplane.processes import facts, server
from tests.process.agent_parts import write

FORMATS: Final = Path(__file__).parent / "fixtures" / "formats"
JOURNALED: Final = 12  # events that the agent had collected, half of them delivered
SPOOLED: Final = 5  # events that the agent had not collected
DELIVERED: Final = 6
NAME: Final = "v1"

YAML: Final = """
version: 1
name: every-part
default: block
rules:
  - id: a
    description: every kind of condition
    match: {methods: [GET, POST], path: ["/v1.0/users/{id}", "/v1.0/groups/**"]}
    conditions:
      - {param: id, in: [ada@contoso.com]}
      - {query: $top, at_most: 100}
      - {header: ConsistencyLevel, equals: eventual}
      - {body: user.name, matches: "^a.*"}
    ip: {in: [10.0.0.0/8], not_in: ["10.1.0.0/16"]}
    time: {days: [mon, tue], from: "08:00", to: "18:00", timezone: Europe/Oslo}
    verdict: filter
    transforms: {strip_properties: [mobilePhone, manager.mail]}
    guard_queries: true
  - id: b
    when: response
    match: {path: [/v1.0/me]}
    conditions: [{status: true, equals: 200}]
    verdict: block
  - {id: c, match: {path: ["/**"]}, verdict: log_only}
"""


def main() -> None:
    target = FORMATS / NAME
    if target.exists():
        sys.exit(f"{target} is there: a format that was released is never made anew")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / NAME
        made.mkdir()
        _audit(made / "audit")
        _snapshot(made / "snapshot.json")
        known = asyncio.run(_store(Path(scratch), made))
        (made / "known.json").write_text(json.dumps(known, indent=2) + "\n", "utf-8")
        shutil.copytree(made, target)


def _audit(retention: Path) -> None:
    """Write an audit directory as a killed agent leaves it: spool, journal, state, and a batch in flight."""
    spool = SpoolWriter(
        retention,
        segment_bytes=MIN_SEGMENT_BYTES,
        max_bytes=1 << 24,
        when_full="refuse",
        id_prefix=7,
    )
    journal = Journal(retention, max_bytes=1 << 24)
    collector = Collector(
        retention,
        journal,
        max_bytes=1 << 24,
        when_full="refuse",
        workers_room=0,
        proxy_id=lambda: "proxy-1",
    )
    for n in range(JOURNALED):
        write(spool, [n], f"org-{n % 2 + 1}")
    collector.run_pass()
    first = journal.plan("org-1", max_events=DELIVERED, max_bytes=1 << 20)
    assert first is not None
    journal.done("org-1", first)
    journal.plan("org-2", max_events=DELIVERED, max_bytes=1 << 20)  # sent, without a response yet
    for n in range(JOURNALED, JOURNALED + SPOOLED):
        write(spool, [n], f"org-{n % 2 + 1}")
    for prepared in sorted((retention / "spool").iterdir())[1:]:
        prepared.unlink()  # an empty file that takes space
    # The writer's memory map is the file, so the file is now as after a kill.
    (retention / "budget.lock").unlink()


def _snapshot(path: Path) -> None:
    rules = SnapshotRuleset("ruleset-1", "org-1", "every-part", 3, "digest", parse_ruleset(YAML))
    write_snapshot(
        path,
        Snapshot(
            version="v7",
            generated_at="2026-11-21T04:25:58.123Z",
            generation=12,
            synced_at=1_700_000_000.0,
            etag='"abc"',
            proxy_id="proxy-1",
            sync_interval_seconds=30.0,
            orgs={"org-1": "Contoso"},
            apps=(App("app-1", "org-1", "hr", "client-1", ("$argon2id$x",), 1, "ruleset-1", True),),
            rulesets=(rules,),
        ),
    )


async def _store(scratch: Path, made: Path) -> dict[str, Any]:
    """Write the database of a control plane that has run, and credentials of proxies and applications."""
    config = write_settings(scratch)
    rules = scratch / "rules.yaml"
    rules.write_text(RULESET.format(name="rules"), "utf-8")
    org = facts(config, "org", "add", "contoso", "--retention", "1y")["orgId"]
    added = facts(config, "proxy", "add", "edge-1", "--org", "contoso")
    facts(config, "ruleset", "apply", str(rules), "--org", "contoso")
    app = facts(config, "app", "add", "crm", "--org", "contoso", "--ruleset", "rules")
    async with server(config) as running, aiohttp.ClientSession() as session:
        proxy = ProxyClient(
            session,
            running.address,
            SystemClock(),
            added["proxyId"],
            added["apiKey"],
            added["hmacSecret"],
            [org],
        )
        for number in (1, 4):
            response = await proxy.audit(batch(f"batch-{number}", org, range(number, number + 3)))
            assert response.status == 202
    with closing(sqlite3.connect(scratch / "var" / "controlplane.db")) as database:
        database.execute("VACUUM INTO ?", (os.fspath(made / "controlplane.db"),))
    shutil.copy(scratch / "var" / "master.key", made / "master.key")
    return {"orgId": org, "proxy": added, "app": app}


if __name__ == "__main__":
    main()
