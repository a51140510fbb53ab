"""Measure the cost of an audit record: the write to a memory-mapped file, and the journal line."""

import os
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from proxy.audit.payload import encode
from proxy.audit.record import Record, decode, event_of, lines_of
from proxy.audit.spool import SpoolWriter

RECORD = Record(
    1, 1_790_000_000_000, "0193f6b2-0000-7000-8000-000000000001", "0193f6b2-0000-7000-8000-000000000002",
    "0193f6b2-0000-7000-8000-000000000003", "127.0.0.1", None, "GET", "/v1.0/users/ada@contoso.com",
    "$select=id", 200, "allow", "users", None, None, 200, 1234, 1000, 0, 1100, None, "rule", 3,
    "0cd7b1b6-2b1b-4c1e-8d5e-1f1f1f1f1f1f",
)  # fmt: skip


def test_record(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    spool = SpoolWriter(
        tmp_path, segment_bytes=1 << 22, max_bytes=1 << 40, when_full="drop-oldest", id_prefix=1
    )

    def append() -> None:
        spool.append(RECORD.org_id, encode(RECORD))
        if spool.needs_maintenance:
            spool.maintain()
            for old in (tmp_path / "spool").glob("*.seg"):
                if len(list((tmp_path / "spool").glob("*.seg"))) > 8:
                    old.unlink()
                break

    benchmark(append)
    spool.close()


@pytest.mark.parametrize("count", [1, 16])
def test_lines(benchmark: BenchmarkFixture, count: int) -> None:
    payloads = [encode(RECORD)] * count

    def lines() -> bytes:
        return lines_of([event_of(decode(each), 1, 1, "proxy-1") for each in payloads])

    assert benchmark(lines).count(b"\n") == count


@pytest.mark.parametrize("piece", [64 * 1024, 1024 * 1024])
def test_write(benchmark: BenchmarkFixture, tmp_path: Path, piece: int) -> None:
    """Append a megabyte to a journal's file, in pieces."""
    fd = os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT, 0o600)
    data = memoryview(bytes(1024 * 1024))

    def append() -> None:
        for at in range(0, len(data), piece):
            os.write(fd, data[at : at + piece])
        os.fdatasync(fd)

    benchmark.pedantic(append, rounds=100)  # type: ignore[no-untyped-call]
    os.close(fd)
