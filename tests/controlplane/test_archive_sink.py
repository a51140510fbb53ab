"""Tests of the archive sink `blob`.

The store saves the end of a range of events before the sink writes the range. The storage accepts each object
name only once.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from controlplane.archive.manifest import EVENTS_SUFFIX, each_line
from controlplane.archive.object_store import Folder
from controlplane.archive.verification import verify_archive
from controlplane.sinks.blob import MARKER, BlobSink, open_objects
from controlplane.sinks.consumer import Consumer
from controlplane.sinks.interface import SinkUnavailable
from controlplane.sinks.settings import AnySink, BlobSettings
from controlplane.store.interface import Org
from controlplane.store.sql_store import SqlStore
from controlplane.store.sqlite import SqliteStore
from proxy.outbound.egress import DIRECT
from tests.controlplane.test_archive import body, put, verdicts
from tests.fakes.clock import FakeClock
from tests.fakes.object_storage import (
    ACCESS_KEY_ID,
    SAS,
    SECRET_ACCESS_KEY,
    FakeBlobStorage,
    FakeS3,
    ObjectStorage,
)
from tests.fakes.objects import MemoryObjects

FLUSH_MS: Final = 300_000
SETTINGS: Final = BlobSettings(
    name="archive", kind="blob", url="s3://audit", region="us-east-1", from_="beginning"
)


def consumer_of(store: SqlStore, clock: FakeClock, settings: AnySink = SETTINGS) -> Consumer:
    def opened(_: AnySink) -> BlobSink:
        raise AssertionError("the test gives the sink itself")

    return Consumer(settings, store, clock, opened)


class Crash(Exception):
    """Simulated crash of the process at the place where Crash is raised."""


async def test_events_are_archived_once_they_have_waited_long_enough(
    either_store: SqlStore, clock: FakeClock
) -> None:
    objects = MemoryObjects()
    archive, consumer = BlobSink(objects, FLUSH_MS / 1000), consumer_of(either_store, clock)
    await put(either_store, "org-a", range(3))
    await consumer.drain(archive)
    assert objects.objects == {}, "more events may come for the same object"
    clock.wall += FLUSH_MS - 1
    await put(either_store, "org-a", range(3, 6))
    await consumer.drain(archive)
    assert objects.objects == {}
    clock.wall += 1
    await consumer.drain(archive)
    (found,) = await verdicts(objects)
    assert (found.fault, found.objects, found.events) == (None, 1, 6)
    state = (await either_store.sink_states())["archive"]
    assert (state.position, state.delivered) == (await either_store.last_position(), 6)


async def test_a_crash_anywhere_leaves_each_event_once(
    either_store: SqlStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events arrive between the crash and the next start.

    The next start writes the range of events that was fixed before the crash.
    """
    objects, sent = MemoryObjects(), 0
    for crash_at in range(4):  # crash before and after each of the two objects, and before the cursor moves
        sent += len(await put(either_store, "org-a", range(sent, sent + 5)))
        clock.wall += FLUSH_MS
        writes = 0

        async def create(name: str, body: bytes, crash_at: int = crash_at) -> bool:
            nonlocal writes
            writes += 1
            if writes > crash_at:
                raise Crash
            return await MemoryObjects.create(objects, name, body)

        async def advance(*_: Any) -> bool:
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(objects, "create", create)
            patch.setattr(either_store, "advance_sink", advance)
            with pytest.raises(Crash):
                await consumer_of(either_store, clock).drain(BlobSink(objects, FLUSH_MS / 1000))
        sent += len(await put(either_store, "org-a", range(sent, sent + 5)))
        clock.wall += FLUSH_MS
        await consumer_of(either_store, clock).drain(BlobSink(objects, FLUSH_MS / 1000))
        (found,) = await verdicts(objects)
        assert (found.fault, found.events) == (None, sent), crash_at
        assert found.objects == 2 * crash_at + 2, "the range that was fixed, and then one with the rest"


async def test_organisations_can_be_left_out_and_storage_may_fail(
    either_store: SqlStore, clock: FakeClock
) -> None:
    for org_id in ("org-a", "org-b"):
        await put(either_store, org_id, range(3))
    clock.wall += FLUSH_MS
    await either_store.add_org(Org("org-b", "acme", "base", 0))
    objects = MemoryObjects()
    consumer = consumer_of(either_store, clock, replace(SETTINGS, organisations=("acme",)))
    await consumer.drain(BlobSink(objects, 1.0))
    assert [each.org_id for each in await verdicts(objects)] == ["org-b"]
    events = next(name for name in objects.objects if name.endswith(".ndjson.gz"))
    objects.objects = {events: b"another's"}
    with pytest.raises(SinkUnavailable, match="is not overwritten"):
        await BlobSink(objects, 1.0).write(either_store, 0, 99, None)


# -- storage ---------------------------------------------------------------------------------------


@pytest.fixture(params=["s3", "azure"])
async def storage(request: pytest.FixtureRequest) -> AsyncIterator[tuple[ObjectStorage, BlobSettings]]:
    fake: ObjectStorage = FakeS3() if request.param == "s3" else FakeBlobStorage()
    async with fake:
        if request.param == "s3":
            settings = replace(
                SETTINGS,
                endpoint_url=fake.base_url,
                access_key_id=ACCESS_KEY_ID,
                secret_access_key=SECRET_ACCESS_KEY,
            )
        else:
            url = f"{fake.base_url}/account/audit"
            settings = BlobSettings(name="archive", kind="blob", url=url, sas=SAS)
        yield fake, replace(settings, prefix="a b/+ü/", timeout_seconds=5.0)


async def test_storage_takes_a_name_once_and_lists_in_pages(
    storage: tuple[ObjectStorage, BlobSettings],
) -> None:
    fake, settings = storage
    await exercise(settings)
    assert len(fake.objects) == 5
    assert all(name.startswith("a b/+ü/") for name in fake.objects)
    fake.throttled = 1
    sink, refused = (
        BlobSink(open_objects(each, DIRECT), 1.0) for each in (settings, with_wrong_key(settings))
    )
    with pytest.raises(SinkUnavailable, match=r"the storage responded 503 (SlowDown|ServerBusy)") as caught:
        await sink.test()
    assert caught.value.retry_after == 3.0
    fake.is_a_portal = True
    with pytest.raises(SinkUnavailable, match="the storage responded 200"):
        await sink.test()
    fake.is_a_portal = False
    fake.overwrites = True
    with pytest.raises(SinkUnavailable, match="overwrites objects although If-None-Match forbids it"):
        await sink.test()
    with pytest.raises(SinkUnavailable, match=r"responded 403 [A-Z]"):
        await refused.test()
    await sink.close()
    await refused.close()


def with_wrong_key(settings: BlobSettings) -> BlobSettings:
    return replace(settings, secret_access_key="wrong") if settings.is_s3 else replace(settings, sas="sig=x")


async def exercise(settings: BlobSettings) -> None:
    """Write, read and list objects on the storage, as an archive does."""
    sink = BlobSink(open_objects(settings, DIRECT), 1.0)
    assert await sink.test() == "the storage writes and reads objects, and overwrites none"
    objects = sink.objects
    assert await objects.create("org/2026-11-26/1 2+3.gz", b"x" * 5000) is True
    assert await objects.create("org/2026-11-26/1 2+3.gz", b"other") is False
    assert await objects.read("org/2026-11-26/1 2+3.gz") == b"x" * 5000
    for number in range(3):
        await objects.create(f"z/{number}", b"z")
    everything = ["org/2026-11-26/1 2+3.gz", "z/0", "z/1", "z/2"]
    assert [name async for name in objects.names()] == sorted([MARKER, *everything])
    assert [name async for name in objects.names("z/")] == everything[1:]
    with pytest.raises(KeyError):
        await objects.read("missing")
    await sink.close()


@pytest.mark.skipif("GRAPHWARD_TEST_STORAGE" not in os.environ, reason="no real storage is named")
async def test_real_storage_does_the_same() -> None:
    """Run the test with real storage if the environment variable for real storage is set.

    The environment variable has a table of settings as Python writes it, such as `{"url": "s3://audit", …}`.
    """
    import ast

    given = ast.literal_eval(os.environ["GRAPHWARD_TEST_STORAGE"])
    await exercise(BlobSettings(name="archive", kind="blob", **given))


@pytest.mark.process
async def test_sigkill_at_any_moment_leaves_each_event_once(tmp_path: Path, clock: FakeClock) -> None:
    store, copy = await SqliteStore.open(tmp_path / "store.db", clock), tmp_path / "archive"
    for number in range(0, 1200, 10):
        await put(store, "org-a", range(number, number + 10))
    await store.close()
    command = [
        sys.executable,
        "-m",
        "tests.controlplane.killed_archiver",
        str(tmp_path / "store.db"),
        str(copy),
    ]
    kills, ended = 0, False
    while not ended:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        try:
            async with asyncio.timeout(random.uniform(0.01, 0.15)):
                ended = await process.wait() == 0
        except TimeoutError:
            process.kill()
            await process.wait()
            kills += 1
        if kills == 4:  # the last process may finish
            assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0
            ended = True
    (found,) = [each async for each in verify_archive(Folder(copy), {})]
    assert (found.fault, found.unexplained, found.events) == (None, 0, 1200)
    assert kills, "nothing was killed"
    names = [name async for name in Folder(copy).names()]
    bodies = [(copy / name).read_bytes() for name in names if name.endswith(EVENTS_SUFFIX)]
    stored = [line for each in bodies for line in each_line(each)]
    assert stored == [body("org-a", number) for number in range(1200)]
