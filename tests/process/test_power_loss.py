"""Tests of a power loss at any step of the agent, after which only synced file content is left.

The tests simulate a power loss with the guarantees of POSIX. After a power loss, a file has the content of
its last fsync. A file's name exists after a power loss if the directory was synced. After a power loss,
writes since the last fsync may be missing or incomplete.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from proxy.agent.journal import Journal
from proxy.audit.record import decode, event_of, lines_of
from proxy.rules.snapshot import read_snapshot, write_snapshot
from tests.formats import FORMATS
from tests.process.agent_parts import MIB, collect_all, collector, journal_lines, payload, spool_writer, write

pytestmark = pytest.mark.process


class Disk:
    """Recorder of the syncs to disk (fsync) of files below a directory.

    After each sync of a file to disk, the function `step` can inspect the files that survive a power loss.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]) -> None:
        self._root = root
        self._content: dict[int, bytes] = {}  # content of each inode at its last sync
        self._names: dict[str, int] = {}  # names that were durable after the last sync of their directory
        self.calls: list[str] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._watching(name, getattr(os, name), step))
        for name in ("rename", "unlink"):
            monkeypatch.setattr(os, name, self._naming(name, getattr(os, name), step))

    def _watching(
        self, name: str, real: Callable[[int], None], step: Callable[[], None]
    ) -> Callable[[int], None]:
        def call(fd: int) -> None:
            real(fd)
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.is_dir():
                for entry in path.iterdir():
                    if entry.is_file():
                        self._names[str(entry)] = entry.stat().st_ino
                for known in [each for each in self._names if os.path.dirname(each) == str(path)]:
                    if not os.path.exists(known):
                        del self._names[known]
            else:
                self._content[os.fstat(fd).st_ino] = path.read_bytes()
            self.calls.append(f"{name} {path.relative_to(self._root)}")
            step()

        return call

    def _naming(self, name: str, real: Callable[..., None], step: Callable[[], None]) -> Callable[..., None]:
        def call(path: str | Path, *more: str | Path) -> None:
            real(path, *more)
            self.calls.append(f"{name} {' '.join(os.path.basename(each) for each in (path, *more))}")
            step()

        return call

    def after_power_loss(self, copy: Path, *, torn: random.Random | None = None) -> None:
        """Copy the files as a power loss leaves them.

        If `torn` is given, also copy some writes that were not synced to disk.
        """
        for name, inode in self._names.items():
            target = copy / Path(name).relative_to(self._root)
            target.parent.mkdir(parents=True, exist_ok=True)
            content = self._content.get(inode, b"")
            if torn is not None and os.path.exists(name) and os.stat(name).st_ino == inode:
                now = Path(name).read_bytes()
                cut = torn.randrange(len(now) + 1)
                content = now[:cut] + content[cut:]
            target.write_bytes(content)


def test_a_snapshot_is_synced_before_it_has_its_name_and_then_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each sync to disk, the file is the complete old snapshot or the complete new snapshot."""
    path = tmp_path / "snapshot.json"
    old = read_snapshot(FORMATS / "v1" / "snapshot.json")
    write_snapshot(path, old)
    versions: list[str] = []
    crash = tmp_path / "crash"

    def look() -> None:
        crash.mkdir(exist_ok=True)
        disk.after_power_loss(crash, torn=random.Random(len(versions)))
        if (crash / "snapshot.json").exists():
            versions.append(read_snapshot(crash / "snapshot.json").version)

    disk = Disk(tmp_path, monkeypatch, look)
    write_snapshot(path, old)  # this write makes it durable
    for n in range(8, 11):
        write_snapshot(path, msgspec.structs.replace(old, version=f"v{n}"))
    steps = [call.split(" ")[0] for call in disk.calls]
    assert steps == ["fsync", "rename", "fsync"] * 4
    assert versions[-1] == "v10"
    assert versions == sorted(versions, key=lambda version: int(version[1:]))


@pytest.mark.parametrize("torn", [False, True], ids=["lost", "torn"])
def test_what_the_agent_has_taken_or_sent_survives_a_power_loss_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    retention = tmp_path / "audit"
    chance = random.Random(5)
    sent: dict[str, bytes] = {}  # batch id -> body that may be at the control plane
    acknowledged: list[str] = []
    recorded = 0
    images: list[tuple[Path, int, dict[str, bytes], list[str]]] = []

    def keep_image() -> None:
        image = tmp_path / "images" / str(len(images))
        disk.after_power_loss(image / "audit", torn=chance if torn else None)
        # The kernel writes the spool; in this test it has. The next test covers the other case.
        shutil.rmtree(image / "audit" / "spool", ignore_errors=True)
        shutil.copytree(retention / "spool", image / "audit" / "spool")
        images.append((image / "audit", recorded, dict(sent), list(acknowledged)))

    with monkeypatch.context() as patched:
        spool = spool_writer(retention)
        disk = Disk(retention, patched, keep_image)
        journal = Journal(retention, max_bytes=4 * MIB)
        part = collector(retention, journal, max_bytes=64 * MIB)
        for _ in range(6):
            write(spool, range(recorded, recorded + 300))
            recorded += 300
            part.run_pass()
            for _ in range(2):
                batch = journal.plan("org-1", max_events=120, max_bytes=MIB)
                assert batch is not None
                body = journal.body("org-1", batch)
                assert body is not None
                sent[batch.batch_id] = body
                # batches that the control plane acknowledged, before the agent writes anything about it
                acknowledged.append(batch.batch_id)
                journal.done("org-1", batch)
        spool.close()
        part.close()
    assert len(images) > 50
    for image, count, on_the_wire, done in images:
        _recovers(image, count, on_the_wire, done)


def _recovers(retention: Path, recorded: int, on_the_wire: dict[str, bytes], done: list[str]) -> None:
    """Check that the control plane counts each event once after the power is back."""
    journal = Journal(retention, max_bytes=4 * MIB)
    collect_all(collector(retention, journal, max_bytes=64 * MIB))
    stored: dict[str, int] = {}
    for batch_id in done:
        stored |= {event["id"]: event["seq"] for event in json.loads(on_the_wire[batch_id])["events"]}
    while (batch := journal.plan("org-1", max_events=120, max_bytes=MIB)) is not None:
        body = journal.body("org-1", batch)
        assert body is not None
        # An id stands for the same bytes for ever.
        assert on_the_wire.get(batch.batch_id, body) == body
        for event in json.loads(body)["events"]:
            assert stored.get(event["id"], event["seq"]) == event["seq"]
            stored[event["id"]] = event["seq"]
        journal.done("org-1", batch)
    assert sorted(stored.values()) == list(range(1, len(stored) + 1))
    assert len(stored) >= recorded
    assert journal.state.missing == 0


def test_a_spool_that_was_lost_with_the_power_is_all_that_is_lost_and_numbers_go_on(tmp_path: Path) -> None:
    retention = tmp_path / "audit"
    spool = spool_writer(retention)
    write(spool, range(200))
    journal = Journal(retention, max_bytes=4 * MIB)
    part = collector(retention, journal)
    part.run_pass()
    write(spool, range(200, 230))
    part.close()
    spool.close()
    for segment in (retention / "spool").iterdir():
        segment.write_bytes(bytes(segment.stat().st_size))
    again = spool_writer(retention)
    write(again, range(300, 310))
    collect_all(collector(retention, Journal(retention, max_bytes=4 * MIB)))
    assert [event["seq"] for event in journal_lines(retention)] == list(range(1, 211))
    assert len({event["id"] for event in journal_lines(retention)}) == 210
    again.close()


def test_a_line_is_on_disk_before_the_state_that_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, max_bytes=4 * MIB)
    disk = Disk(tmp_path, monkeypatch, lambda: None)
    for n in range(3):
        event = event_of(decode(payload(n)), 1, journal.next_seq("org-1"), "proxy-1")
        journal.add("org-1", lines_of([event]), 1)
        journal.commit()
    assert disk.calls == [
        "fdatasync journal/org-1/1.ndjson",
        "fsync journal/org-1",
        "fsync journal",
        "fdatasync state.0",
        "fsync .",
        "fdatasync journal/org-1/1.ndjson",
        "fdatasync state.1",
        "fdatasync journal/org-1/1.ndjson",
        "fdatasync state.0",
    ]
