"""Tests that no acknowledged record is lost after a killed writer, a damaged file or a full disk."""

import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from proxy.audit import record as records
from proxy.audit.payload import encode
from proxy.audit.segment import (
    FRAME_HEADER,
    MAX_FRAME,
    MAX_RECORD,
    DamagedSegmentError,
    Reached,
    SegmentReader,
    parse_name,
)
from proxy.audit.spool import (
    MIN_SEGMENT_BYTES,
    SILENT_SECONDS,
    SpoolFull,
    SpoolWriter,
    budget_lock,
    spool_directory,
    used_bytes,
)
from tests.fakes.lifeline import end_with_parent

ORG = "0193a1b2-0000-7000-8000-000000000001"
OTHER = "0193a1b2-0000-7000-8000-000000000002"


def payload(n: int, org: str = ORG, extra: str = "x" * 300) -> bytes:
    return json.dumps([n, 1_700_000_000_000 + n, org, extra]).encode()


def writer(directory: Path, **changes: object) -> SpoolWriter:
    options: dict[str, object] = {
        "segment_bytes": MIN_SEGMENT_BYTES,
        "max_bytes": 64 * MIN_SEGMENT_BYTES,
        "when_full": "refuse",
        "id_prefix": 5,
    }
    spool = SpoolWriter(directory, **(options | changes))  # type: ignore[arg-type]
    spool.maintain()
    return spool


def segments(directory: Path) -> list[Path]:
    return sorted(spool_directory(directory).glob("*.seg"))


def read_all(directory: Path) -> list[bytes]:
    """Return every record in the spool directory in the reader's order, one stream after another."""
    found: list[bytes] = []
    for path in segments(directory):
        reader = SegmentReader(path)
        if reader.header is not None:
            found += [data for _, data in reader.records(1 << 30)]
        reader.close()
    return found


def reached(reader: SegmentReader) -> Reached:
    return reader.reached


def fill(spool: SpoolWriter, count: int, first: int = 0) -> list[bytes]:
    written = [payload(n, OTHER if n % 3 == 0 else ORG) for n in range(first, first + count)]
    for each in written:
        spool.append(json.loads(each)[2], each)
        if spool.needs_maintenance:
            spool.maintain()
    return written


def test_records_come_back_in_order_across_rotations(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    written = fill(spool, 1000)
    assert len(segments(tmp_path)) > 4
    assert read_all(tmp_path) == written
    spool.close()
    assert read_all(tmp_path) == written


def test_each_header_tells_what_came_before_per_organisation(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    fill(spool, 1000)
    spool.close()
    counts: dict[str, int] = {}
    ordinal = 0
    for path in segments(tmp_path):
        reader = SegmentReader(path)
        assert reader.header is not None
        assert reader.header.counts == counts
        assert reader.header.first_ordinal == ordinal
        assert reader.header.id_prefix == 5
        for _, data in reader.records(1 << 30):
            org = json.loads(data)[2]
            counts[org] = counts.get(org, 0) + 1
            ordinal += 1
        reader.close()
    assert sum(counts.values()) == 1000


def test_a_live_reader_waits_and_goes_on(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    spool.append(ORG, payload(1))
    reader = SegmentReader(segments(tmp_path)[0])
    assert [data for _, data in reader.records(1 << 20)] == [payload(1)]
    assert reached(reader) is Reached.WAITING
    assert not reader.writer_is_gone()
    spool.append(ORG, payload(2))
    assert [data for _, data in reader.records(1 << 20)] == [payload(2)]
    spool.close()
    assert list(reader.records(1 << 20)) == []
    assert reached(reader) is Reached.CLOSED
    assert reader.writer_is_gone()


def test_a_reader_beside_a_writer_sees_every_record_whole_and_once(tmp_path: Path) -> None:
    spool = writer(tmp_path, segment_bytes=1 << 22, max_bytes=1 << 26)
    spool.append(ORG, payload(0))
    count = 8000
    reader = SegmentReader(segments(tmp_path)[0])

    def write() -> None:
        for n in range(1, count):
            spool.append(ORG, payload(n))

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[bytes] = []
    while len(seen) < count:
        alive = thread.is_alive()
        before = len(seen)
        seen += [data for _, data in reader.records(64 * 1024)]
        assert alive or len(seen) > before
    thread.join()
    assert seen == [payload(n) for n in range(count)]


WRITE_AND_ACKNOWLEDGE = """
import json, os, sys
from pathlib import Path
from proxy.audit.spool import SpoolWriter, MIN_SEGMENT_BYTES
spool = SpoolWriter(Path(sys.argv[1]), segment_bytes=MIN_SEGMENT_BYTES, max_bytes=1 << 30, when_full="refuse",
                    id_prefix=1)
n = 0
while True:
    spool.append("org", json.dumps([n, 1, "org", "x" * (n * 37 % 900)]).encode())
    os.write(1, b"%d\\n" % n)
    n += 1
    if spool.needs_maintenance:
        spool.maintain()
"""


@pytest.mark.process
def test_sigkill_at_any_instant_loses_no_acknowledged_record(tmp_path: Path) -> None:
    chance = random.Random(7)
    for attempt in range(25):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        child = subprocess.Popen(
            [sys.executable, "-c", WRITE_AND_ACKNOWLEDGE, str(directory)],
            stdout=subprocess.PIPE,
            preexec_fn=end_with_parent,
        )
        assert child.stdout is not None
        target = chance.randrange(1, 3000)
        acknowledged = -1
        while acknowledged < target:
            acknowledged = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split(b"\n")
        child.stdout.close()
        child.wait()
        acknowledged = max([acknowledged, *(int(line) for line in rest[:-1] if line)])
        numbers = [json.loads(data)[0] for data in read_all(directory)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > acknowledged
        assert all(SegmentReader(path).writer_is_gone() for path in segments(directory))


def test_what_a_kill_in_the_middle_of_a_copy_leaves_is_not_read(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    spool.append(ORG, payload(1))
    path = segments(tmp_path)[0]
    reader = SegmentReader(path)
    list(reader.records(1 << 20))
    with path.open("r+b") as file:  # checksum, ordinal and half a payload are written, the length is not
        file.seek(reader.offset + 4)
        file.write(b"\xaa" * 12 + payload(2)[:100])
    assert list(reader.records(1 << 20)) == []
    assert reached(reader) is Reached.WAITING


@pytest.mark.parametrize("at", [0, 4, 8, FRAME_HEADER, FRAME_HEADER + 50])
def test_a_damaged_record_is_skipped_and_only_it(tmp_path: Path, at: int) -> None:
    spool = writer(tmp_path)
    written = fill(spool, 50)
    spool.close()
    path = segments(tmp_path)[0]
    place = path.read_bytes().index(written[10]) - FRAME_HEADER
    with path.open("r+b") as file:
        file.seek(place + at)
        byte = file.read(1)
        file.seek(place + at)
        file.write(bytes([byte[0] ^ 0x5A]))
    reader = SegmentReader(path)
    before = [data for _, data in reader.records(1 << 20)]
    assert before == written[:10]
    assert reached(reader) is Reached.UNREADABLE
    assert reader.skip_damage()
    after = list(reader.records(1 << 20))
    assert [data for _, data in after] == written[11:]
    assert after[0][0] == 11
    assert reached(reader) is Reached.CLOSED


def test_a_zeroed_stretch_is_skipped(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    written = fill(spool, 50)
    spool.close()
    path = segments(tmp_path)[0]
    size = len(written[0]) + FRAME_HEADER
    with path.open("r+b") as file:
        file.seek(512)
        file.write(bytes(10 * size))
    reader = SegmentReader(path)
    first = [data for _, data in reader.records(1 << 20)]
    assert reader.skip_damage()
    second = [data for _, data in reader.records(1 << 20)]
    assert first == written[: len(first)]
    assert second == written[-len(second) :]
    assert 50 - 12 <= len(first) + len(second) < 50


def test_every_flipped_bit_of_a_header_is_noticed(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    fill(spool, 600)
    spool.close()
    path = segments(tmp_path)[1]
    whole = path.read_bytes()
    good = SegmentReader(path)
    assert good.header is not None
    for at in range(good.header.data_offset - 8):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if at == 12:  # a change from "in use" to "not yet": detected by the ordinal of the next segment
            assert SegmentReader(path).header is None
            continue
        with pytest.raises(DamagedSegmentError):
            SegmentReader(path)


def test_a_truncated_segment_gives_its_whole_records(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    written = fill(spool, 50)
    spool.close()
    path = segments(tmp_path)[0]
    for size in range(200, 6000, 61):
        os.truncate(path, size)
        path_records = read_all(tmp_path)
        assert path_records == written[: len(path_records)]
        spool_bytes = path.stat().st_size
        assert spool_bytes == size
        path.write_bytes(path.read_bytes())


def test_not_ready_when_the_budget_is_used_and_ready_again_by_itself(tmp_path: Path) -> None:
    spool = writer(tmp_path, max_bytes=8 * MIN_SEGMENT_BYTES)
    count = 0
    while True:
        spool.maintain()
        if not spool.ready:
            break
        spool.append(ORG, payload(count))
        count += 1
    assert spool.problem is not None
    assert "MaxDiskBytes" in spool.problem
    assert used_bytes(tmp_path) <= 8 * MIN_SEGMENT_BYTES
    assert [json.loads(data)[0] for data in read_all(tmp_path)] == list(range(count))
    segments(tmp_path)[0].unlink()  # the agent has delivered it
    spool.maintain()
    assert spool.ready
    assert spool.problem is None


def test_room_for_requests_in_flight_holds_when_the_disk_is_full(tmp_path: Path) -> None:
    in_flight = 20
    largest = payload(1, extra="y" * (MAX_RECORD - 70))
    assert len(largest) <= MAX_RECORD
    spool = writer(tmp_path, max_bytes=16 * MIN_SEGMENT_BYTES)
    spool.reserve(in_flight * MAX_FRAME)
    while True:
        spool.maintain()
        if not spool.ready:
            break
        spool.append(ORG, payload(1))
    for left in range(in_flight, 0, -1):
        spool.append(ORG, largest)
        spool.reserve((left - 1) * MAX_FRAME)


def test_more_requests_than_were_prepared_for_may_end_at_once(tmp_path: Path) -> None:
    """The spool writer stores all records if the disk has room, even if no next segment is prepared."""
    largest = payload(1, extra="y" * (MAX_RECORD - 70))
    spool = writer(tmp_path, max_bytes=4096 * MIN_SEGMENT_BYTES)
    spool.reserve(500 * MAX_FRAME)
    assert spool.ready
    for _ in range(500):
        spool.append(ORG, largest)
    assert len(read_all(tmp_path)) == 500


def test_requests_begin_only_while_those_under_way_have_room(tmp_path: Path) -> None:
    spool = writer(tmp_path, max_bytes=16 * MIN_SEGMENT_BYTES)
    spool.reserve(20 * MAX_FRAME)
    spool.maintain()
    assert spool.ready
    spool.reserve(500 * MAX_FRAME)
    spool.maintain()
    assert not spool.ready


def test_append_without_room_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    spool = writer(tmp_path, max_bytes=4 * MIN_SEGMENT_BYTES)
    written: list[bytes] = []

    def append_for_ever() -> None:
        while True:
            spool.append(ORG, payload(len(written)))
            written.append(payload(len(written)))

    with pytest.raises(SpoolFull):
        append_for_ever()
    assert read_all(tmp_path) == written


def test_batches_that_were_set_aside_count(tmp_path: Path) -> None:
    for folder in ("rejected", "resend"):
        (tmp_path / folder).mkdir()
        large = tmp_path / folder / "large.json"
        large.touch()
        os.truncate(large, 64 * MIN_SEGMENT_BYTES)
        spool = writer(tmp_path)
        assert not spool.ready
        assert spool.problem is not None
        assert "MaxDiskBytes" in spool.problem
        large.unlink()
        while not spool.ready:
            spool.maintain()
        spool.close()


def test_many_batches_that_were_set_aside_cost_little(tmp_path: Path) -> None:
    rejected = tmp_path / "rejected"
    rejected.mkdir()
    for number in range(5000):
        (rejected / f"{number}.json").touch()
    began = time.thread_time()
    used_bytes(tmp_path)
    walked = time.thread_time()
    spool = writer(tmp_path)
    for _ in range(100):
        spool.maintain()
    assert time.thread_time() - walked < 10 * (walked - began)


@contextlib.contextmanager
def silent_disk(spool: SpoolWriter, directory: Path) -> Iterator[None]:
    """Block a thread that calls `maintain` for a new segment of the spool, as a slow disk does."""
    spool.reserve(500 * MAX_FRAME)
    waiting = threading.Thread(target=spool.maintain)
    with budget_lock(directory):
        waiting.start()
        while not spool._maintaining.locked():
            time.sleep(0)
        yield
    waiting.join()
    spool.reserve(0)


def test_a_disk_that_does_not_response_leaves_the_room_that_is_prepared(tmp_path: Path) -> None:
    spool = writer(tmp_path, max_bytes=4096 * MIN_SEGMENT_BYTES)
    written: list[bytes] = []
    with silent_disk(spool, tmp_path):
        assert spool.ready
        spool.note_silence()
        assert not spool.ready
        assert spool.problem is not None
        spool.reserve(0)
        while spool.promise(MAX_FRAME):
            written.append(payload(len(written)))
            spool.append(ORG, written[-1])
            spool.reserve(0)
        assert len(written) > 100
    spool.maintain()
    assert spool.ready
    assert spool.problem is None
    written += fill(spool, 1000)
    assert read_all(tmp_path) == written


def test_a_disk_that_does_not_response_is_waited_for_once(tmp_path: Path) -> None:
    spool = writer(tmp_path, max_bytes=4096 * MIN_SEGMENT_BYTES)
    with silent_disk(spool, tmp_path):
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(SpoolFull):
                fill_without_maintenance(spool)
        assert not spool.ready
        assert time.monotonic() - began < 2 * SILENT_SECONDS
    spool.maintain()
    assert spool.ready


def fill_without_maintenance(spool: SpoolWriter) -> None:
    while True:
        spool.append(ORG, payload(1))


def test_two_workers_never_take_the_same_room(tmp_path: Path) -> None:
    limit = 10 * MIN_SEGMENT_BYTES
    spools = [writer(tmp_path, max_bytes=limit) for _ in range(3)]

    def use(spool: SpoolWriter) -> None:
        while True:
            spool.maintain()
            if not spool.ready:
                return
            spool.append(ORG, payload(1))

    threads = [threading.Thread(target=use, args=(spool,)) for spool in spools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert used_bytes(tmp_path) <= limit


def test_drop_oldest_goes_on_and_counts_what_it_dropped(tmp_path: Path) -> None:
    spool = writer(tmp_path, max_bytes=8 * MIN_SEGMENT_BYTES, when_full="drop-oldest")
    for n in range(5000):
        assert spool.ready
        spool.append(ORG, payload(n))
        spool.maintain()
    kept = [json.loads(data)[0] for data in read_all(tmp_path)]
    assert kept[-1] == 4999
    assert spool.dropped == 5000 - len(kept)
    assert kept == list(range(5000 - len(kept), 5000))
    assert used_bytes(tmp_path) <= 8 * MIN_SEGMENT_BYTES


def test_drop_oldest_drops_nothing_where_that_makes_no_room(tmp_path: Path) -> None:
    """Test of a disk that another program's file fills, such as a large core dump."""
    limit = 16 * MIN_SEGMENT_BYTES
    spool = writer(tmp_path, max_bytes=limit, when_full="drop-oldest")
    written = fill(spool, 2000)
    foreign = tmp_path / "core.1234"
    foreign.touch()
    os.truncate(foreign, limit)

    def append_for_ever() -> None:
        while True:
            spool.append(ORG, payload(len(written)))
            spool.maintain()
            written.append(payload(len(written)))

    with pytest.raises(SpoolFull):
        append_for_ever()
    assert spool.dropped == 0
    assert read_all(tmp_path) == written
    foreign.unlink()
    spool.maintain()
    spool.append(ORG, payload(len(written)))


def test_a_deleted_file_is_left_for_a_new_one_that_tells_what_is_missing(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    fill(spool, 20)
    segments(tmp_path)[0].unlink()
    spool.maintain()
    spool.append(ORG, payload(20))
    used = [header for path in segments(tmp_path) if (header := SegmentReader(path).header) is not None]
    assert [header.first_ordinal for header in used] == [20]
    assert used[0].counts == {OTHER: 7, ORG: 13}


def test_a_deleted_directory_comes_back(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    fill(spool, 5)
    for path in spool_directory(tmp_path).iterdir():
        path.unlink()
    spool_directory(tmp_path).rmdir()
    spool.maintain()
    spool.append(ORG, payload(5))
    assert read_all(tmp_path) == [payload(5)]


def test_files_are_private_and_preallocated(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    spool.append(ORG, payload(1))
    for path in segments(tmp_path):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.stat().st_blocks * 512 >= MIN_SEGMENT_BYTES
        assert parse_name(path.name) is not None
    assert spool_directory(tmp_path).stat().st_mode & 0o777 == 0o700


def test_close_leaves_no_unused_segment(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    spool.close()
    assert segments(tmp_path) == []


def test_so_many_organisations_that_their_counts_have_no_room(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    for n in range(2000):
        spool.append(f"org-{n:04d}", payload(n, org=f"org-{n:04d}"))
        if spool.needs_maintenance:
            spool.maintain()
    assert len(read_all(tmp_path)) == 2000


def a_record(**changes: object) -> records.Record:
    plain = records.Record(
        7, 1_700_000_000_123, ORG, "app", "client", "192.0.2.1", None, "GET", "/v1.0/users", "$top=1", 200,
        "filter", "r1", ("log-a",), ("strip:mail",), 200, 1500, 1200, 0, 42, (6, 1_700_000_000_100),
        "rule", 3, "up-1",
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def a_line(payload: bytes, id_prefix: int, seq: int, proxy_id: str | None) -> bytes:
    return records.lines_of([records.event_of(records.decode(payload), id_prefix, seq, proxy_id)])


def test_a_record_becomes_the_event_of_the_contract() -> None:
    line = a_line(encode(a_record()), 9, 12, "proxy-1")
    own = records.request_id(1_700_000_000_123, 9, 7)
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "id": own, "time": "2023-11-14T22:13:20.123Z", "orgId": ORG, "proxyId": "proxy-1", "appId": "app",
        "clientId": "client", "clientIp": "192.0.2.1", "requestId": own, "clientRequestId": None,
        "method": "GET", "path": "/v1.0/users", "query": "$top=1", "status": 200, "verdict": "filter",
        "ruleId": "r1", "loggedRuleIds": ["log-a"], "transforms": ["strip:mail"], "upstreamStatus": 200,
        "durationMs": 1.5, "upstreamMs": 1.2, "requestBytes": 0, "responseBytes": 42,
        "parentRequestId": records.request_id(1_700_000_000_100, 9, 6), "seq": 12, "reason": "rule",
        "rulesetVersion": 3, "upstreamRequestId": "up-1", "traceId": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("several", "deciding", "rule_ids"),
    [
        ((), "r1", ["r1"]),
        (("r0", "r1"), "r1", ["r0", "r1"]),
        ((), None, []),
        (None, "r1", None),  # a record of a release that stored only the deciding rule
    ],
)
def test_an_event_names_every_rule_that_took_part(
    several: tuple[str, ...] | None, deciding: str | None, rule_ids: list[str] | None
) -> None:
    record = a_record(several_rule_ids=several, rule_id=deciding, trace="4bf92f3577b34da6a3ce929d0e0e4736")
    event = json.loads(a_line(encode(record), 9, 12, "proxy-1"))
    assert event.get("ruleIds") == rule_ids
    assert event["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736"


def test_an_event_names_the_host_of_a_redirect_if_there_was_one() -> None:
    record = a_record(redirect="contoso.sharepoint.com")
    assert json.loads(a_line(encode(record), 9, 12, None))["redirect"] == "contoso.sharepoint.com"


@pytest.mark.parametrize(
    ("credential", "members"),
    [
        (("crd-1", None), {"credentialId": "crd-1"}),
        ((None, "malformed"), {"credentialProblem": "malformed"}),
        (("crd-1", "expired"), {"credentialId": "crd-1", "credentialProblem": "expired"}),
        (None, {}),
    ],
)
def test_an_event_names_the_credential_of_a_request_for_a_token(
    credential: tuple[str | None, str | None] | None, members: dict[str, str]
) -> None:
    event = json.loads(a_line(encode(a_record(credential=credential)), 9, 12, None))
    assert {name: value for name, value in event.items() if name.startswith("credential")} == members
    large = json.loads(a_line(encode(a_record(credential=credential, path="/" * 60_000)), 9, 12, None))
    assert {name: value for name, value in large.items() if name.startswith("credential")} == members


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "/" + "a" * 60_000},
        {"query": "\x01" * 60_000},
        {"path": "/\udc80" + "\udcff" * 20_000},
        {"logged_rule_ids": tuple(f"rule-{n}" * 40 for n in range(500))},
        {"client_request_id": "\u2028" * 9000, "path": "\x00" * 9000, "query": "é" * 9000},
        {"transforms": tuple("strip:\x02" * 90 for _ in range(90)), "logged_rule_ids": ("\x01" * 900,) * 90},
    ],
)
def test_a_record_that_would_be_too_large_is_cut_and_still_one_line(changes: dict[str, object]) -> None:
    data = encode(a_record(**changes))
    assert len(data) <= MAX_RECORD
    assert records.decode(data).org_id == ORG
    line = a_line(data, 1, 1, None)
    assert line.count(b"\n") == 1
    assert json.loads(line)["status"] == 200


def test_a_record_of_a_later_release_with_more_fields_still_opens() -> None:
    fields = json.loads(encode(a_record()))
    line = a_line(json.dumps([*fields, "new"]).encode(), 1, 1, None)
    assert json.loads(line)["path"] == "/v1.0/users"


def test_mark_and_frame_can_not_be_confused() -> None:
    assert struct.unpack("<I", b"\xff\xff\xff\xff")[0] > MAX_RECORD
