"""Tests of the audit hash chain: a changed file is detected, and a purge by retention leaves a proof."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.ingest import parse_batch
from controlplane.integrity import Known, Walk, chain_key, walk
from controlplane.master_key import open_vault
from controlplane.store.block_body import DICTIONARY, unpacked
from controlplane.store.interface import Misfit, RateLimits, StoreError
from tests.controlplane.plane import FakeClock, Plane, ProxyClient, batch, event, started
from tests.formats import FORMATS

Tamper = Callable[[sqlite3.Connection], object]


async def walked(plane: Plane, org: str, known: Known | None = None) -> Walk:
    vault = await open_vault(plane.settings.secrets, plane.store)
    *_, last = [at async for at in walk(vault, plane.store, org, known)]
    assert last.done
    return last


async def misfit(plane: Plane, org: str, known: Known | None = None) -> Misfit | None:
    return (await walked(plane, org, known)).misfit


def tamper(plane: Plane, change: Tamper | str) -> None:
    with closing(sqlite3.connect(plane.settings.store.path)) as file:
        if isinstance(change, str):
            assert file.execute(change).rowcount > 0
        else:
            change(file)
        file.commit()


@pytest.fixture
async def org(plane: Plane, proxy: ProxyClient) -> str:
    """Create an organisation with four blocks of three events.

    The third block of the organisation begins at position 7.
    """
    (org,) = proxy.org_ids
    for number in range(4):
        sent = batch(f"b{number}", org, range(number * 3 + 1, number * 3 + 4))
        assert (await proxy.audit(sent)).status == 202
    return org


async def test_what_nobody_touched_fits(plane: Plane, org: str) -> None:
    found = await walked(plane, org)
    assert found.misfit is None
    assert (found.reached.number, found.reached.events, found.reached.purged) == (4, 12, 0)


def link_of(previous: bytes, row: tuple[Any, ...]) -> bytes:
    *said, batch_digest, content, _, _ = row
    text = json.dumps([*said, batch_digest.hex(), content.hex()], separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(previous + text.encode()).digest()


def inflated(body: bytes) -> bytes:
    return zlib.decompressobj(-15, zdict=DICTIONARY).decompress(body[1:]) if body[0] == 1 else body


async def test_a_link_can_be_made_by_whoever_reads_the_documentation(plane: Plane, org: str) -> None:
    """The test builds a chain link with documented methods only, such as JSON, DEFLATE and SHA-256."""
    with closing(sqlite3.connect(plane.settings.store.path)) as file:
        link = bytes(32)
        for row in file.execute("SELECT * FROM chain WHERE org_id = ? ORDER BY number", (org,)):
            link = link_of(link, row)
            assert link == row[9]
            ((body,),) = file.execute("SELECT body FROM blocks WHERE position = ?", (row[4],))
            events = [
                json.dumps(each).encode() for each in json.loads(inflated(body))
            ]  # the same events that the test had sent
            digests = b"".join(hashlib.sha256(each).digest() for each in events)
            assert hashlib.sha256(digests).digest() == row[8]


# Each case: the change of the file, the finding, and its place (link, position, event).
Found = tuple[str, int | None, int | None, str | None]


def _edited(position: int, edit: Callable[[list[Any]], list[Any]]) -> Tamper:
    """Replace some events of one block, and leave all other bytes of the block unchanged."""

    def change(file: sqlite3.Connection) -> None:
        ((body,),) = file.execute("SELECT body FROM blocks WHERE position = ?", (position,))
        made = b"[" + b",".join(json.dumps(each).encode() for each in edit(json.loads(unpacked(body)))) + b"]"
        file.execute("UPDATE blocks SET body = ? WHERE position = ?", (made, position))

    return change


def _drop_a_space(file: sqlite3.Connection) -> None:
    ((body,),) = file.execute("SELECT body FROM blocks WHERE position = 7")
    made = unpacked(body).replace(b', "seq": 9', b',"seq": 9')
    file.execute("UPDATE blocks SET body = ? WHERE position = 7", (made,))


def _swap_links(file: sqlite3.Connection) -> None:
    for old, new in ((2, -1), (3, 2), (-1, 3)):
        file.execute("UPDATE chain SET number = ? WHERE number = ?", (new, old))


def _swap_bodies(file: sqlite3.Connection) -> None:
    bodies = dict(file.execute("SELECT position, body FROM blocks").fetchall())
    for one, other in ((4, 7), (7, 4)):
        file.execute("UPDATE blocks SET body = ? WHERE position = ?", (bodies[other], one))


def _drop_link_and_renumber(file: sqlite3.Connection) -> None:
    file.execute("DELETE FROM chain WHERE number = 2")
    file.execute("DELETE FROM blocks WHERE position = 4")
    for number in (3, 4):
        file.execute("UPDATE chain SET number = ? WHERE number = ?", (number - 1, number))


def _add_link(file: sqlite3.Connection) -> None:
    """Insert one more link in the middle of the chain, and renumber the later links."""
    for number in (4, 3):
        file.execute("UPDATE chain SET number = ? WHERE number = ?", (number + 1, number))
    file.execute("INSERT INTO chain SELECT org_id, 3, kind, chained_ms, position, count, proxy_id, batch,"
                 " content, randomblob(32), mac FROM chain WHERE number = 2")  # fmt: skip


def _make_anew(file: sqlite3.Connection) -> None:
    """Change events, digests and links so that they match each other, but do not use the master key."""
    _edited(7, lambda events: [each | {"verdict": "block"} for each in events])(file)
    ((body,),) = file.execute("SELECT body FROM blocks WHERE position = 7")
    digests = b"".join(
        hashlib.sha256(json.dumps(each).encode()).digest() for each in json.loads(unpacked(body))
    )
    file.execute("UPDATE event_digests SET digests = ? WHERE position = 7", (digests,))
    file.execute("UPDATE chain SET content = ? WHERE number = 3", (hashlib.sha256(digests).digest(),))
    ((previous,),) = file.execute("SELECT link FROM chain WHERE number = 2")
    for row in file.execute("SELECT * FROM chain WHERE number > 2 ORDER BY number").fetchall():
        previous = link_of(previous, row)
        file.execute("UPDATE chain SET link = ? WHERE number = ?", (previous, row[1]))


def _cut(file: sqlite3.Connection) -> None:
    file.execute("DELETE FROM chain WHERE number > 2")
    file.execute("DELETE FROM blocks WHERE position > 4")


def _purge_before_the_first(file: sqlite3.Connection) -> None:
    """Insert a forged link with number 0, which records a purge, into the hash chain.

    The verification of a hash chain begins with link 1. If the verification accepted the purge in link 0, it
    would not report that the events of the deleted block are missing.
    """
    file.execute("INSERT INTO chain SELECT org_id, 0, 'purge', chained_ms, position, count, '', x'',"
                 " CAST('{\"gone\":[0,1,2]}' AS BLOB), link, mac FROM chain WHERE number = 3")  # fmt: skip
    file.execute("DELETE FROM blocks WHERE position = 7")


def _all_made_anew_before_the_first(file: sqlite3.Connection) -> None:
    """Replace all links of the hash chain by one link with number 0, which claims to cover all events."""
    _edited(7, lambda events: [each | {"verdict": "block"} for each in events])(file)
    file.execute("UPDATE chain SET number = 0, position = 1000000 WHERE number = 4")
    file.execute("DELETE FROM chain WHERE number > 0")


ADDED = (
    "INSERT INTO blocks SELECT 99, count, org_id, proxy_id, least_ms, most_ms, body FROM blocks"
    " WHERE position = 1"
)
TAMPERINGS: dict[str, tuple[Tamper | str, Found]] = {
    "an event": (
        _edited(7, lambda e: [e[0], e[1] | {"verdict": "block"}, e[2]]),
        ("changed", 3, 8, "event-8"),
    ),
    "a space": (
        _drop_a_space,
        ("changed", 3, 9, "event-9"),
    ),
    "a body that is no JSON": (
        "UPDATE blocks SET body = CAST('[' || body AS BLOB) WHERE position = 7",
        ("changed", 3, 7, None),
    ),
    "an event nulled": (_edited(7, lambda e: [e[0], None, e[2]]), ("removed", 3, 8, None)),
    "an event left out": (_edited(7, lambda e: [e[0], e[2]]), ("removed", 3, 8, None)),
    "an event slipped in": (
        _edited(7, lambda e: [e[0], e[0] | {"id": "forged"}, *e[1:]]),
        ("inserted", 3, 8, "forged"),
    ),
    "two events swapped": (_edited(7, lambda e: [e[0], e[2], e[1]]), ("reordered", 3, 8, "event-9")),
    "two blocks' bodies swapped": (_swap_bodies, ("reordered", 2, 4, "event-7")),
    "a block deleted": ("DELETE FROM blocks WHERE position = 7", ("removed", 3, 7, None)),
    "a block of another proxy": (
        "UPDATE blocks SET proxy_id = 'p' WHERE position = 7",
        ("changed", 3, 7, None),
    ),
    "a block of a proxy whose id is no text": (
        "UPDATE blocks SET proxy_id = CAST(x'61ff' AS TEXT) WHERE position = 7",
        ("changed", 3, 7, None),
    ),
    "an event's time looked for elsewhere": (
        "UPDATE blocks SET most_ms = most_ms - 1 WHERE position = 7",
        ("changed", 3, 7, "event-7"),
    ),
    "an event's id forgotten": (
        "DELETE FROM event_ids WHERE id = 'event-8'",
        ("changed", 3, 8, "event-8"),
    ),
    "an event's id leading to another block": (
        "UPDATE event_ids SET block = 4 WHERE id = 'event-9'",
        ("changed", 3, 9, "event-9"),
    ),
    "a link that says what is no text": (
        "UPDATE chain SET proxy_id = CAST(x'61ff' AS TEXT) WHERE number = 3",
        ("changed", 3, 7, None),
    ),
    "the newest link saying what is no text": (
        "UPDATE chain SET proxy_id = CAST(x'61ff' AS TEXT) WHERE number = 4",
        ("changed", 4, 10, None),
    ),
    "a block of another organisation": (
        "UPDATE blocks SET org_id = 'o' WHERE position = 7",
        ("removed", 3, 7, None),
    ),
    "a block added": (ADDED, ("inserted", None, 99, "event-1")),
    "a block added at the very end": (
        ADDED.replace("99", str(2**63 - 1)),
        ("inserted", None, 2**63 - 1, "event-1"),
    ),
    "a block added before the first": (ADDED.replace("99", "-5"), ("inserted", None, -5, "event-1")),
    "a block added at the very first": (
        ADDED.replace("99", str(-(2**63))),
        ("inserted", None, -(2**63), "event-1"),
    ),
    "a block moved": (
        "UPDATE blocks SET position = 5 WHERE position = 7",
        ("inserted", None, 5, "event-7"),
    ),
    "digests": (
        "UPDATE event_digests SET digests = zeroblob(96) WHERE position = 7",
        ("changed", 3, 7, None),
    ),
    "digests deleted": ("DELETE FROM event_digests WHERE position = 7", ("changed", 3, 7, None)),
    "what a link says": ("UPDATE chain SET count = 2 WHERE number = 3", ("changed", 3, 7, None)),
    "a link itself": ("UPDATE chain SET link = zeroblob(32) WHERE number = 3", ("changed", 3, 7, None)),
    "a signature": ("UPDATE chain SET mac = zeroblob(32) WHERE number = 3", ("forged", 3, 7, None)),
    "a signature left out": ("UPDATE chain SET mac = NULL WHERE number = 3", ("forged", 3, 7, None)),
    "a link deleted": ("DELETE FROM chain WHERE number = 2", ("removed", 2, None, None)),
    "a link and its block deleted, the rest moved up": (
        _drop_link_and_renumber,
        ("removed", 2, 7, None),
    ),
    "two links swapped": (_swap_links, ("reordered", 2, 4, None)),
    "a link added": (_add_link, ("inserted", 3, 4, None)),
    "the newest link deleted": ("DELETE FROM chain WHERE number = 4", ("inserted", None, 10, "event-10")),
    "all links deleted": ("DELETE FROM chain", ("inserted", None, 1, "event-1")),
    "everything from an event on made anew": (_make_anew, ("forged", 3, 7, None)),
    "a purge forged before the first link": (_purge_before_the_first, ("removed", 3, 7, None)),
    "one link before the first for all others": (
        _all_made_anew_before_the_first,
        ("forged", 0, 1_000_000, None),
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
async def test_tampering_is_named(plane: Plane, org: str, name: str) -> None:
    change, (what, link, position, event_id) = TAMPERINGS[name]
    tamper(plane, change)
    found = await misfit(plane, org)
    assert found is not None
    assert (found.what, found.link, found.position, found.event_id) == (what, link, position, event_id)


async def test_a_known_head_finds_an_end_that_was_cut_off(plane: Plane, org: str) -> None:
    """A hash chain that lost its last links still verifies.

    Only a comparison with a chain head that was saved earlier reveals the missing links.
    """
    known = await _head(plane, org)

    tamper(plane, _cut)
    assert await misfit(plane, org) is None
    for each in (known, Known(known.link)):
        found = await misfit(plane, org, each)
        assert found is not None
        assert found.what == "truncated"


async def test_a_walk_from_a_known_head_looks_at_what_came_after(
    plane: Plane, proxy: ProxyClient, org: str
) -> None:
    known = await _head(plane, org)
    assert (await proxy.audit(batch("b9", org, [13, 14]))).status == 202
    found = await walked(plane, org, known)
    assert (found.misfit, found.reached.number, found.reached.events) == (None, 5, 2)
    tamper(plane, TAMPERINGS["an event"][0])
    assert await misfit(plane, org, known) is None
    assert await misfit(plane, org, Known(known.link)) is not None
    tamper(plane, "UPDATE blocks SET body = CAST('[]' AS BLOB) WHERE position = 13")
    found = await walked(plane, org, known)
    assert found.misfit is not None
    assert (found.misfit.what, found.misfit.position) == ("removed", 13)


async def test_a_purge_is_no_excuse_for_what_came_after_it(
    plane: Plane, proxy: ProxyClient, org: str
) -> None:
    """The verification skips the events before a chain head that was saved earlier.

    The verification must therefore reject a forged purge of events before the saved chain head.
    """
    known = await _head(plane, org)
    assert (await proxy.audit(batch("b9", org, [13, 14]))).status == 202
    tamper(
        plane,
        "UPDATE chain SET kind = 'purge', position = 13, content = CAST('{\"gone\":[0,1]}' AS BLOB)"
        " WHERE number = 2",
    )
    tamper(plane, "DELETE FROM blocks WHERE position = 13")
    found = await misfit(plane, org, known)
    assert found is not None
    assert (found.what, found.link, found.position) == ("removed", 5, 13)


async def test_a_link_of_another_store_is_not_known(plane: Plane, org: str) -> None:
    for number in (None, 4):
        found = await misfit(plane, org, Known(b"\1" * 32, number))
        assert found is not None
        assert found.what == "truncated"


async def _head(plane: Plane, org: str) -> Known:
    newest = await plane.store.chain_head(org)
    assert newest is not None
    return Known(newest.newest.link, newest.newest.record.number)


# -- retention -------------------------------------------------------------------------------------


# One minute ahead of the control plane's clock, which is still accepted.
AHEAD = "2026-11-21T12:01:00.000Z"


@pytest.fixture
async def aged(plane: Plane, proxy: ProxyClient) -> str:
    """Store two blocks of events. In each block, the first and the last event have expired."""
    (org,) = proxy.org_ids
    for first in (1, 4):
        old, late = event(org, first), event(org, first + 2)
        events = [old, event(org, first + 1, time=AHEAD), late]
        assert (await proxy.audit({"batchId": f"b{first}", "events": events})).status == 202
    plane.store.sign_links(chain_key(await open_vault(plane.settings.secrets, plane.store)))
    return org


async def test_what_retention_takes_leaves_a_proof(plane: Plane, proxy: ProxyClient, aged: str) -> None:
    assert await plane.store.purge_events(aged, plane.clock.wall + 1, 3) == 3
    found = await walked(plane, aged)
    assert found.misfit is None
    assert (found.reached.number, found.reached.events, found.reached.purged) == (4, 6, 3)
    assert await plane.store.purge_events(aged, plane.clock.wall + 120_000, 99) == 3
    assert await plane.stored() == []
    assert await misfit(plane, aged) is None
    assert (await proxy.audit(batch("b9", aged, [13, 14]))).status == 202
    assert await misfit(plane, aged) is None
    with closing(sqlite3.connect(plane.settings.store.path)) as file:
        ((content,),) = file.execute("SELECT content FROM chain WHERE number = 1")
        assert file.execute("SELECT count(*) FROM event_digests").fetchone() == (1,)
    sent = [event(aged, 1), event(aged, 2, time=AHEAD), event(aged, 3)]
    digests = b"".join(hashlib.sha256(json.dumps(each).encode()).digest() for each in sent)
    # a kept copy of the event can be proved with its digest
    assert hashlib.sha256(digests).digest() == content


ENLARGED = "UPDATE chain SET content = CAST('{\"gone\":[0,1,2]}' AS BLOB) WHERE number = 3"
AFTER_A_PURGE: dict[str, tuple[Tamper | str, Found]] = {
    "what is left of a block": (
        _edited(1, lambda e: [None, e[1] | {"verdict": "block"}, None]),
        ("changed", 1, 2, "event-2"),
    ),
    "an event put back": (_edited(1, lambda e: [e[1], e[1], None]), ("changed", 1, 1, "event-2")),
    "the rest of a block deleted": ("DELETE FROM blocks WHERE position = 1", ("removed", 1, 1, None)),
    "the purge forgotten": ("DELETE FROM chain WHERE number = 3", ("removed", 1, 1, None)),
    "the purge enlarged": (ENLARGED, ("inserted", 1, 2, "event-2")),
}


@pytest.mark.parametrize("name", AFTER_A_PURGE)
async def test_tampering_is_named_after_a_purge(plane: Plane, aged: str, name: str) -> None:
    await plane.store.purge_events(aged, plane.clock.wall + 1, 99)
    change, (what, link, position, event_id) = AFTER_A_PURGE[name]
    tamper(plane, change)
    found = await misfit(plane, aged)
    assert found is not None
    assert (found.what, found.link, found.position, found.event_id) == (what, link, position, event_id)


async def test_an_event_made_old_is_not_purged(plane: Plane, org: str) -> None:
    """An attacker with access to the store's file must not be able to make retention remove an event."""
    plane.store.sign_links(chain_key(await open_vault(plane.settings.secrets, plane.store)))

    old = {"time": "2001-01-01T00:00:00.000Z"}
    tamper(plane, _edited(7, lambda e: [e[0], e[1] | old, e[2]]))
    tamper(plane, "UPDATE blocks SET least_ms = 0 WHERE position = 7")
    tamper(plane, "UPDATE receipts SET received_ms = 0 WHERE position = 7")
    assert await plane.store.purge_events(org, plane.clock.wall - 86_400_000, 99) == 0
    found = await misfit(plane, org)
    assert found is not None
    assert (found.what, found.link, found.position) == ("changed", 3, 8)


# -- concurrent and earlier writers ------------------------------------------------------------------


async def test_ingestion_and_purges_go_on_while_a_chain_is_walked(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    unlimited = RateLimits(10_000, 10_000)
    plane.store.sign_links(chain_key(await open_vault(plane.settings.secrets, plane.store)))
    sent = 0

    async def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            events = [event(org, sent * 2), event(org, sent * 2 + 1, time=AHEAD)]
            body = json.dumps({"batchId": f"b{sent}", "events": events}).encode()
            await plane.store.commit_batch(parse_batch(proxy.proxy_id, body, plane.clock.wall)[0], unlimited)
            sent += 1

    await send(250)
    vault = await open_vault(plane.settings.secrets, plane.store)
    steps = 0
    async for at in walk(vault, plane.store, org, None):
        steps += 1
        assert at.misfit is None
        await asyncio.gather(send(20), plane.store.purge_events(org, plane.clock.wall + 1, 20))
    assert steps > 3
    found = await walked(plane, org)
    assert found.misfit is None
    assert found.reached.purged == 20 * steps


async def test_a_purge_that_is_cut_short_leaves_neither_half(plane: Plane, aged: str) -> None:
    """One transaction purges events and changes the chain links, so a failed purge changes nothing."""
    with closing(sqlite3.connect(plane.settings.store.path)) as file:
        file.execute("CREATE TRIGGER t BEFORE UPDATE ON blocks BEGIN SELECT RAISE(ABORT, 'cut short'); END")
        file.commit()
        with pytest.raises(StoreError, match="cut short"):
            await plane.store.purge_events(aged, plane.clock.wall + 1, 99)
        file.execute("DROP TRIGGER t")
        file.commit()
    assert (await walked(plane, aged)).reached.purged == 0
    assert await plane.store.purge_events(aged, plane.clock.wall + 1, 99) == 4
    found = await walked(plane, aged)
    assert (found.misfit, found.reached.purged) == (None, 4)


async def test_each_organisation_has_a_chain_of_its_own(plane: Plane) -> None:
    one, other = await plane.org("one"), await plane.org("other")
    proxy = await plane.proxy("both", "one", "other")
    for number in range(3):
        for org in (one, other):
            assert (await proxy.audit(batch(f"{org}{number}", org, [number + 1]))).status == 202
    tamper(plane, f"UPDATE blocks SET body = CAST('[{{}}]' AS BLOB) WHERE org_id = '{other}'")
    assert await misfit(plane, one) is None
    assert await misfit(plane, other) is not None


async def test_events_of_an_earlier_release_are_chained_at_the_first_start(
    tmp_path: Path, clock: FakeClock
) -> None:
    var = tmp_path / "var"
    var.mkdir(mode=0o700)
    for name in ("controlplane.db", "master.key"):
        shutil.copy(FORMATS / "v1" / name, var)
    os.chmod(var / "master.key", 0o600)
    org = json.loads((FORMATS / "v1" / "known.json").read_text("utf-8"))["orgId"]
    for _ in range(2):  # a second start chains nothing
        async with started(tmp_path, clock) as plane:
            found = await walked(plane, org)
            assert found.misfit is None
            assert (found.reached.number, found.reached.events) == (2, 6)
            with closing(sqlite3.connect(plane.settings.store.path)) as file:
                assert file.execute("SELECT DISTINCT kind FROM chain").fetchall() == [("adopted",)]


async def test_nobody_gets_events_adopted_later(tmp_path: Path, clock: FakeClock) -> None:
    """If a store always had a chain, an event without a link is not from an earlier release."""
    async with started(tmp_path, clock) as plane:
        org = await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        assert (await proxy.audit(batch("b1", org, [1, 2]))).status == 202
    with closing(sqlite3.connect(tmp_path / "var" / "controlplane.db")) as file:
        file.execute("DELETE FROM chain")
        file.execute("DELETE FROM master_key_check")
        file.commit()
    async with started(tmp_path, clock) as plane:
        found = await misfit(plane, org)
        assert found is not None
        assert found.what == "inserted"


# -- random changes ----------------------------------------------------------------------------------

CELLS = {
    "chain": ("kind", "chained_ms", "position", "count", "proxy_id", "batch", "content", "link", "mac"),
    "blocks": ("position", "count", "org_id", "proxy_id", "body"),
    "event_digests": ("digests",),
}
_ONE = st.sampled_from([(table, column) for table, columns in CELLS.items() for column in columns])


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Create a store with blocks from which some events were purged.

    Return the directory of the new store.
    """
    folder = tmp_path_factory.mktemp("untouched")

    async def make() -> str:
        async with started(folder, FakeClock()) as plane:
            org = await plane.org("acme")
            proxy = await plane.proxy("edge-1", "acme")
            plane.store.sign_links(chain_key(await open_vault(plane.settings.secrets, plane.store)))
            for first in range(1, 16, 3):
                late = (event(org, first + at, time=AHEAD) for at in (1, 2))
                events = [event(org, first), *late]
                assert (await proxy.audit({"batchId": f"b{first}", "events": events})).status == 202
            assert await plane.store.purge_events(org, plane.clock.wall + 1, 2) == 2
            return org

    return folder, asyncio.run(make())


@given(st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_row_goes_unmissed(
    untouched: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder, org = untouched
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    table = data.draw(st.sampled_from(sorted(CELLS)))
    with closing(sqlite3.connect(copy / "var" / "controlplane.db")) as file:
        key = "number" if table == "chain" else "position"
        rows = [at for (at,) in file.execute(f"SELECT {key} FROM {table}")]
        gone = data.draw(st.sets(st.sampled_from(rows), min_size=1))
        for at in gone:
            file.execute(f"DELETE FROM {table} WHERE {key} = ?", (at,))
        file.commit()

    async def look() -> Misfit | None:
        async with started(copy, FakeClock()) as plane:
            return await misfit(plane, org)

    assert asyncio.run(look()) is not None


@given(st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_change_of_a_cell_goes_unseen(
    untouched: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder, org = untouched
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    table, column = data.draw(_ONE)
    with closing(sqlite3.connect(copy / "var" / "controlplane.db")) as file:
        key = "number" if table == "chain" else "position"
        rows = file.execute(f"SELECT {key}, {column} FROM {table}").fetchall()
        at, value = data.draw(st.sampled_from(rows))
        if isinstance(value, bytes):
            place = data.draw(st.integers(0, max(0, len(value) - 1)))
            changed: object = (
                value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :] if value else b"x"
            )
        elif isinstance(value, int):
            changed = value + data.draw(st.sampled_from([-2, 2, 1000]))
        else:
            changed = {"block": "adopted", "purge": "block"}.get(str(value), f"{value}x")
        file.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {key} = ?", (changed, at))
        file.commit()
        stayed = file.execute(f"SELECT {key}, {column} FROM {table}").fetchall() == rows

    async def look() -> Misfit | None:
        async with started(copy, FakeClock()) as plane:
            return await misfit(plane, org)

    assert stayed or asyncio.run(look()) is not None
