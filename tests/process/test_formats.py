"""Tests that this release opens the files of each earlier release.

If a file has a later format, the program names the file and does not change it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlplane.clock import SystemClock
from proxy.agent import statefile
from proxy.agent.journal import Journal
from proxy.agent.statefile import NewerState, StateFile, encode_state
from proxy.audit.spool import SpoolWriter
from proxy.policy.compile import compile_ruleset
from proxy.rules.snapshot import SnapshotDamaged, read_snapshot, write_snapshot
from tests.controlplane.plane import SYNC, ProxyClient, batch, write_settings
from tests.controlplane.processes import cli, events_in, facts, server
from tests.formats import DELIVERED, FORMATS, JOURNALED, SPOOLED
from tests.process.agent_parts import MIB, collect_all, collector, journal_lines

pytestmark = pytest.mark.process
EVENTS = JOURNALED + SPOOLED
RELEASES = sorted(path.name for path in FORMATS.iterdir())


@pytest.fixture(params=RELEASES)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a directory with the files of one release."""
    copied = tmp_path / "files"
    shutil.copytree(FORMATS / request.param, copied)
    return copied


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


# Spool, journal and state


def test_spool_journal_and_state_of_a_release_go_on_where_it_ended(files: Path) -> None:
    retention = files / "audit"
    journal = Journal(retention, max_bytes=16 * MIB)
    assert journal.state.organisations["org-1"].sent_count == DELIVERED
    begun = journal.plan("org-2", max_events=1, max_bytes=MIB)
    assert begun is not None
    assert begun.count == DELIVERED  # the batch that was in flight, not a new one
    assert begun.batch_id in (retention / "state.0").read_text("latin-1") + (retention / "state.1").read_text(
        "latin-1"
    )
    collect_all(collector(retention, journal))
    found = journal_lines(retention, "org-1") + journal_lines(retention, "org-2")
    assert len({event["id"] for event in found}) == len(found) == EVENTS
    for org_id in ("org-1", "org-2"):
        numbers = [event["seq"] for event in found if event["orgId"] == org_id]
        assert numbers == list(range(1, len(numbers) + 1))
    assert {event["path"] for event in found} == {"/v1.0/users"}
    status = journal.status()
    assert (status.pending, status.missing, status.lost_ends) == (EVENTS - DELIVERED, 0, 0)


def newer_state(retention: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Save the state in the next format, as a later release would do when it first saves the state."""
    state = StateFile(retention)
    loaded = state.load()
    assert loaded is not None
    with monkeypatch.context() as later:
        later.setattr(statefile, "FORMAT", 2)
        state.save(encode_state(loaded))
    slot = retention / f"state.{state.generation % 2}"
    assert slot.read_bytes().startswith(b"graphward-audit-state 2 ")
    return slot


def test_a_state_of_a_later_release_is_refused_and_nothing_is_touched(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retention = files / "audit"
    slot = newer_state(retention, monkeypatch)
    before = contents(files)
    with pytest.raises(NewerState, match=f"{re.escape(str(slot))}: a newer release wrote this file"):
        Journal(retention, max_bytes=16 * MIB)
    assert contents(files) == before


def test_a_spool_of_a_later_release_waits_for_it_while_others_are_collected(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retention = files / "audit"
    (segment,) = (retention / "spool").glob("*.seg")
    content = segment.read_bytes()
    later = content[:8] + struct.pack("<I", 2) + content[12:]
    journal = Journal(retention, max_bytes=16 * MIB)
    collect_all(collector(retention, journal))
    assert journal.status().pending == EVENTS - DELIVERED
    foreign = retention / "spool" / f"{'ab' * 16}-0000000000.seg"
    foreign.write_bytes(later)
    own = SpoolWriter(
        retention, segment_bytes=256 * 1024, max_bytes=16 * MIB, when_full="refuse", id_prefix=1
    )
    own.append(
        "org-1", b'[0,1700000000000,"org-1",' + content[content.index(b'"app"') : content.index(b"]") + 1]
    )
    part = collector(retention, journal)
    collect_all(part)
    assert foreign.read_bytes() == later
    assert part.stalled is not None
    assert "a newer release wrote this spool segment (format 2" in part.stalled
    assert [record.message for record in caplog.records if str(foreign) in record.message] == [part.stalled]
    assert journal.status().pending == EVENTS - DELIVERED + 1
    own.close()


# Snapshot


def test_the_snapshot_of_a_release_is_in_force_at_once(files: Path) -> None:
    snapshot = read_snapshot(files / "snapshot.json")
    assert (snapshot.version, snapshot.generation, snapshot.proxy_id) == ("v7", 12, "proxy-1")
    assert [app.client_id for app in snapshot.apps] == ["client-1"]
    (held,) = snapshot.rulesets
    assert [rule.id for rule in held.ruleset.rules] == ["a", "b", "c"]
    compile_ruleset(held.ruleset)


def test_a_snapshot_of_a_later_release_is_not_used_and_named(files: Path) -> None:
    path = files / "snapshot.json"
    write_snapshot(path, read_snapshot(path))
    path.write_bytes(path.read_bytes().replace(b"graphward-snapshot 1 ", b"graphward-snapshot 3 ", 1))
    before = contents(files)
    with pytest.raises(SnapshotDamaged, match=f"{re.escape(str(path))}: a newer release wrote this snapshot"):
        read_snapshot(path)
    assert contents(files) == before


# The control plane's store


def installed(files: Path, tmp_path: Path) -> Path:
    """Return the settings of a control plane whose store is from the given release."""
    config = write_settings(tmp_path)
    (tmp_path / "var").mkdir()
    for name in ("controlplane.db", "master.key"):
        shutil.copy(files / name, tmp_path / "var" / name)
        os.chmod(tmp_path / "var" / name, 0o600)
    return config


async def test_the_store_of_a_release_serves_its_proxies_and_knows_its_batches(
    files: Path, tmp_path: Path
) -> None:
    known: dict[str, Any] = json.loads((files / "known.json").read_text("utf-8"))
    config = installed(files, tmp_path)
    org, added = known["orgId"], known["proxy"]
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
        sync = (await proxy.send(SYNC)).json
        assert [app["clientId"] for app in sync["apps"]] == [known["app"]["clientId"]]
        assert [each["name"] for each in sync["rulesets"]] == ["rules"]
        # Inside the window or after it, by the time of this run: never counted again.
        again = await proxy.audit(batch("batch-1", org, range(1, 4)))
        assert again.status == 409 or again.json["duplicate"] is True
        assert (await proxy.audit(batch("batch-7", org, range(7, 9)))).json["accepted"] == 2
    with closing(sqlite3.connect(tmp_path / "var" / "controlplane.db")) as store:
        assert [event["seq"] for event in events_in(store)] == [*range(1, 9)]
    assert facts(config, "org", "show", "contoso")["retention"] == "1y"


def test_a_store_that_is_damaged_is_one_line_that_names_it_and_what_to_do(
    files: Path, tmp_path: Path
) -> None:
    config = installed(files, tmp_path)
    path = tmp_path / "var" / "controlplane.db"
    whole = path.read_bytes()
    for damage in (b"\\0" * 4096 + whole[4096:], whole[: len(whole) // 3], os.urandom(len(whole))):
        path.write_bytes(damage)
        for arguments in ([], ["org", "list"]):
            done = cli(config, *arguments)
            assert done.returncode == 1
            (line,) = done.stderr.splitlines()
            assert str(path) in line
            assert "restore a backup" in line
        assert path.read_bytes() == damage


def test_a_store_of_a_later_release_is_refused_and_left_alone(files: Path, tmp_path: Path) -> None:
    config = installed(files, tmp_path)
    path = tmp_path / "var" / "controlplane.db"
    with closing(sqlite3.connect(path)) as store:
        store.execute("INSERT INTO schema_version VALUES (999, '0999_future.sql')")
        store.commit()
    before = path.read_bytes()
    done = cli(config)
    assert done.returncode == 1
    assert "newer release" in done.stderr
    assert path.read_bytes() == before
