"""Tests of schemas in a sync: a schema arrives with the rules that name it, or the response is refused."""

from __future__ import annotations

import base64
import json
import logging
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.agent import sync as sync_module
from proxy.rules.schemas import load_models
from proxy.rules.snapshot import Snapshot, read_snapshot, write_snapshot
from proxy.wire.models import SyncAnswer
from proxy.wire.packed_schema import pack
from tests.bytes.test_snapshot_schemas import DIGEST, FLAT, OTHER, OTHER_FLAT, with_schemas
from tests.fakes.control_plane import FakeControlPlane, sync_body
from tests.process.test_agent_sync import Announcements, changed, syncing

pytestmark = pytest.mark.process


@pytest.fixture
async def control() -> AsyncIterator[FakeControlPlane]:
    async with FakeControlPlane() as fake:
        yield fake


def delivering(named: dict[str, str], packed: dict[str, bytes] | None, **members: Any) -> dict[str, Any]:
    """Return a sync body whose ruleset names schemas, with the schemas in `packed`."""
    (ruleset,) = sync_body()["rulesets"]
    if packed is not None:
        members["schemas"] = {digest: base64.b64encode(each).decode() for digest, each in packed.items()}
    return changed(rulesets=[{**ruleset, "version": 2, "schemas": named}], **members)


async def test_a_schema_is_in_the_snapshot_with_the_rules_that_name_it(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    async with syncing(control, cache, announced) as sync:
        control.sync_body = delivering({"/v1.0": DIGEST}, {DIGEST: pack(FLAT), OTHER: pack(OTHER_FLAT)})
        assert await sync.once()
        held = read_snapshot(cache)
        assert held.rulesets[0].schemas == {"/v1.0": DIGEST}
        assert list(held.schemas) == [DIGEST]  # schemas that no ruleset names are dropped
        assert load_models(held, {})[DIGEST].digest == DIGEST
    async with syncing(control, cache, announced) as sync:
        assert sync.snapshot == held
        assert await sync.once()  # unchanged
    assert announced == [("v2", True), ("v2", False)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (delivering({"/v1.0": DIGEST}, None), f"needs schema {DIGEST[:12]} of /v1.0, which is missing"),
        (delivering({"/v1.0": DIGEST}, {}), "which is missing"),
        (delivering({"/v1.0": DIGEST}, {OTHER: pack(OTHER_FLAT)}), "which is missing"),
        (delivering({"/v1.0": DIGEST}, {DIGEST: pack(OTHER_FLAT)}), "differs from the expected digest"),
        (delivering({"/v1.0": DIGEST}, {DIGEST: pack(FLAT)[:-3]}), "bytes of the schema are truncated"),
        (delivering({"/v1.0": DIGEST}, {DIGEST: b"no schema"}), "cannot be inflated"),
        (delivering({"//": DIGEST}, {DIGEST: pack(FLAT)}), "not in lower case"),
        (delivering({"/v1.0": DIGEST}, None, schemas=[]), "not a valid sync body"),
        (delivering({"/v1.0": DIGEST}, None, schemas={DIGEST: "*"}), "not a valid sync body"),
    ],
)
async def test_a_schema_that_is_missing_or_damaged_leaves_all_rules_as_they_are(
    tmp_path: Path,
    control: FakeControlPlane,
    body: dict[str, Any],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache, announced = tmp_path / "snapshot.json", Announcements()
    caplog.set_level(logging.WARNING)
    async with syncing(control, cache, announced) as sync:
        assert await sync.once()
        held = read_snapshot(cache)
        control.sync_body = body
        assert not await sync.once()
        assert read_snapshot(cache) == held == sync.snapshot
        (line,) = [record.getMessage() for record in caplog.records if "sync failed" in record.getMessage()]
        assert line.startswith("sync failed, the active rules stay in use: ")
        assert said in line
        control.sync_body = delivering({"/v1.0": DIGEST}, {DIGEST: pack(FLAT)}, version="v3")
        assert await sync.once()
        assert read_snapshot(cache).version == "v3"
    assert announced == [("v1", True), ("v3", True)]


async def test_a_schema_comes_once(tmp_path: Path, control: FakeControlPlane) -> None:
    """The sync request names the schemas that the proxy has, and the response omits these schemas."""
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        control.sync_body = delivering({"/v1.0": DIGEST}, {DIGEST: pack(FLAT)})
        assert await sync.once()
        control.sync_body = delivering(
            {"/v1.0": DIGEST, "/beta": OTHER}, {OTHER: pack(OTHER_FLAT)}, version="v3"
        )
        assert await sync.once()
        assert read_snapshot(cache).schemas == {DIGEST: pack(FLAT), OTHER: pack(OTHER_FLAT)}
        control.sync_body = delivering({"/beta": OTHER}, None, version="v4")
        assert await sync.once()
        assert read_snapshot(cache).schemas == {OTHER: pack(OTHER_FLAT)}
    named = [request.value("X-Held-Schemas") for request in control.sync_requests]
    assert named == ["", DIGEST, ",".join(sorted((DIGEST, OTHER)))]


async def test_a_schema_that_was_left_out_is_asked_for(tmp_path: Path, control: FakeControlPlane) -> None:
    """An intermediary may change the header that names the proxy's schemas: this header is not signed."""
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        control.sync_body = delivering({"/v1.0": DIGEST}, {DIGEST: pack(FLAT)})
        assert await sync.once()
        control.sync_body = delivering({"/v1.0": OTHER}, None, version="v3")
        assert not await sync.once()
        control.sync_body = delivering({"/v1.0": OTHER}, {OTHER: pack(OTHER_FLAT)}, version="v3")
        assert await sync.once()
    asked = [
        (request.value("X-Held-Schemas"), request.value("If-None-Match")) for request in control.sync_requests
    ]
    assert asked[1][0] == DIGEST
    assert asked[2] == ("", "")


async def test_a_missing_schema_delays_no_stop(tmp_path: Path, control: FakeControlPlane) -> None:
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
        control.sync_body = delivering({"/v1.0": DIGEST}, None, stops={"everything": True})
        assert not await sync.once()
        held = read_snapshot(cache)
        assert (held.version, held.stops.everything) == ("v1", True)


async def test_the_schema_of_a_ruleset_that_stays_stays_too(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    """The new version of the rules cannot be read, and the control plane no longer sends the old schema."""
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        control.sync_body = delivering({"/v1.0": DIGEST}, {DIGEST: pack(FLAT)})
        assert await sync.once()
        unreadable = delivering({"/v1.0": OTHER}, {OTHER: pack(OTHER_FLAT)}, version="v3")
        unreadable["rulesets"][0]["yaml"] = "version: 1\nname: rules\nnews: []\n"
        control.sync_body = unreadable
        await sync.once()
        held = read_snapshot(cache)
        assert held.rulesets[0].schemas == {"/v1.0": DIGEST}
        assert list(held.schemas) == [DIGEST]


async def test_a_ruleset_that_needs_a_schema_is_not_taken_without_one(
    tmp_path: Path, control: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control plane may send rules that need a schema, without sending the schema."""
    cache = tmp_path / "snapshot.json"
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
        before = read_snapshot(cache).rulesets
        monkeypatch.setattr(sync_module, "needs_schemas", lambda ruleset: True)
        control.sync_body = changed(rulesets=[{**sync_body()["rulesets"][0], "version": 2}])
        await sync.once()
        assert read_snapshot(cache).rulesets == before
        assert "uses names of a schema" in sync.check().detail


async def test_a_damaged_schema_on_disk_is_fetched_again(tmp_path: Path, control: FakeControlPlane) -> None:
    cache = tmp_path / "snapshot.json"
    control.sync_body = delivering({"/v1.0": DIGEST}, {DIGEST: pack(FLAT)})
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
    held = read_snapshot(cache)
    write_snapshot(cache, msgspec.structs.replace(held, schemas={DIGEST: pack(OTHER_FLAT)}))
    async with syncing(control, cache, Announcements()) as sync:
        assert sync.snapshot is None
        assert await sync.once()
    assert read_snapshot(cache).schemas == held.schemas


async def test_a_snapshot_of_a_release_without_schemas_is_asked_for_again(
    tmp_path: Path, control: FakeControlPlane
) -> None:
    """An earlier release stored no schemas, and a 304 response would not deliver the missing schemas."""
    cache = tmp_path / "snapshot.json"
    control.sync_body = delivering({"/v1.0": DIGEST}, {DIGEST: pack(FLAT)})
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
    held = read_snapshot(cache)
    (ruleset,) = held.rulesets
    older = msgspec.structs.replace(ruleset, schemas={})
    write_snapshot(cache, msgspec.structs.replace(held, rulesets=(older,), schemas={}, read=2))
    async with syncing(control, cache, Announcements()) as sync:
        assert await sync.once()
        assert read_snapshot(cache).rulesets == held.rulesets


class _OlderRuleset(msgspec.Struct, rename="camel"):
    ruleset_id: str
    org_id: str
    name: str
    version: int
    yaml: str


class _OlderAnswer(msgspec.Struct, rename="camel"):
    version: str
    generated_at: str
    rulesets: tuple[_OlderRuleset, ...]


def test_a_proxy_without_schemas_reads_the_rest_of_the_response() -> None:
    body = msgspec.json.encode(delivering({"/v1.0": DIGEST}, {DIGEST: pack(FLAT)}))
    assert msgspec.json.decode(body, type=_OlderAnswer).rulesets[0].version == 2


def test_a_response_without_schemas_has_the_members_that_it_always_had() -> None:
    body = sync_body()
    assert json.loads(msgspec.json.encode(msgspec.convert(body, SyncAnswer))) == body


def _write_and_die(path: Path, snapshot: Snapshot, after: int) -> None:
    """Write the snapshot, and kill the process before its kernel call number `after`."""
    calls = 0

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > after:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in ("open", "pwrite", "fsync", "rename", "utime"):
        setattr(os, name, counted(getattr(os, name)))
    write_snapshot(path, snapshot)


def test_a_kill_at_any_point_of_the_write_leaves_rules_with_their_schemas(tmp_path: Path) -> None:
    path, large = tmp_path / "snapshot.json", os.urandom(200_000)
    old = with_schemas({"/v1.0": DIGEST})
    new = with_schemas({"/v1.0": OTHER}, flat=OTHER_FLAT, digest=OTHER)
    new = msgspec.structs.replace(new, version="v8", schemas={**new.schemas, "unused": large})
    seen = set()
    for after in range(40):
        write_snapshot(path, old)
        killed = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(path, new, after))
        killed.start()
        killed.join()
        found = msgspec.structs.replace(read_snapshot(path), synced_at=old.synced_at)
        assert found in (old, new)
        assert load_models(found, {})
        seen.add(found.version)
        if killed.exitcode == 0:
            break
    assert killed.exitcode == 0
    assert seen == {old.version, new.version}
