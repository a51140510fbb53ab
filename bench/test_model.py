"""Measure a schema: parse, flat form, load, and paths that are not remembered.

SCHEMA names a file with a `$metadata` document, as Microsoft Graph serves it.
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

SCHEMA: Final = os.environ.get("SCHEMA")
MOST_BYTES: Final = 2 * 1024 * 1024  # memory of a loaded schema in each worker

pytestmark = pytest.mark.skipif(SCHEMA is None, reason="SCHEMA names no $metadata document")

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


@pytest.mark.parametrize("path", PATHS)
def test_reaches(benchmark: BenchmarkFixture, flat: bytes, path: str) -> None:
    model = ResourceModel(flat, digest_of(flat))
    names = tuple(PATHS[path].split("/"))
    steps = benchmark(reaches, model, names)
    assert steps[-1].kind != INDETERMINATE
    assert len(steps) == len(names)
