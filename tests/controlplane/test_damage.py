"""A database of which one page went bad: what can't be read is a 503 or no start, never a wrong answer."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.store.interface import StoreError
from tests.controlplane.plane import SYNC, FakeClock, ProxyClient, batch, started
from tests.formats import FORMATS

PAGE = 4096
STORE = FORMATS / "v1" / "controlplane.db"
KNOWN = json.loads((FORMATS / "v1" / "known.json").read_text("utf-8"))


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """A start that fails says which file is at fault and what to do."""
    try:
        yield
    except StoreError as error:
        if str(path) not in str(error) or "restore a backup" not in str(error):
            pytest.fail(f"this helps nobody: {error}")
        raise


@pytest.mark.parametrize("page", range(STORE.stat().st_size // PAGE))
async def test_a_bad_page_is_never_an_answer(tmp_path: Path, page: int, clock: FakeClock) -> None:
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
