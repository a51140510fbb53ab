"""Tests that the collector copies each record from the spool to the journal exactly once, in order.

The sequence numbers of lost events are not given to other events.
"""

import errno
import json
import os
import random
import re
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.agent.journal import Journal
from proxy.agent.statefile import StateFile
from proxy.audit.record import request_id
from proxy.audit.segment import FRAME_HEADER, SegmentReader, header_of
from proxy.audit.spool import spool_directory, used_bytes
from proxy.startup.settings import load
from tests.process.agent_parts import (
    MIB,
    collect_all,
    collector,
    journal_lines,
    payload,
    spool_writer,
    write,
)


def a_journal(directory: Path, max_bytes: int = 256 * MIB) -> Journal:
    return Journal(directory, max_bytes=max_bytes)


def segments(directory: Path) -> list[Path]:
    return sorted(spool_directory(directory).glob("*.seg"))


def seqs(directory: Path, org_id: str = "org-1") -> list[int]:
    return [event["seq"] for event in journal_lines(directory, org_id)]


def test_events_have_their_numbers_ids_and_order(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path, prefix=3)
    write(spool, range(5))
    write(spool, range(5, 8), "org-2")
    collect_all(collector(tmp_path, a_journal(tmp_path)))
    events = journal_lines(tmp_path)
    assert [event["seq"] for event in events] == [1, 2, 3, 4, 5]
    assert [event["requestId"] for event in events] == [
        request_id(1_700_000_000_000 + n, 3, n) for n in range(5)
    ]
    assert {event["proxyId"] for event in events} == {"proxy-1"}
    assert seqs(tmp_path, "org-2") == [1, 2, 3]


def test_used_up_segments_go_and_a_closed_stream_leaves_nothing(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(3000))
    spool.close()
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    assert seqs(tmp_path) == list(range(1, 3001))
    assert segments(tmp_path) == []
    assert journal.state.streams == {}


def test_a_live_worker_s_segments_are_read_while_it_writes(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    part = collector(tmp_path, a_journal(tmp_path))
    for n in range(0, 2000, 100):
        write(spool, range(n, n + 100))
        part.run_pass()
    collect_all(part)
    assert seqs(tmp_path) == list(range(1, 2001))
    write(spool, range(2000, 2010))
    collect_all(part)
    assert len(seqs(tmp_path)) == 2010


def write_and_be_killed(directory: Path, count: int) -> None:
    child = os.fork()
    if child == 0:
        write(spool_writer(directory), range(count))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_what_a_dead_worker_left_is_collected_and_cleared_away(tmp_path: Path) -> None:
    write_and_be_killed(tmp_path, 777)
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    assert seqs(tmp_path) == list(range(1, 778))
    assert journal.status().lost_ends == 0
    assert segments(tmp_path) == []
    assert journal.state.streams == {}


@pytest.mark.parametrize("size", [30_011, 30_016, 20_000])
def test_a_dead_worker_s_last_segment_that_was_cut_is_told_of(tmp_path: Path, size: int) -> None:
    write_and_be_killed(tmp_path, 200)
    os.truncate(segments(tmp_path)[0], size)
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    assert 0 < len(seqs(tmp_path)) < 200
    assert journal.status().lost_ends == 1


def test_a_restart_goes_on_where_the_state_was_saved(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    for begin in range(0, 3000, 500):
        write(spool, range(begin, begin + 500))
        part = collector(tmp_path, a_journal(tmp_path))
        part.run_pass()
        part.close()
    spool.close()
    collect_all(collector(tmp_path, a_journal(tmp_path)))
    assert seqs(tmp_path) == list(range(1, 3001))


class PulledPlugError(Exception):
    """Simulated end of the process at the point that raises the exception, as if the machine lost power."""


@pytest.mark.parametrize("at", ["pwrite", "fdatasync", "unlink", "fsync"])
def test_ended_at_any_step_nothing_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    spool = spool_writer(tmp_path)
    chance = random.Random(3)
    written = 0
    for _ in range(40):
        write(spool, range(written, written + 150), f"org-{chance.randrange(2)}")
        written += 150
        part = collector(tmp_path, a_journal(tmp_path))
        calls = chance.randrange(6)
        real = getattr(os, at)

        def pulled(*arguments: object, real: object = real) -> object:
            nonlocal calls
            calls -= 1
            if calls < 0:
                raise PulledPlugError
            assert callable(real)
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, at, pulled)
            try:
                for _ in range(4):
                    part.run_pass()
            except PulledPlugError:
                pass
        part.close()
    spool.close()
    collect_all(collector(tmp_path, a_journal(tmp_path)))
    ids = []
    for org_id in ("org-0", "org-1"):
        events = journal_lines(tmp_path, org_id)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        ids += [event["requestId"] for event in events]
    assert len(ids) == len(set(ids)) == written


@pytest.mark.parametrize("failing", ["pwrite", "fdatasync", "posix_fallocate"])
def test_a_full_disk_stops_collection_and_it_resumes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(500))
    part = collector(tmp_path, a_journal(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                part.run_pass()
    assert part.stalled is not None
    collect_all(part)
    assert part.stalled is None
    assert seqs(tmp_path) == list(range(1, 501))


def test_a_deleted_segment_leaves_a_gap_of_exactly_its_records(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    counts = {"org-1": 0, "org-2": 0}
    for n in range(4000):
        org_id = "org-2" if n % 4 == 0 else "org-1"
        counts[org_id] += 1
        spool.append(org_id, payload(n, org_id))
        if spool.needs_maintenance:
            spool.maintain()
    lost = segments(tmp_path)[1]
    reader = SegmentReader(lost)
    numbers = [data for _, data in reader.records(1 << 30)]
    reader.close()
    lost.unlink()
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    missing = {"org-1": 0, "org-2": 0}
    for data in numbers:
        missing["org-2" if b'"org-2"' in data else "org-1"] += 1
    for org_id, count in counts.items():
        found = seqs(tmp_path, org_id)
        assert len(found) == count - missing[org_id]
        assert found[-1] == count
        gap = next(gap for gap in journal.state.gaps if gap.org_id == org_id)
        assert gap.last - gap.first + 1 == missing[org_id]
        assert set(range(1, count + 1)) - set(found) == set(range(gap.first, gap.last + 1))


def test_an_active_segment_deleted_under_a_live_agent_loses_nothing(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    part = collector(tmp_path, a_journal(tmp_path))
    write(spool, range(100))
    part.run_pass()
    segments(tmp_path)[0].unlink()
    write(spool, range(100, 150))
    spool.maintain()
    write(spool, range(150, 200))
    collect_all(part)
    assert seqs(tmp_path) == list(range(1, 201))


def test_an_active_segment_deleted_without_an_agent_is_a_named_gap(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(100))
    segments(tmp_path)[0].unlink()
    spool.maintain()
    write(spool, range(100, 150))
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    assert seqs(tmp_path) == list(range(101, 151))
    assert [(gap.first, gap.last) for gap in journal.state.gaps] == [(1, 100)]


@pytest.mark.parametrize("kept", [0, 40, 10_000])
def test_a_damaged_or_cut_segment_gives_what_is_whole_and_names_the_rest(tmp_path: Path, kept: int) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(4000))
    spool.close()
    victim = segments(tmp_path)[1]
    with victim.open("r+b") as file:
        file.seek(kept)
        file.write(b"\xa5" * 5000)
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    found = seqs(tmp_path)
    assert found[-1] == 4000
    missing = sum(gap.last - gap.first + 1 for gap in journal.state.gaps)
    assert missing == 4000 - len(found)
    assert 5 < missing < 1700
    times = {event["requestId"] for event in journal_lines(tmp_path)}
    assert len(times) == len(found)


def test_a_segment_cut_below_what_was_read_costs_no_more_than_the_cut(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(700))
    journal = a_journal(tmp_path)
    part = collector(tmp_path, journal)
    collect_all(part)
    write(spool, range(700, 4000))
    os.truncate(segments(tmp_path)[0], 100_000)
    collect_all(part)
    spool.close()
    collect_all(part)
    found = seqs(tmp_path)
    assert (found[:700], found[-1]) == (list(range(1, 701)), 4000)
    (gap,) = journal.state.gaps
    assert gap.first == 701
    assert gap.last - gap.first + 1 == 4000 - len(found)


@pytest.mark.parametrize("bit", [32, 33, 63])
def test_a_flipped_bit_in_a_number_costs_one_event(tmp_path: Path, bit: int) -> None:
    """The checksum of a record covers the lower half of the record's sequence number."""
    spool = spool_writer(tmp_path)
    write(spool, range(200))
    path = segments(tmp_path)[0]
    content = bytearray(path.read_bytes())
    header = header_of(path)
    assert header is not None
    at = header.data_offset
    for _ in range(50):
        at = (at + FRAME_HEADER + struct.unpack_from("<I", content, at)[0] + 7) & ~7
    content[at + 8 + bit // 8] ^= 1 << bit % 8
    with path.open("r+b") as file:
        file.write(content)
    journal = a_journal(tmp_path)
    part = collector(tmp_path, journal)
    collect_all(part)
    spool.close()
    collect_all(part)
    assert len(journal_lines(tmp_path)) == 199
    assert journal.status().missing == 1
    assert journal.next_seq("org-1") == 201


def test_a_deleted_directory_of_journals_is_made_again(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(10))
    journal = a_journal(tmp_path)
    part = collector(tmp_path, journal)
    collect_all(part)
    shutil.rmtree(tmp_path / "journal")
    write(spool, range(10, 20))
    journal.verify_files()
    collect_all(part)
    assert seqs(tmp_path) == list(range(11, 21))
    assert [(gap.first, gap.last) for gap in journal.state.gaps] == [(1, 10)]


def test_a_record_of_another_program_is_a_named_gap(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(3))
    spool.append("org-1", b'["?"]')
    write(spool, range(3, 5))
    spool.close()
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    assert len(seqs(tmp_path)) == 5
    assert journal.status().missing == 1
    assert journal.state.organisations["org-1"].next_seq == 7


def test_an_organisation_may_be_called_anything(tmp_path: Path) -> None:
    org_id = 'a "quoted" \\ name\n, schön'
    spool = spool_writer(tmp_path)
    write(spool, range(3000), org_id)
    spool.close()
    assert len(segments(tmp_path)) > 1
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    assert journal.state.organisations[org_id].next_seq == 3001
    assert journal.status().missing == 0
    batch = journal.plan(org_id, max_events=1, max_bytes=MIB)
    assert batch is not None
    body = journal.body(org_id, batch)
    assert body is not None
    assert json.loads(body)["events"][0]["orgId"] == org_id


def test_numbers_stay_free_of_gaps_across_rotated_journal_files(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(3000))
    journal = a_journal(tmp_path, max_bytes=4 * MIB)
    collect_all(collector(tmp_path, journal))
    files = sorted((tmp_path / "journal" / "org-1").iterdir(), key=lambda path: int(path.stem))
    assert len(files) > 5
    assert seqs(tmp_path) == list(range(1, 3001))
    for path in files:
        assert f'"seq":{path.stem},'.encode() in path.read_bytes().split(b"\n")[0]


def test_the_budget_holds_and_the_spool_waits(tmp_path: Path) -> None:
    limit = 4 * MIB
    journal = a_journal(tmp_path, max_bytes=limit)
    part = collector(tmp_path, journal, max_bytes=limit)
    spool = spool_writer(tmp_path)
    spool._max_bytes = limit
    written = 0
    while True:
        spool.maintain()
        if not spool.ready:
            break
        write(spool, range(written, written + 50))
        written += 50
        part.run_pass()
    used = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert used <= limit
    collect_all(part)
    collected = len(seqs(tmp_path))
    while (batch := journal.plan("org-1", max_events=500, max_bytes=MIB)) is not None:
        journal.done("org-1", batch)
        part.run_pass()
    collect_all(part)
    assert journal.state.organisations["org-1"].next_seq == written + 1 > collected
    spool.maintain()
    assert spool.ready


def test_drop_oldest_names_what_it_dropped(tmp_path: Path) -> None:
    limit = 4 * MIB
    journal = a_journal(tmp_path, max_bytes=limit)
    part = collector(tmp_path, journal, max_bytes=limit, when_full="drop-oldest")
    spool = spool_writer(tmp_path)
    spool._max_bytes, spool._when_full = limit, "drop-oldest"
    for begin in range(0, 20_000, 50):
        assert spool.ready
        write(spool, range(begin, begin + 50))
        spool.maintain()
        part.run_pass()
    spool.close()
    collect_all(part, passes=300)
    kept = seqs(tmp_path)
    assert kept[-1] == 20_000
    assert kept == list(range(kept[0], 20_001))
    assert journal.state.dropped == 20_000 - len(kept) - spool.dropped
    assert journal.state.missing == 20_000 - len(kept)


def test_drop_oldest_goes_on_after_a_time_without_an_agent(tmp_path: Path) -> None:
    """The records of the workers fill all the disk space that the workers may use."""
    limit = 16 * MIB
    spool = spool_writer(tmp_path)
    spool._max_bytes, spool._when_full = limit, "drop-oldest"
    written = 0
    while not spool.dropped:
        write(spool, range(written, written + 50), path="/v1.0/" + "x" * 2000)
        written += 50
    journal = a_journal(tmp_path, max_bytes=limit)
    part = collector(tmp_path, journal, max_bytes=limit, when_full="drop-oldest")
    collect_all(part, passes=300)
    assert part.stalled is None
    spool.close()
    collect_all(part, passes=300)
    kept = seqs(tmp_path)
    assert kept == list(range(kept[0], written + 1))
    assert journal.status().dropped == written - len(kept) - spool.dropped
    assert used_bytes(tmp_path) <= limit


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("when_full", ["refuse", "drop-oldest"])
def test_the_least_budget_has_room_for_what_every_worker_holds_and_more(
    tmp_path: Path, workers: int, when_full: str
) -> None:
    given = {
        "Agent__ApiKey": "key",
        "Agent__HmacSecret": "secret",
        "RuleSync__SaasBaseUrl": "https://control.example",
        "Credentials__Provider": "static",
        "Credentials__AccessToken": "token",
        "Proxy__Workers": str(workers),
        "Audit__MaxDiskBytes": str(16 * MIB),
    }
    (tmp_path / "proxy.toml").touch()
    settings = load(tmp_path / "proxy.toml", given)
    retention, most, size = tmp_path / "audit", settings.audit.max_disk_bytes, settings.segment_bytes
    part = collector(
        retention,
        a_journal(retention, max_bytes=most),
        max_bytes=most,
        when_full=when_full,
        workers_room=2 * size * workers,
    )
    spools = [spool_writer(retention, segment_bytes=size, prefix=number) for number in range(workers)]
    for spool in spools:
        spool._max_bytes = most
    for begin in range(0, 4000, 100):
        spool = spools[begin // 100 % workers]
        spool.maintain()
        assert spool.ready
        write(spool, range(begin, begin + 100))
        part.run_pass()
    collect_all(part)
    assert part.stalled is None
    assert len(seqs(retention)) == 4000


def test_drop_oldest_drops_nothing_where_that_makes_no_room(tmp_path: Path) -> None:
    """Another file, such as a core dump, is larger than the whole disk budget for audit events."""
    limit = 16 * MIB
    journal = a_journal(tmp_path, max_bytes=limit)
    part = collector(tmp_path, journal, max_bytes=limit, when_full="drop-oldest")
    spool = spool_writer(tmp_path)
    write(spool, range(3000))
    collect_all(part)
    foreign = tmp_path / "core.1234"
    foreign.touch()
    os.truncate(foreign, limit)
    for begin in (3000, 3010):  # the first events fit into the room that was measured before
        write(spool, range(begin, begin + 10))
        collect_all(part)
    assert part.stalled is not None
    assert (journal.pending(), journal.status().dropped) == ({"org-1": 3010}, 0)
    foreign.unlink()
    collect_all(part)
    assert part.stalled is None
    assert seqs(tmp_path) == list(range(1, 3021))


@pytest.mark.parametrize("slot", ["state.0", "state.1"])
def test_a_flipped_bit_in_a_state_slot_is_no_later_release(tmp_path: Path, slot: str) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(300))
    collect_all(collector(tmp_path, a_journal(tmp_path)))
    whole = (tmp_path / slot).read_bytes()
    form = len(b"graphward-audit-state ")
    for bit in range(8 * (form + 2)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / slot).write_bytes(flipped)
        assert StateFile(tmp_path).load() is not None
    (tmp_path / slot).write_bytes(whole.replace(b" 1 ", b" 3 ", 1))
    write(spool, range(300, 600))
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    assert seqs(tmp_path) == list(range(1, 601))
    assert journal.status().missing == 0


@pytest.mark.parametrize("slot", ["state.0", "state.1"])
def test_a_state_slot_that_was_half_written_falls_back_to_the_other(tmp_path: Path, slot: str) -> None:
    spool = spool_writer(tmp_path)
    for begin in range(0, 500, 50):
        write(spool, range(begin, begin + 50))
        part = collector(tmp_path, a_journal(tmp_path))
        part.run_pass()
        part.close()
    content = (tmp_path / slot).read_bytes()
    (tmp_path / slot).write_bytes(content[:300] + bytes(len(content) - 300))
    collect_all(collector(tmp_path, a_journal(tmp_path)))
    assert seqs(tmp_path) == list(range(1, 501))


@pytest.mark.parametrize("live", [True, False], ids=["under a live worker", "behind a dead one"])
def test_a_state_that_goes_bad_after_its_segments_went_loses_and_doubles_nothing(
    tmp_path: Path, live: bool
) -> None:
    """The agent saves its state in two slots in turn, and the slot with the newer state is damaged.

    The spool still has the events that the state in the older slot does not cover.
    """
    spool = spool_writer(tmp_path)
    recorded = spoilt = 0
    for at in range(40):
        write(spool, range(recorded, recorded + 700))
        recorded += 700
        if at == 39 and not live:
            spool.close()
        journal = a_journal(tmp_path)
        part = collector(tmp_path, journal)
        for _ in range(1 + at % 3):
            part.run_pass()
        part.close()
        slots = [(tmp_path / name).read_bytes() for name in ("state.0", "state.1")]
        ages = [int(slot.split(b" ")[2]) if slot.startswith(b"graphward") else 0 for slot in slots]
        if min(ages) > 0:  # otherwise one of them is damaged already
            (tmp_path / f"state.{ages.index(max(ages))}").write_bytes(b"\xff" * 65536)
            spoilt += 1
    assert spoilt > 10
    collect_all(collector(tmp_path, a_journal(tmp_path)))
    assert seqs(tmp_path) == list(range(1, recorded + 1))
    assert len({event["id"] for event in journal_lines(tmp_path)}) == recorded
    assert a_journal(tmp_path).state.missing == 0


@pytest.mark.parametrize(
    "lost", [b"graphward-audit-state 1 garbage", b"", None], ids=["bad", "empty", "gone"]
)
def test_with_both_slots_lost_numbers_go_on_behind_the_journals(tmp_path: Path, lost: bytes | None) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(100))
    spool.close()
    collect_all(collector(tmp_path, a_journal(tmp_path)))
    for slot in ("state.0", "state.1"):
        (tmp_path / slot).unlink() if lost is None else (tmp_path / slot).write_bytes(lost)
    again = spool_writer(tmp_path)
    write(again, range(100, 150))
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    assert seqs(tmp_path) == list(range(1, 151))
    assert journal.state.organisations["org-1"].pending == 150


@pytest.mark.parametrize("org_id", ["../../etc", "a/b", ".", "", "x" * 300, "né", "org 1"])
def test_no_organisation_id_leads_out_of_the_directory(tmp_path: Path, org_id: str) -> None:
    retention = tmp_path / "audit"
    spool = spool_writer(retention)
    write(spool, range(3), org_id)
    journal = a_journal(retention)
    collect_all(collector(retention, journal))
    assert journal.pending() == {org_id: 3}
    batch = journal.plan(org_id, max_events=10, max_bytes=MIB)
    assert batch is not None
    body = journal.body(org_id, batch)
    assert body is not None
    assert body.count(b'"seq"') == 3
    assert [path.name for path in tmp_path.iterdir()] == ["audit"]


def test_a_deleted_journal_file_is_noticed_and_its_numbers_are_named(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(3000))
    journal = a_journal(tmp_path, max_bytes=4 * MIB)
    part = collector(tmp_path, journal)
    collect_all(part)
    files = sorted((tmp_path / "journal" / "org-1").iterdir(), key=lambda path: int(path.stem))
    first, following = int(files[1].stem), int(files[2].stem)
    files[1].unlink()
    files[-1].unlink()
    journal.verify_files()
    status = journal.status()
    assert (status.gaps[0].first, status.gaps[0].last) == (first, following - 1)
    assert (status.gaps[1].first, status.gaps[1].last) == (int(files[-1].stem), 3000)
    assert status.pending == 3000 - status.missing
    write(spool, range(3000, 3100))
    collect_all(part)
    assert seqs(tmp_path)[-100:] == list(range(3001, 3101))


def test_a_journal_deleted_under_a_writing_agent_is_a_gap_and_no_more(tmp_path: Path) -> None:
    spool = spool_writer(tmp_path)
    journal = a_journal(tmp_path)
    part = collector(tmp_path, journal)
    write(spool, range(100))
    part.run_pass()
    for path in (tmp_path / "journal" / "org-1").iterdir():
        path.unlink()
    write(spool, range(100, 200))
    with pytest.raises(OSError, match="deleted or cut"):
        part.run_pass()
    collect_all(part)
    assert seqs(tmp_path) == list(range(101, 201))
    assert [(gap.first, gap.last) for gap in journal.state.gaps] == [(1, 100)]


@pytest.mark.parametrize("length", [0, 1, 700, 5000])
def test_a_cut_journal_keeps_its_whole_lines(tmp_path: Path, length: int) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(100))
    journal = a_journal(tmp_path)
    part = collector(tmp_path, journal)
    collect_all(part)
    path = tmp_path / "journal" / "org-1" / "1.ndjson"
    os.truncate(path, length)
    journal.verify_files()
    left = journal.pending().get("org-1", 0)
    assert journal.state.missing == 100 - left
    write(spool, range(100, 120))
    collect_all(part)
    assert seqs(tmp_path) == [*range(1, left + 1), *range(101, 121)]


@pytest.mark.parametrize("part", [rb".+", rb'(?<="time":")2'], ids=["all of it", "its time, no longer UTF-8"])
@pytest.mark.parametrize("at", [0, 10])
def test_a_damaged_journal_line_is_passed_over_and_named(tmp_path: Path, part: bytes, at: int) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(30))
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    path = tmp_path / "journal" / "org-1" / "1.ndjson"
    lines = path.read_bytes().split(b"\n")
    damaged, count = re.subn(part, lambda found: b"\xb2" * len(found[0]), lines[at])
    assert count == 1
    path.write_bytes(b"\n".join([*lines[:at], damaged, *lines[at + 1 :]]))
    assert journal.status().pending == 30
    sent: list[int] = []
    while (batch := journal.plan("org-1", max_events=500, max_bytes=MIB)) is not None:
        sent.extend(range(batch.first_seq, batch.last_seq + 1))
        journal.done("org-1", batch)
    assert sent == [seq for seq in range(1, 31) if seq != at + 1]
    assert [(gap.first, gap.last) for gap in journal.state.gaps] == [(at + 1, at + 1)]
    assert journal.pending() == {}


@pytest.mark.parametrize(
    ("blocks", "lost"),
    [([(2, 2)], 1), ([(3, 7), (12, 12)], 2), ([(0, 4)], 1), ([(20, 29)], 1), ([(0, 29)], 1)],
    ids=["amid", "twice", "at the beginning", "at the end", "all of it"],
)
def test_every_number_of_a_journal_that_a_bad_block_took_is_named(
    tmp_path: Path, blocks: list[tuple[int, int]], lost: int
) -> None:
    """The agent reports exactly the events that are lost in a damaged journal file.

    This is promise 32 of docs/explain/reliability.md. If a disk block is damaged and reads as zeros, the
    block contains no newline between events.
    """
    spool = spool_writer(tmp_path)
    write(spool, range(10))
    journal = a_journal(tmp_path)
    collect_all(collector(tmp_path, journal))
    journal.skip("org-1", 5, "a segment was lost")
    write(spool, range(10, 30))
    collect_all(collector(tmp_path, journal))
    written = seqs(tmp_path)
    assert written == [*range(1, 11), *range(16, 36)]
    path = tmp_path / "journal" / "org-1" / "1.ndjson"
    lines = path.read_bytes().splitlines(keepends=True)
    for first, last in blocks:
        for at in range(first, last):
            lines[at] = bytes(len(lines[at]))
        lines[last] = bytes(100) + lines[last][100:]
    path.write_bytes(b"".join(lines))
    sent: list[int] = []
    while (batch := journal.plan("org-1", max_events=500, max_bytes=MIB)) is not None:
        sent.extend(event["seq"] for event in json.loads(journal.body("org-1", batch) or b"")["events"])
        journal.done("org-1", batch)
    gone = [seq for seq in written if seq not in sent]
    assert gone == [written[at] for first, last in blocks for at in range(first, last + 1)]
    status = journal.status()
    assert status.missing == 5 + len(gone)
    named = {seq for gap in status.gaps for seq in range(gap.first, gap.last + 1)}
    assert named == {*range(11, 16), *gone}
    assert len(status.gaps) == 1 + lost
    assert journal.pending() == {}


def test_a_bad_sector_amid_a_segment_holds_up_no_other_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = spool_writer(tmp_path)
    write(bad, range(5), "org-1")
    part = collector(tmp_path, a_journal(tmp_path))
    part.run_pass()
    path = segments(tmp_path)[0]
    records = SegmentReader.records

    def read(self: SegmentReader, limit: int) -> list[tuple[int, bytes]]:
        if self.path == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return records(self, limit)

    with monkeypatch.context() as patched:
        patched.setattr(SegmentReader, "records", read)
        write(bad, range(5, 8), "org-1")
        write(spool_writer(tmp_path), range(3), "org-2")
        for _ in range(3):
            part.run_pass()
        assert (seqs(tmp_path, "org-1"), seqs(tmp_path, "org-2")) == ([1, 2, 3, 4, 5], [1, 2, 3])
        assert part.stalled == f"{path} can't be read: Input/output error"
    part.run_pass()
    assert part.stalled is None
    assert seqs(tmp_path, "org-1") == list(range(1, 9))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["a directory", "a FIFO"])
def test_what_can_not_be_read_holds_up_no_other_stream(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    spool = spool_writer(tmp_path)
    write(spool, range(5))
    own = segments(tmp_path)[0]
    strange = own.with_name(f"{'0' * 32}-{own.name.partition('-')[2]}")
    make(strange)
    part = collector(tmp_path, a_journal(tmp_path))
    for _ in range(3):
        part.run_pass()
    assert seqs(tmp_path) == [1, 2, 3, 4, 5]
    assert part.stalled is not None
    assert f"{strange} can't be read" in part.stalled
    assert [record.message for record in caplog.records] == [part.stalled]
    strange.rmdir() if strange.is_dir() else strange.unlink()
    write(spool, range(5, 8))
    part.run_pass()
    assert seqs(tmp_path) == list(range(1, 9))
    assert part.stalled is None
