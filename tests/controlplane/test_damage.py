"""Tests of a database with one damaged page: the response is a 503 or the start fails, never wrong data."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.index_writer import IndexWriter
from controlplane.search import open_index
from controlplane.search.interface import SearchQuery
from controlplane.store.interface import StoreError
from tests.controlplane.plane import SYNC, FakeClock, Plane, ProxyClient, batch, started
from tests.formats import FORMATS

PAGE = 4096
STORE = FORMATS / "v1" / "controlplane.db"
KNOWN = json.loads((FORMATS / "v1" / "known.json").read_text("utf-8"))


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Expect that the start fails with an error that names the damaged file and the remedy."""
    try:
        yield
    except StoreError as error:
        if str(path) not in str(error) or "restore a backup" not in str(error):
            pytest.fail(f"this helps nobody: {error}")
        raise


@pytest.mark.parametrize("page", range(STORE.stat().st_size // PAGE))
async def test_a_bad_page_is_never_a_response(tmp_path: Path, page: int, clock: FakeClock) -> None:
    var = tmp_path / "var"
    var.mkdir(mode=0o700)
    shutil.copy(FORMATS / "v1" / "master.key", var)
    os.chmod(var / "master.key", 0o600)
    content = bytearray(STORE.read_bytes())
    content[page * PAGE : (page + 1) * PAGE] = b"\xa5" * PAGE
    (var / "controlplane.db").write_bytes(content)
    with contextlib.suppress(StoreError), named(var / "controlplane.db"):
        async with started(tmp_path, clock) as plane:
            added = KNOWN["proxy"]
            proxy = ProxyClient(
                plane.session, plane.base_url, clock, added["proxyId"], added["apiKey"], added["hmacSecret"]
            )
            sync = await proxy.send(SYNC)
            assert sync.status in (200, 503)
            if sync.status == 200:
                assert [app["clientId"] for app in sync.json["apps"]] == [KNOWN["app"]["clientId"]]
                assert [each["name"] for each in sync.json["rulesets"]] == ["rules"]
            new = await proxy.audit(batch("batch-7", KNOWN["orgId"], range(7, 9)))
            assert new.status in (202, 503)
            if new.status == 202:
                assert new.json["accepted"] == 2
                again = await proxy.audit(batch("batch-7", KNOWN["orgId"], range(7, 9)))
                assert again.status == 503 or again.json["duplicate"] is True


@pytest.mark.parametrize("damage", ["no database", "zeros", "half of it", "its head"])
async def test_a_damaged_index_is_put_aside_and_built_anew(
    tmp_path: Path, damage: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged search index is quarantined.

    The control plane rebuilds the index from the store while it serves proxies.
    """
    path = tmp_path / "var" / "controlplane.db.search.sqlite"
    async with started(tmp_path, clock) as plane:
        org = await plane.org("acme")
        proxy = await plane.proxy("edge", "acme")
        assert (await proxy.audit(batch("batch-1", org, range(1, 100)))).status == 202
        await indexed(plane, 99)
    whole = path.read_bytes()
    damaged = {
        "no database": b"no database" * 1000,
        "zeros": bytes(len(whole)),
        "half of it": whole[: len(whole) // 2],
        "its head": whole[:8192],
    }[damage]
    path.write_bytes(damaged)
    path.with_name(f"{path.name}-wal").write_bytes(b"of the old file")
    async with started(tmp_path, clock) as plane:
        proxy.base_url, proxy.session = plane.base_url, plane.session
        assert (await proxy.sync()).status == 200
        assert (await proxy.audit(batch("batch-2", org, range(100, 102)))).status == 202
        await indexed(plane, 101)
    assert path.with_name(f"{path.name}.damaged").read_bytes() == damaged
    (line,) = (record for record in caplog.records if record.name == "controlplane.search.sqlite_index")
    assert "moved the damaged search index to" in line.getMessage()
    assert line.exc_info is None


async def indexed(plane: Plane, position: int) -> None:
    """Wait until the search index has all events up to the given position."""
    path = plane.settings.store.path
    index = await open_index(plane.settings.search_index, plane.store, path)
    try:
        await IndexWriter(plane.store, index).drain()
        page = await index.search(SearchQuery(None, limit=1000))
        assert len(page.events) == position
    finally:
        await index.close()
