"""Benchmarks of a Graph schema: parsing, encoding for proxies, loading, and finding the type of a path.

The environment variable SCHEMA names a file with Microsoft Graph's `$metadata` document for this benchmark.
"""

import os
import tracemalloc
from pathlib import Path
from typing import Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from controlplane.model.flat_form import encode
from controlplane.model.metadata import Schema, parse
from proxy.policy.reached import INDETERMINATE, reaches
from proxy.policy.resource_model import ResourceModel, digest_of
from proxy.policy.ruleset import Ruleset
from proxy.rules.schemas import load_models, schemas_of
from proxy.rules.snapshot import Snapshot, SnapshotRuleset, read_snapshot, write_snapshot
from proxy.wire.packed_schema import pack, unpack

SCHEMA: Final = os.environ.get("SCHEMA")
MOST_BYTES: Final = 2 * 1024 * 1024  # bytes of memory for a loaded schema in each worker

pytestmark = pytest.mark.skipif(SCHEMA is None, reason="SCHEMA does not name a $metadata document")

PATHS: Final = {
    "short": "users/ada@contoso.com",
    "usual": "users/ada@contoso.com/mailfolders/inbox/messages/1/attachments/2/$value",
    "cast": "groups/1/members/2/microsoft.graph.user/manager/microsoft.graph.user/messages",
    "function": "users/1/calendars/2/calendarview/delta()",
    "long": "sites/1/drives/2/items/3/children/4/workbook/worksheets/5/tables/6/columns/7/filter/criteria",
}


def document() -> bytes:
    assert SCHEMA is not None
    return Path(SCHEMA).read_bytes()


@pytest.fixture(scope="module")
def schema() -> Schema:
    return parse(document())


@pytest.fixture(scope="module")
def flat(schema: Schema) -> bytes:
    return encode(schema)


def test_parse(benchmark: BenchmarkFixture) -> None:
    given = document()
    assert benchmark(parse, given).types


def test_encode(benchmark: BenchmarkFixture, schema: Schema) -> None:
    assert benchmark(encode, schema)


def test_load(benchmark: BenchmarkFixture, flat: bytes) -> None:
    assert benchmark(ResourceModel, flat, digest_of(flat)).types


def test_memory(flat: bytes) -> None:
    digest = digest_of(flat)
    tracemalloc.start()
    model = ResourceModel(flat, digest)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert model.types
    assert taken < MOST_BYTES


def test_unpack(benchmark: BenchmarkFixture, flat: bytes) -> None:
    assert benchmark(unpack, pack(flat)) == flat


def snapshot_of(flat: bytes, rulesets: int) -> Snapshot:
    """Return a snapshot whose rulesets all name one schema."""
    digest = digest_of(flat)
    return Snapshot(
        version="v1",
        generated_at="2026-11-21T04:25:58.123Z",
        generation=1,
        synced_at=1_700_000_000.0,
        etag=None,
        proxy_id=None,
        sync_interval_seconds=None,
        orgs={"o1": "Contoso"},
        apps=(),
        rulesets=tuple(
            SnapshotRuleset(f"r{n}", "o1", "hr", 1, "d", Ruleset("hr"), {"/v1.0": digest})
            for n in range(rulesets)
        ),
        schemas={digest: pack(flat)},
    )


def test_snapshot_with_its_schema(benchmark: BenchmarkFixture, flat: bytes, tmp_path: Path) -> None:
    """Measure the work of a worker at its start: read the snapshot and load its schema."""
    path = tmp_path / "snapshot.json"
    write_snapshot(path, snapshot_of(flat, 1))

    def started() -> int:
        return len(load_models(read_snapshot(path), {}))

    assert benchmark(started) == 1


def test_memory_of_rulesets_that_share_a_schema(flat: bytes) -> None:
    snapshot = snapshot_of(flat, 100)
    tracemalloc.start()
    models = load_models(snapshot, {})
    schemas = [schemas_of(each.schemas, models) for each in snapshot.rulesets]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len({id(each.models[0]) for each in schemas}) == 1
    assert taken < MOST_BYTES


@pytest.mark.parametrize("path", PATHS)
def test_reaches(benchmark: BenchmarkFixture, flat: bytes, path: str) -> None:
    model = ResourceModel(flat, digest_of(flat))
    names = tuple(PATHS[path].split("/"))
    steps = benchmark(reaches, model, names)
    assert steps[-1].kind != INDETERMINATE
    assert len(steps) == len(names)
