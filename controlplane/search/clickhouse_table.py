"""SQL for the ClickHouse table of audit events: its columns, the row of an event, filters as conditions.

The code of this module does no input or output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from controlplane.search.document import Document
from controlplane.search.predicates import phrase, said_by
from controlplane.search.query import FIELDS, Between, Field
from controlplane.search.sql import Condition, bounded, like_pattern, one_of

DEFAULT_DATABASE: Final = "graphward"
TABLE: Final = "events"
# The table's comment has its format and its incarnation. A table that was dropped and made again has another
# incarnation.
COMMENT: Final = re.compile(r"graphward search index, format (\d+), ([0-9a-f-]{36})")
FORMAT: Final = 1  # meaning of the columns; an added column does not change it
# Number and age in seconds of the inserts that ClickHouse remembers, so that a repeated insert adds nothing.
_REMEMBERED_INSERTS: Final = 10_000
_REMEMBERED_SECONDS: Final = 30 * 86_400

_CLEANED_SECONDS: Final = 86_400  # interval at which a part is rewritten without rows past their retention

_DAY_MS: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)
# Each month has a partition. All times outside these bounds, and implausible times, share the first
# partition.
_FIRST_DAY_MS: Final = 1_262_304_000_000  # 2010
_LAST_DAY_MS: Final = 4_102_444_800_000  # 2100

# Fields with few distinct values in an organisation: ClickHouse keeps a dictionary of these values.
_FEW_VALUES: Final = frozenset(
    {
        "proxy",
        "app",
        "client",
        "method",
        "verdict",
        "ruleid",
        "reason",
        "ruleset",
        "redirect",
        "shadow",
        "shadowrule",
        "shadowruleset",
        "implausible",
    }
)
# Fields that are searched for one value over all time. Granules without the value are not read.
_SOUGHT: Final = ("id", "request", "clientrequest", "parent", "upstreamrequest", "trace", "ip")
_PATH: Final = "ifNull(lower(path), '')"  # an index of this kind does not accept null
_BLOOM: Final = "tokenbf_v1(32768, 4, 0)"  # bytes for the words of 8192 events


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the ClickHouse table, and the function that gives the column's value for an event."""

    name: str
    type: str
    value: Callable[[Document], object]
    codec: str = "CODEC(ZSTD(1))"


def _of_field(field: Field) -> Column:
    name = field.name
    if field.kind == "texts":
        return Column(name, "Array(LowCardinality(String))", lambda document: document.values.get(name, ()))
    if field.kind == "number":
        return Column(name, "Nullable(Float64)", lambda document: document.values.get(name))
    kind = "LowCardinality(Nullable(String))" if name in _FEW_VALUES else "Nullable(String)"
    return Column(name, kind, lambda document: document.values.get(name))


def _happened(document: Document) -> date:
    """Return the day that selects the partition of an event. The same event always has the same day."""
    is_known = _FIRST_DAY_MS <= document.time_ms < _LAST_DAY_MS
    if not is_known or document.values.get("implausible") is not None:
        return _EPOCH
    return _EPOCH + timedelta(days=document.time_ms // _DAY_MS)


COLUMNS: Final = (
    Column("org", "LowCardinality(String)", lambda document: document.org_id),
    Column("time", "Int64", lambda document: document.time_ms, "CODEC(Delta, ZSTD(1))"),
    Column("id", "String", lambda document: document.event_id),
    Column("position", "Int64", lambda document: document.position, "CODEC(Delta, ZSTD(1))"),
    Column("happened", "Date", _happened),
    Column("size", "UInt32", lambda document: len(document.body)),
    Column("said", "String", lambda document: said_by(document.values)),
    Column("body", "String", lambda document: document.body, "CODEC(ZSTD(3))"),
    *(_of_field(field) for field in FIELDS.values() if field.name not in ("org", "time", "id")),
)
# Columns that the server sets, or that this class sets to the organisation's tier.
KEEP_DAYS: Final = "keep_days"


def create_table(comment: str) -> str:
    """Return the SQL statement that creates the table of events.

    If another process created the table first, the table keeps the comment of that process. ClickHouse keeps
    a row two days longer than the retention of its event, because the column `written` has a date in the
    server's time zone.
    """
    columns = [f"{each.name} {each.type} {each.codec}" for each in COLUMNS]
    columns += [f"{KEEP_DAYS} UInt16", "written Date DEFAULT today()"]
    indexes = [f"INDEX of_{name} lower({name}) TYPE bloom_filter(0.01) GRANULARITY 1" for name in _SOUGHT]
    indexes += [f"INDEX of_{name} {name} TYPE {_BLOOM} GRANULARITY 1" for name in ("said",)]
    indexes += [f"INDEX of_path {_PATH} TYPE {_BLOOM} GRANULARITY 1"]
    indexes += ["INDEX of_position position TYPE minmax GRANULARITY 1"]
    return (
        f"CREATE TABLE IF NOT EXISTS {TABLE} ({', '.join((*columns, *indexes))})"
        " ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(happened) ORDER BY (org, time, position)"
        f" TTL greatest(happened, written) + toIntervalDay({KEEP_DAYS} + 2)"
        f" SETTINGS non_replicated_deduplication_window = {_REMEMBERED_INSERTS},"
        f" replicated_deduplication_window = {_REMEMBERED_INSERTS},"
        f" replicated_deduplication_window_seconds = {_REMEMBERED_SECONDS},"
        f" merge_with_ttl_timeout = {_CLEANED_SECONDS}"
        f" COMMENT '{comment}'"
    )


def add_columns(present: set[str]) -> list[str]:
    """Return the SQL statements that add the new fields of this release to a table of an earlier release."""
    return [
        f"ALTER TABLE {TABLE} ADD COLUMN IF NOT EXISTS {each.name} {each.type} {each.codec}"
        for each in COLUMNS
        if each.name not in present
    ]


INSERTED: Final = (*(each.name for each in COLUMNS), KEEP_DAYS)
INSERTED_TYPES: Final = (*(each.type for each in COLUMNS), "UInt16")


def columns_of(documents: Sequence[Document], keep_days: Callable[[str], int]) -> list[list[object]]:
    """Return the values of the documents, column by column: one list for each column in INSERTED."""
    values = [[each.value(document) for document in documents] for each in COLUMNS]
    return [*values, [keep_days(document.org_id) for document in documents]]


class ClickHouseDialect:
    """Writes search conditions as SQL for ClickHouse.

    ClickHouse's function `lower` changes A-Z and no other characters, as the filter grammar requires.
    """

    org, time, position = "org", "time", "position"

    def exactly(self, field: Field, texts: Sequence[str]) -> Condition:
        return _value(field, lambda value: one_of(f"lower({value})", texts))

    def like(self, field: Field, pieces: Sequence[str]) -> Condition:
        return _value(field, lambda value: Condition(f"lower({value}) LIKE ?", (like_pattern(pieces),)))

    def between(self, field: Field, match: Between) -> Condition:
        return bounded(field.name, match)

    def has(self, field: Field) -> Condition:
        return Condition(f"notEmpty({field.name})" if field.kind == "texts" else f"{field.name} IS NOT NULL")

    def words(self, words: Sequence[str], *, prefix: bool) -> Condition:
        return Condition("said LIKE ?", (like_pattern(["", phrase(words, prefix=prefix), ""]),))


def _value(field: Field, holds: Callable[[str], Condition]) -> Condition:
    """Return a condition on the value of a field.

    If the field has several values, one value must satisfy the condition.
    """
    if field.kind != "texts":
        return holds(field.name)
    condition = holds("each")
    return Condition(f"arrayExists(each -> {condition.sql}, {field.name})", condition.parameters)


def bound(condition: Condition) -> tuple[str, dict[str, object]]:
    """Return the SQL with ClickHouse's parameter markers, and the values that the server inserts."""
    sql = condition.numbered(lambda number, value: f"{{p{number}:{_type(value)}}}")
    return sql, {f"p{number}": value for number, value in enumerate(condition.parameters)}


def _type(value: object) -> str:
    return "String" if isinstance(value, str) else "Int64" if isinstance(value, int) else "Float64"
