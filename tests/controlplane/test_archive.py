"""Tests of the event archive: its content, and that the archive alone shows any later change."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from controlplane.archive.manifest import (
    EVENTS_SUFFIX,
    MANIFEST_SUFFIX,
    ArchivedLink,
    Manifest,
    manifest_bytes,
    read_manifest,
)
from controlplane.archive.verification import ArchiveVerdict, KnownLink, verify_archive
from controlplane.archive.writer import ArchiveConflict, ArchiveWriter
from controlplane.cli import main
from controlplane.store.chain import content_of, digests_of, make_link
from controlplane.store.interface import NewBatch, RateLimits
from controlplane.store.sql_store import SqlStore
from controlplane.store.sqlite import SqliteStore
from tests.fakes.clock import FakeClock
from tests.fakes.objects import MemoryObjects

LIMITS: Final = RateLimits(10**6, 10**6)
NOON_MS: Final = 1_795_694_400_000  # 2026-11-26T12:00:00Z
EACH_ORG: Final = ("org-a", "org-b")


def body(org_id: str, number: int) -> bytes:
    return json.dumps({"id": f"event-{number}", "orgId": org_id, "time": "2026-11-26T12:00:00.000Z"}).encode()


async def put(store: SqlStore, org_id: str, numbers: Iterable[int], *bodies: bytes) -> list[bytes]:
    """Store a batch of events that have either the given numbers or the given bodies."""
    numbers = list(numbers)
    events = list(bodies) or [body(org_id, number) for number in numbers]
    ids = [f"event-{number}" for number in numbers]
    times = [NOON_MS] * len(ids)
    await store.commit_batch(NewBatch("p", org_id, f"{org_id}-{ids[0]}", ids, numbers, times, events), LIMITS)
    return events


async def archived(store: SqlStore, objects: MemoryObjects, after: int = 0) -> int:
    """Archive the store's events after position `after`, at most as many as fit into one range.

    Return the end of the range.
    """
    found = await store.archive_range(after)
    assert found is not None
    await ArchiveWriter(store, objects).write(after, found.upto)
    return found.upto


async def verdicts(objects: MemoryObjects, **known: KnownLink) -> list[ArchiveVerdict]:
    links = {org_id.replace("_", "-"): link for org_id, link in known.items()}
    return [each async for each in verify_archive(objects, links)]


def lines(objects: MemoryObjects, org_id: str) -> list[bytes]:
    found = [
        each for each in sorted(objects.objects) if each.startswith(org_id) and each.endswith(EVENTS_SUFFIX)
    ]
    return [line for each in found for line in gzip.decompress(objects.objects[each]).splitlines()]


async def test_the_archive_has_each_event_once_as_it_came(either_store: SqlStore) -> None:
    objects = MemoryObjects()
    sent: dict[str, list[bytes]] = {org_id: [] for org_id in EACH_ORG}
    upto = 0
    for number in range(0, 12, 3):
        for org_id in EACH_ORG:
            sent[org_id] += await put(either_store, org_id, range(number, number + 3))
        if number % 2:
            upto = await archived(either_store, objects, upto)
    sent["org-b"] += await put(either_store, "org-b", range(20, 190))  # blocks of 64
    await archived(either_store, objects, upto)
    assert await either_store.archive_range(await archived(either_store, MemoryObjects())) is None
    for found in await verdicts(objects):
        assert (found.fault, found.events, found.first_link) == (None, len(sent[found.org_id]), 1)
        assert lines(objects, found.org_id) == sent[found.org_id]
        head = await either_store.chain_head(found.org_id)
        assert head is not None
        assert (found.last_link, found.last_link_digest) == (
            head.newest.record.number,
            head.newest.link.hex(),
        )
    assert sorted(objects.objects) == sorted(
        set(objects.objects), key=lambda name: (name.split("/")[0], name)
    )


async def test_a_range_that_is_written_again_changes_nothing(either_store: SqlStore) -> None:
    objects = MemoryObjects()
    for number in range(0, 100, 10):
        await put(either_store, "org-a", range(number, number + 10))
    upto = await archived(either_store, objects)
    before = dict(objects.objects)
    last = sorted(objects.objects)[-1]
    del objects.objects[last]  # SIGKILL between the events and their manifest
    await put(either_store, "org-a", range(100, 110))
    await ArchiveWriter(either_store, objects).write(0, upto)
    assert objects.objects == before
    assert objects.refused == 1
    # Another version of zlib made other bytes of the same events.
    (name,) = (each for each in before if each.endswith(EVENTS_SUFFIX))
    objects.objects = {name: gzip.compress(gzip.decompress(before[name]), 1, mtime=0)}
    await ArchiveWriter(either_store, objects).write(0, upto)
    assert [each.fault for each in await verdicts(objects)] == [None]
    # An object of another program has the name: it stays, and the archive stops.
    for suffix in (EVENTS_SUFFIX, MANIFEST_SUFFIX):
        other = {name.removesuffix(EVENTS_SUFFIX) + suffix: gzip.compress(b"{}\n")}
        objects.objects = dict(other)
        with pytest.raises(ArchiveConflict, match="is not overwritten"):
            await ArchiveWriter(either_store, objects).write(0, upto)
        assert other.items() <= objects.objects.items()


async def test_what_retention_took_is_explained_by_the_chain(
    either_store: SqlStore, clock: FakeClock
) -> None:
    for number in range(0, 9, 3):
        await put(either_store, "org-a", range(number, number + 3))
    clock.wall += 86_400_000
    await either_store.purge_events("org-a", clock.wall + 1, 4)  # a whole block, and one event of the next
    objects = MemoryObjects()
    upto = await archived(either_store, objects)
    (found,) = await verdicts(objects)
    assert (found.fault, found.events, found.purged, found.unexplained) == (None, 5, 4, 0)
    # Archived events stay in the archive after a purge, even if ranges overlap.
    await put(either_store, "org-a", range(9, 12))
    await archived(either_store, objects, upto)
    await either_store.purge_events("org-a", clock.wall + 1, 2)
    await put(either_store, "org-a", range(12, 15))
    await archived(either_store, objects, 4)
    (found,) = await verdicts(objects)
    assert (found.fault, found.events, found.purged, found.unexplained) == (None, 11, 4, 0)


async def test_an_event_with_line_ends_is_one_line_and_still_proved(either_store: SqlStore) -> None:
    spread = b'{"id": "event-1",\r\n "path": "a\\nb"\n}'
    damaged = body("org-a", 2)
    await put(either_store, "org-a", [1, 2], spread, damaged)
    objects = MemoryObjects()
    await archived(either_store, objects)
    assert lines(objects, "org-a") == [b'{"id": "event-1",   "path": "a\\nb" }', damaged]
    (found,) = await verdicts(objects)
    assert (found.fault, found.events) == (None, 2)


async def test_an_archive_that_begins_late_is_whole_only_if_its_keeper_says_so(
    either_store: SqlStore,
) -> None:
    objects = MemoryObjects()
    for number in range(0, 12, 3):
        await put(either_store, "org-a", range(number, number + 3))
    await archived(either_store, objects, 6)
    (found,) = await verdicts(objects)
    assert (found.fault, found.first_link, found.last_link, found.events) == (None, 3, 4, 6)
    assert (found.absent_links, found.is_whole) == (2, False)
    for after, absent in ((1, 1), (2, 0), (3, 0)):
        (found,) = [each async for each in verify_archive(objects, {}, begins_after={"org-a": after})]
        assert (found.absent_links, found.is_whole) == (absent, absent == 0)


# -- changes ---------------------------------------------------------------------------------------

Objects = dict[str, bytes]
Change = Callable[[Objects], object]
Edit = Callable[[list[bytes]], list[bytes]]


def names(objects: Objects, suffix: str) -> list[str]:
    return sorted(name for name in objects if name.endswith(suffix))


def with_events(
    number: int, edit: Callable[[list[bytes]], list[bytes]], *, is_careful: bool = True
) -> Change:
    """Return a function that changes the lines of an archived range.

    A careful forger also writes the digests of the changed lines into the manifest.
    """

    def change(objects: Objects) -> None:
        name = names(objects, EVENTS_SUFFIX)[number]
        made = b"".join(line + b"\n" for line in edit(gzip.decompress(objects[name]).splitlines()))
        objects[name] = gzip.compress(made, mtime=0)
        if is_careful:
            rewrite(objects, number, lambda manifest: forged_object(manifest, objects[name], made))

    return change


def forged_object(manifest: Manifest, packed: bytes, text: bytes) -> Manifest:
    assert manifest.events is not None
    said = msgspec.structs.replace(
        manifest.events,
        events=text.count(b"\n"),
        sha256=sha256(packed).hexdigest(),
        content_sha256=sha256(text).hexdigest(),
    )
    return msgspec.structs.replace(manifest, events=said)


def rewrite(objects: Objects, number: int, edit: Callable[[Manifest], Manifest]) -> None:
    name = names(objects, MANIFEST_SUFFIX)[number]
    objects[name] = manifest_bytes(edit(read_manifest(objects[name])))


def with_link(of: int, at: int, **members: Any) -> Change:
    """Return a function that changes a chain link in the manifest of an archived range."""

    def edit(manifest: Manifest) -> Manifest:
        changed = list(manifest.links)
        changed[at] = msgspec.structs.replace(changed[at], **members)
        return msgspec.structs.replace(manifest, links=tuple(changed))

    return lambda objects: rewrite(objects, of, edit)


def remade(number: int) -> Change:
    """Return a function that removes a range's first event and recomputes the range's chain."""

    def change(objects: Objects) -> None:
        with_events(number, lambda found: found[1:])(objects)
        (name,) = [names(objects, EVENTS_SUFFIX)[number]]
        left = gzip.decompress(objects[name]).splitlines()

        def edit(manifest: Manifest) -> Manifest:
            link, at = bytes.fromhex(manifest.previous_link), 0
            made: list[ArchivedLink] = []
            for each in manifest.links:
                count = each.count - (not made)
                content = content_of(b"".join(digests_of(left[at : at + count])))
                each = msgspec.structs.replace(each, count=count, content=content.hex())
                at += count
                link = make_link(link, each.record(manifest.org_id))
                made.append(msgspec.structs.replace(each, link=link.hex()))
            return msgspec.structs.replace(manifest, links=tuple(made))

        rewrite(objects, number, edit)

    return change


def gone(number: int, *suffixes: str) -> Change:
    def change(objects: Objects) -> None:
        for suffix in suffixes:
            del objects[names(objects, suffix)[number]]

    return change


def both(*changes: Change) -> Change:
    def change(objects: Objects) -> None:
        for each in changes:
            each(objects)

    return change


def _beside(objects: Objects, name: str) -> str:
    return next(iter(objects)).rpartition("/")[0] + "/" + name


def copied(source: int, target: int) -> Change:
    def change(objects: Objects) -> None:
        for suffix in (EVENTS_SUFFIX, MANIFEST_SUFFIX):
            found = names(objects, suffix)
            objects[found[target]] = objects[found[source]]

    return change


SIXTH: Final = {0: sha256(body("org-a", 6)).hexdigest()}  # the first event of the second range
# Three ranges, each of two blocks of three events. Each case has a change and its finding.
CHANGES: Final[dict[str, tuple[Change, str]]] = {
    "an event changed": (
        with_events(1, lambda found: [found[0].replace(b"event-6", b"event-x"), *found[1:]]),
        "an event of the block does not match the digest in the chain link",
    ),
    "an event changed without care": (
        with_events(1, lambda found: [b"{}", *found[1:]], is_careful=False),
        "does not match its digest in the manifest",
    ),
    "a space added": (
        with_events(0, lambda found: [found[0] + b" ", *found[1:]]),
        "does not match the digest in the chain link",
    ),
    "an event removed": (
        with_events(1, lambda found: found[:-1]),
        "an event of the block is missing in the events object",
    ),
    "an event added": (with_events(1, lambda found: [*found, found[-1]]), "more events than the chain"),
    "two events swapped": (
        with_events(2, lambda found: [found[1], found[0], *found[2:]]),
        "does not match the digest in the chain link",
    ),
    "the events of a range removed": (
        gone(1, EVENTS_SUFFIX),
        "the events object that the manifest names is missing",
    ),
    "a range removed": (
        gone(1, EVENTS_SUFFIX, MANIFEST_SUFFIX),
        "no links from 3 to 4: an earlier object of the archive is missing",
    ),
    "a manifest removed": (gone(1, MANIFEST_SUFFIX), "no links from 3 to 4"),
    "a range in the place of another": (
        copied(0, 1),
        "the range in the manifest differs from the range in the name of the manifest",
    ),
    "an event called absent": (
        both(with_events(1, lambda found: found[1:]), with_link(1, 0, absent=SIXTH)),
        "1 unexplained",
    ),
    "a block called gone": (
        both(with_events(1, lambda found: found[3:]), with_link(1, 0, gone=True)),
        "3 unexplained",
    ),
    "the time of a link changed": (with_link(1, 0, chained_ms=1), "chain link does not match its digest"),
    "a link renumbered": (with_link(1, 1, number=9), "found chain link 9 instead of link 4"),
    "a link removed": (
        lambda objects: rewrite(
            objects, 1, lambda found: msgspec.structs.replace(found, links=found.links[1:])
        ),
        "found chain link 4 instead of link 3",
    ),
    "the chain made again in the middle": (remade(1), "does not continue the hash chain"),
    "the chain made again at the end": (remade(2), "the known link is not in the archive"),
    "the end removed": (
        gone(-1, EVENTS_SUFFIX, MANIFEST_SUFFIX),
        "ends with link 4, before the known link 6",
    ),
    "the beginning made another": (
        lambda objects: rewrite(
            objects, 0, lambda found: msgspec.structs.replace(found, previous_link="11" * 32)
        ),
        "the first link of the manifest does not begin an audit chain",
    ),
    "a manifest that is not one": (
        lambda objects: objects.update({names(objects, MANIFEST_SUFFIX)[0]: b"nothing"}),
        "the manifest can't be read",
    ),
    "a manifest cut off": (
        lambda objects: objects.update(
            {name: objects[name][:-9] for name in names(objects, MANIFEST_SUFFIX)[:1]}
        ),
        "the manifest",
    ),
    "a form of a later release": (
        lambda objects: rewrite(
            objects, 0, lambda found: msgspec.structs.replace(found, format="graphward archive 9")
        ),
        "use a release that supports this format",
    ),
    "an object of events that somebody put there": (
        lambda objects: objects.update({_beside(objects, "9" * 20 + "-" + "9" * 20 + EVENTS_SUFFIX): b""}),
        "no manifest names this object",
    ),
    "an object of another kind": (
        lambda objects: objects.update({_beside(objects, "notes.txt"): b""}),
        "no manifest names this object",
    ),
    "a manifest that is gone, and its events are not": (
        gone(-1, MANIFEST_SUFFIX),
        "before the known link",
    ),
    "the first objects": (gone(0, EVENTS_SUFFIX, MANIFEST_SUFFIX), "2 links"),
    "a digest that is none": (with_link(1, 0, content="zz"), "a digest that is not hex digits"),
    "a line that is not the event": (
        with_link(1, 0, verbatim={0: "e30="}),
        "a line of the events object differs from the event that the control plane received",
    ),
}  # fmt: skip


@pytest.fixture
async def three_ranges(tmp_path: Path, clock: FakeClock) -> tuple[MemoryObjects, KnownLink]:
    store = await SqliteStore.open(tmp_path / "store.db", clock)
    objects, upto = MemoryObjects(), 0
    for number in range(0, 18, 6):
        for first in (number, number + 3):
            await put(store, "org-a", range(first, first + 3))
        upto = await archived(store, objects, upto)
    head = await store.chain_head("org-a")
    assert head is not None
    await store.close()
    return objects, KnownLink(head.newest.link.hex(), head.newest.record.number)


async def test_each_change_of_an_archive_is_found(three_ranges: tuple[MemoryObjects, KnownLink]) -> None:
    untouched, known = three_ranges
    (found,) = await verdicts(untouched, org_a=known)
    assert (found.fault, found.events, found.known_link) == (None, 18, 6)
    missed = {}
    for name, (change, wanted) in CHANGES.items():
        objects = MemoryObjects()
        objects.objects = dict(untouched.objects)
        change(objects.objects)
        (found,) = await verdicts(objects, org_a=known)
        said = f"{found.unexplained} unexplained, no {found.absent_links} links"
        said = found.fault.explanation if found.fault else said
        if found.is_whole or wanted not in said:
            missed[name] = said
    assert missed == {}


async def test_a_known_link_has_to_be_there(three_ranges: tuple[MemoryObjects, KnownLink]) -> None:
    objects, known = three_ranges
    (found,) = await verdicts(objects, org_a=KnownLink(known.link))
    assert found.known_link == 6
    (found,) = await verdicts(objects, org_a=replace(known, number=5))
    assert found.fault is not None
    (found,) = await verdicts(objects, org_a=KnownLink("00" * 32))
    assert found.fault is not None


# -- the command -----------------------------------------------------------------------------------


def test_an_auditor_verifies_a_copy_with_nothing_else(
    three_ranges: tuple[MemoryObjects, KnownLink], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects, known = three_ranges
    copy = tmp_path / "copy"
    for name, content in objects.objects.items():
        file = copy / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    checkpoint = tmp_path / "heads.json"
    checkpoint.write_text(json.dumps({"heads": [{"orgId": "org-a", "number": 6, "link": known.link}]}))

    def verify(*arguments: str) -> tuple[int, str, str]:
        status = main(["audit", "verify-archive", *arguments])
        return status, *capsys.readouterr()

    status, out, _ = verify(str(copy), "--checkpoint", str(checkpoint))
    assert (status, "18 events" in out, "nothing before it is missing" in out) == (0, True, True)
    status, out, _ = verify(str(copy), "--org", "org-a", "--head", known.link, "--json")
    found = json.loads(out)
    assert (found["intact"], found["orgs"][0]["events"], found["orgs"][0]["knownLink"]) == (True, 18, 6)
    status, out, _ = verify(str(copy))
    assert (status, "give a known link with --checkpoint or --head" in out) == (0, True)
    status, _, errors = verify(str(copy / "org-a"))
    assert (status, "give the folder above it" in errors) == (2, True)
    # removes the first range, as a lifecycle rule would
    for removed in sorted((copy / "org-a").rglob("*-*.*"))[:2]:
        removed.unlink()
    status, out, errors = verify(str(copy), "--checkpoint", str(checkpoint))
    assert (status, "no links from 1 to 2" in errors, "nothing before it" in out) == (1, True, False)
    status, out, _ = verify(str(copy), "--org", "org-a", "--head", known.link, "--from-link", "3")
    assert (status, "nothing before it is missing from link 3 on" in out) == (0, True)
    assert verify(str(copy), "--from-link", "3")[0] == 2
    since = tmp_path / "since.json"
    since.write_text(json.dumps({"heads": [{"orgId": "org-a", "number": 2, "link": known.link}]}))
    assert verify(str(copy), "--since", str(since))[0] == 0
    changed = next(copy.rglob("*.ndjson.gz"))
    changed.write_bytes(gzip.compress(b"{}\n"))
    status, out, errors = verify(str(copy), "--checkpoint", str(checkpoint))
    assert status == 1
    assert "does not match its digest in the manifest" in errors
    assert "NOT VERIFIED" in out
    checkpoint.write_text(json.dumps({"heads": [{"orgId": "org-z", "number": 1, "link": known.link}]}))
    assert (
        "org-z: the checkpoint names a link of this organisation"
        in verify(str(copy), "--checkpoint", str(checkpoint))[2]
    )
    assert verify(str(tmp_path / "nowhere"))[0] == 2
    assert verify()[0] == 2
    (tmp_path / "empty").mkdir()
    assert "contains no archive" in verify(str(tmp_path / "empty"))[2]
