"""Tests with a really full disk: requests are refused, deliveries continue, and service recovers."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.agent.collector import Collector
from proxy.agent.journal import Journal
from proxy.audit.spool import SpoolWriter, used_bytes
from tests.fakes.control_plane import FakeControlPlane
from tests.process.agent_parts import MIB, collect_all, collector, payload, spool_writer
from tests.process.test_agent_shipper import Rig, journal_with, rig

pytestmark = pytest.mark.process


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk takes privileges")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


async def test_nothing_is_lost_and_nothing_has_to_be_restarted(small_disk: Path) -> None:
    retention = small_disk / "audit"
    journal = Journal(retention, max_bytes=4 * MIB)
    spool = SpoolWriter(
        retention, segment_bytes=256 * 1024, max_bytes=1 << 40, when_full="refuse", id_prefix=1
    )
    part = collector(retention, journal, max_bytes=1 << 40)
    recorded = 0

    def serve_until_refused() -> None:
        nonlocal recorded
        failures = 0
        while failures < 3:
            spool.maintain()
            failures = 0 if spool.ready else failures + 1
            for _ in range(40 if spool.ready else 0):
                spool.append("org-1", payload(recorded))
                recorded += 1
            try:
                part.run_pass()
            except OSError:
                assert part.stalled is not None

    serve_until_refused()
    assert spool.problem is not None
    assert "No space left" in spool.problem
    assert recorded > 2000
    disk = os.statvfs(small_disk)
    filler = small_disk / "somebody-else"
    filler.write_bytes(b"\0" * (disk.f_bavail * disk.f_bsize))
    async with FakeControlPlane() as control, rig(journal, control) as parts:
        await _until_arrived(control, parts, part, recorded)
        spool.maintain()
        assert spool.ready
    spool.close()


async def test_a_backlog_that_is_larger_than_the_room_goes_out_bit_by_bit(small_disk: Path) -> None:
    """Another program used up the disk, including the agent's reserve, and freed only little space."""
    retention = small_disk / "audit"
    journal = Journal(retention, max_bytes=1 << 30)
    spool = SpoolWriter(
        retention, segment_bytes=256 * 1024, max_bytes=1 << 40, when_full="refuse", id_prefix=1
    )
    recorded = 0
    spool.maintain()
    while spool.ready:
        for _ in range(40):
            spool.append("org-1", payload(recorded))
            recorded += 1
        spool.maintain()
    assert recorded > 10_000
    disk = os.statvfs(small_disk)
    filler = small_disk / "somebody-else"
    filler.write_bytes(b"\0" * (disk.f_bavail * disk.f_bsize - 256 * 1024))
    part = collector(retention, journal, max_bytes=1 << 40)
    async with FakeControlPlane() as control, rig(journal, control) as parts:
        await _until_arrived(control, parts, part, recorded)
    spool.close()


@pytest.mark.parametrize("when_full", ["refuse", "drop-oldest"])
async def test_what_is_all_sent_of_many_organisations_makes_way(tmp_path: Path, when_full: str) -> None:
    """Each organisation keeps one completely sent journal file, and many such files fill the disk budget."""
    orgs = [f"org-{number}" for number in range(10)]
    journal = journal_with(tmp_path, dict.fromkeys(orgs, 1000))
    spool = spool_writer(tmp_path)
    spool.maintain()
    part = collector(tmp_path, journal, max_bytes=4 * MIB, when_full=when_full)
    async with FakeControlPlane() as control, rig(journal, control) as parts:
        await parts.ship()
        assert used_bytes(tmp_path) > 4 * MIB
        spool.append("org-0", payload(1, "org-0"))
        collect_all(part)
        assert part.stalled is None
        await parts.ship()
        assert control.seqs("org-0") == list(range(1, 1002))
    assert journal.status().dropped == 0
    spool.close()


async def _until_arrived(control: FakeControlPlane, parts: Rig, part: Collector, count: int) -> None:
    loop, disk = asyncio.get_running_loop(), parts.shipper._disk
    for _ in range(400):
        parts.shipper.notify(await loop.run_in_executor(disk, parts.journal.pending))
        await asyncio.gather(*parts.shipper._tasks.values())
        try:
            await loop.run_in_executor(disk, collect_all, part)
        except OSError:
            continue
        if len(control.seqs("org-1")) == count:
            break
    assert control.seqs("org-1") == list(range(1, count + 1))
