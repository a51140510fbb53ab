"""Tests of the snapshot file: the proxy uses only a complete file that this proxy wrote itself."""

import asyncio
import gc
import os
import time
from pathlib import Path

import msgspec
import pytest

from proxy.policy.canonical import canonicalise
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.rules.snapshot import (
    App,
    Snapshot,
    SnapshotDamaged,
    SnapshotRuleset,
    mark_synced,
    read_snapshot,
    write_snapshot,
)
from proxy.server.callers.rulebook import Rulebook, build_rulebook
from proxy.server.upstream.credentials import UpstreamCredentials
from proxy.startup.identities import Assignments

YAML = """
version: 1
name: hr-sync
default: block
rules:
  - id: no-phones
    match: {methods: [GET], path: ["/v1.0/users", "/v1.0/users/{id}"]}
    conditions: [{query: $top, at_most: 100}]
    ip: {in: [10.0.0.0/8]}
    time: {days: [mon, tue], from: "08:00", to: "18:00", timezone: Europe/Oslo}
    verdict: filter
    transforms: {strip_properties: [mobilePhone, manager.mail]}
"""


def a_ruleset() -> Ruleset:
    return parse_ruleset(YAML)


def a_snapshot() -> Snapshot:
    return Snapshot(
        version="v7",
        generated_at="2026-11-21T04:25:58.123Z",
        generation=12,
        synced_at=1_700_000_000.0,
        etag='"abc"',
        proxy_id="p1",
        sync_interval_seconds=30.0,
        orgs={"o1": "Contoso"},
        apps=(App("a1", "o1", "hr", "client-1", ("$argon2id$x",), 1, "r1", True),),
        rulesets=(SnapshotRuleset("r1", "o1", "hr-sync", 3, "d", a_ruleset()),),
    )


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "var" / "snapshot.json"
    write_snapshot(path, a_snapshot())
    assert read_snapshot(path) == a_snapshot()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_no_snapshot_is_said_as_such(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_snapshot(tmp_path / "none")


def test_truncated_at_every_length_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    write_snapshot(path, a_snapshot())
    for length in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, length)
        with pytest.raises(SnapshotDamaged):
            read_snapshot(path)


def test_every_flipped_byte_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    write_snapshot(path, a_snapshot())
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in (0x01, 0x20, 0x80):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            with pytest.raises(SnapshotDamaged):
                read_snapshot(path)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\0" * 4096, b"graphward-snapshot 2 " + b"0" * 64 + b"\n{}"]
)
def test_what_is_not_ours_is_damage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "snapshot.json"
    path.write_bytes(content)
    with pytest.raises(SnapshotDamaged):
        read_snapshot(path)


def test_appended_bytes_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    write_snapshot(path, a_snapshot())
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(SnapshotDamaged):
        read_snapshot(path)


def test_a_confirmation_moves_the_time_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    write_snapshot(path, a_snapshot())
    now = float(int(time.time()))
    mark_synced(path, now)
    assert read_snapshot(path) == msgspec.structs.replace(a_snapshot(), synced_at=now)


def test_a_disk_without_room_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "snapshot.json"
    write_snapshot(path, a_snapshot())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_snapshot(path, msgspec.structs.replace(a_snapshot(), version="v8"))
    assert read_snapshot(path).version == "v7"
    assert len(list(tmp_path.iterdir())) == 1


def many_rules(count: int) -> Ruleset:
    rules = "".join(
        f"  - {{id: r{number}, match: {{path: [/v1.0/r{number}]}}, verdict: allow}}\n"
        for number in range(count)
    )
    return parse_ruleset(f"version: 1\nname: many\nrules:\n{rules}")


def holding(ruleset: Ruleset, version: int) -> Snapshot:
    entry = SnapshotRuleset("r1", "o1", "many", version, f"digest {version}", ruleset)
    return msgspec.structs.replace(a_snapshot(), rulesets=(entry,))


def test_who_reads_many_rules_gives_way_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    snapshot = holding(many_rules(1000), 1)
    write_snapshot(path, snapshot)
    pauses: list[None] = []
    assert read_snapshot(path, lambda: pauses.append(None)).rulesets == snapshot.rulesets
    assert len(pauses) >= 10


async def test_rules_that_were_replaced_evaluate_what_is_under_way_and_are_then_taken_apart() -> None:
    credentials = UpstreamCredentials(Assignments(("default",), {}, {}), lambda name, generation: None)
    book = await build_rulebook(holding(many_rules(200), 1), Rulebook(), credentials)
    under_way = book.callers["client-1"].rules
    assert under_way is not None
    root = under_way.rules.tree.root
    book = await build_rulebook(holding(many_rules(100), 2), book, credentials)
    await asyncio.sleep(0)
    target = canonicalise("/v1.0/r150")
    assert under_way.plan("GET", target).constant is not None
    assert [entry.compiled.rule.id for entry in root.words["v1.0"].words["r150"].ends] == ["r150"]
    del under_way
    gc.collect()
    for _ in range(200):
        await asyncio.sleep(0)
    assert not root.words
    rules = book.callers["client-1"].rules
    assert rules is not None
    assert rules.rules.tree.find(canonicalise("/v1.0/r50").readings[0].names[0])[0]


async def test_rules_that_did_not_change_are_not_compiled_again() -> None:
    credentials = UpstreamCredentials(Assignments(("default",), {}, {}), lambda name, generation: None)
    book = await build_rulebook(holding(a_ruleset(), 1), Rulebook(), credentials)
    again = await build_rulebook(holding(a_ruleset(), 1), book, credentials)
    assert again.callers["client-1"].rules is book.callers["client-1"].rules
