"""The parts of the embedded search index.

When retention has removed the last event of an index part, the tables of this part are dropped.

Each part of the search index holds the events of about a million consecutive positions. The index key of an
event consists of the event's time and the low bits of its position. The order of the index keys is therefore
the order of events on the result pages. Each part of the index has four tables: rows (one row for each
event), words (FTS5 tokens without positions), codes (a dictionary) and counts.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson

from controlplane.search.entries import (
    COLUMNS,
    MOST_KEY_MS,
    TOKENIZER,
    Arrived,
    Codes,
    Entries,
    entries_of,
)
from controlplane.search.sql import Condition, Key, one_of
from controlplane.store.interface import MOST_AHEAD_MS

PART_BITS: Final = 20  # low bits of a position, which number the events of a part
# number of values that are separate parameters; SQLite accepts 32,766 in a statement
_MOST_LISTED: Final = 64
HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
# Fields whose values are counted on arrival: by verdict in every hour, and verdicts alone in every minute.
ROLLED: Final = ("verdict", "app", "rule", "ruleid", "reason", "status", "method")

SCHEMA: Final = (
    "CREATE TABLE orgs (org INTEGER PRIMARY KEY, org_id TEXT NOT NULL UNIQUE)",
    # Position of the newest event. An event up to this position that arrives again changes nothing.
    "CREATE TABLE reached (position INTEGER NOT NULL)",
    "INSERT INTO reached VALUES (0)",
    # The bounds of the keys of an organisation's events in a part, and the number of these events.
    """CREATE TABLE parts (part INTEGER, org INTEGER, least INTEGER NOT NULL, most INTEGER NOT NULL,
            count INTEGER NOT NULL, PRIMARY KEY (part, org)) WITHOUT ROWID""",
)
_TABLES_OF_PART: Final = (
    f"CREATE TABLE rows_{{part}} (key INTEGER PRIMARY KEY, {', '.join(COLUMNS)})",
    f"""CREATE VIRTUAL TABLE words_{{part}} USING fts5(words, content='', columnsize=0, detail=none,
            tokenize="{TOKENIZER}")""",
    # Memory for a write. A write that fits makes one segment of the table.
    "INSERT INTO words_{part} (words_{part}, rank) VALUES ('hashsize', 33554432)",
    "CREATE TABLE codes_{part} (code INTEGER PRIMARY KEY, field TEXT NOT NULL, value TEXT NOT NULL)",
    # `field` is an index in ROLLED. A count covers the events since `start`, in ms, for the length of `unit`.
    # If `unit` is 0, it covers the events of the whole part.
    """CREATE TABLE counts_{part} (org INTEGER, field INTEGER, unit INTEGER, start INTEGER, verdict INTEGER,
            value INTEGER, count INTEGER NOT NULL,
            PRIMARY KEY (org, field, unit, start, verdict, value)) WITHOUT ROWID""",
)
_VALUES: Final = ", ".join("?" * (len(COLUMNS) + 1))


@contextmanager
def telling_damage() -> Iterator[None]:
    """Raise DatabaseError if the content of the search index is unreadable.

    The index writer stores only content that the readers of the index can parse. Unreadable content of the
    index therefore means that the disk has damaged the index. For other damage of the file, SQLite raises
    DatabaseError without this function.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"its content makes no sense ({type(error).__name__}: {error})"
        raise sqlite3.DatabaseError(what) from error


@dataclass(frozen=True, slots=True)
class Part:
    number: int
    least: int
    most: int
    orgs: Mapping[int, int]  # number of events of each requested organisation
    total: int  # number of events of all organisations

    def key(self, key: int) -> Key:
        """Return the time and the position of the event that has this index key."""
        return key >> PART_BITS, self.number << PART_BITS | key & mask()

    def last_before(self, before: Key) -> int:
        """Return the greatest index key in this part that is less than the time and position `before`."""
        time_ms, position = before
        within = position - (self.number << PART_BITS)
        return (time_ms << PART_BITS) + min(max(within, 0), mask() + 1) - 1

    @property
    def end(self) -> Key:
        """Return a time and a position that are greater than those of all events in this part."""
        return (self.most >> PART_BITS) + 1, 0


def mask() -> int:
    return (1 << PART_BITS) - 1


def among(column: str, numbers: Sequence[int]) -> Condition:
    """Return the SQL condition that a column has one of many numbers."""
    if len(numbers) <= _MOST_LISTED:
        return one_of(column, numbers)
    listed = orjson.dumps(list(numbers)).decode()
    return Condition(f"{column} IN (SELECT value FROM json_each(?))", (listed,))  # noqa: S608 - a column


def part_of(position: int) -> int:
    return position >> PART_BITS


def key_of(time_ms: int, position: int) -> int:
    return min(max(time_ms, 0), MOST_KEY_MS) << PART_BITS | position & mask()


def time_column() -> str:
    """Return the SQL expression for the time of the event in a row."""
    return f"coalesce(time, key >> {PART_BITS})"


def read_parts(db: sqlite3.Connection, orgs: Sequence[int] | None) -> list[Part]:
    """Return the index parts that have events of the given organisations, newest part first."""
    wanted = None if orgs is None else frozenset(orgs)
    by_part: dict[int, list[tuple[int, int, int, int]]] = {}
    for number, *of_org in db.execute("SELECT part, org, least, most, count FROM parts"):
        by_part.setdefault(number, []).append(tuple(of_org))
    found = []
    for number, every in by_part.items():
        several = [each for each in every if wanted is None or each[0] in wanted]
        if several:
            _, least, most, _ = zip(*several, strict=True)
            counts = {org: count for org, _, _, count in several}
            found.append(Part(number, min(least), max(most), counts, sum(each[3] for each in every)))
    return sorted(found, key=lambda part: part.most, reverse=True)


@telling_damage()
def read_codes(db: sqlite3.Connection, part: int, codes: Codes) -> None:
    """Add the codes of field values that are new in the table of an index part to the dictionary `codes`."""
    sql = f"SELECT code, field, value FROM codes_{part} WHERE code > ?"  # noqa: S608 - a number
    for code, name, text in db.execute(sql, (codes.newest,)):
        value = orjson.loads(text)
        codes.add(code, name, tuple(value) if isinstance(value, list) else value)


# -- writing ---------------------------------------------------------------------------------------


class PartWriter:
    """Writes events to the parts of the embedded search index.

    The index writer caches the dictionary of the newest index part, and drops the cache if another process
    writes the index.
    """

    def __init__(self) -> None:
        self._part = -1
        self._codes = Codes()
        self._version = -1

    def write(self, db: sqlite3.Connection, arrived: Arrived) -> None:
        for part, events in _by_part(arrived):
            codes = self._codes_of(db, part)
            before = codes.newest
            try:
                _add(db, part, events, codes)
                _write_codes(db, part, codes, before)
            except BaseException:
                self._part = -1  # the dictionary has codes that the file lacks
                raise

    def forget(self) -> None:
        """Discard the cached dictionary, because the transaction that changed it was rolled back."""
        self._part = -1

    def _codes_of(self, db: sqlite3.Connection, part: int) -> Codes:
        ((version,),) = db.execute("PRAGMA data_version").fetchall()
        if part != self._part or version != self._version:
            ((exists,),) = db.execute(
                "SELECT count(*) FROM sqlite_schema WHERE name = ?", (f"rows_{part}",)
            ).fetchall()
            if not exists:
                _drop_empty_parts(db)
                for statement in _TABLES_OF_PART:
                    db.execute(statement.format(part=part))
            self._codes = Codes()
            read_codes(db, part, self._codes)
            self._part, self._version = part, version
        return self._codes


def _add(db: sqlite3.Connection, part: int, arrived: Arrived, codes: Codes) -> None:
    """Add events to one part of the search index, in the order of the events' index keys.

    FTS5 starts a new index segment whenever an added key is lower than the previous key.
    """
    keys = list(map(key_of, arrived.times, arrived.positions))
    numbers = {org_id: _org_number(db, org_id) for org_id in dict.fromkeys(arrived.org_ids)}
    orgs = [numbers[org_id] for org_id in arrived.org_ids]
    entries = entries_of(arrived, orgs, codes)
    db.executemany(
        f"INSERT INTO rows_{part} VALUES ({_VALUES})",  # noqa: S608 - a number
        ((key, *row) for key, row in zip(keys, entries.rows(), strict=True)),
    )
    db.executemany(
        f"INSERT INTO words_{part} (rowid, words) VALUES (?, ?)",  # noqa: S608 - a number
        zip(keys, entries.lines, strict=True),
    )
    db.executemany(
        f"INSERT INTO counts_{part} VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - a number
        " ON CONFLICT DO UPDATE SET count = count + excluded.count",
        [(*counted, number) for counted, number in _counted(entries, arrived.times).items()],
    )
    least = dict(zip(reversed(orgs), reversed(keys), strict=True))
    most = dict(zip(orgs, keys, strict=True))
    db.executemany(
        "INSERT INTO parts VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
        " SET least = min(least, excluded.least), most = max(most, excluded.most),"
        " count = count + excluded.count",
        [(part, org, least[org], most[org], count) for org, count in Counter(orgs).items()],
    )


def _by_part(arrived: Arrived) -> Iterator[tuple[int, Arrived]]:
    """Yield each index part's number, and the events of the part in the order of their index keys."""
    by_part: dict[int, list[int]] = {}
    for place, position in enumerate(arrived.positions):
        by_part.setdefault(position >> PART_BITS, []).append(place)
    for part, places in by_part.items():
        places.sort(key=lambda place: key_of(arrived.times[place], arrived.positions[place]))
        yield (
            part,
            Arrived(
                [arrived.org_ids[place] for place in places],
                [arrived.positions[place] for place in places],
                [arrived.times[place] for place in places],
                [arrived.entries[place] for place in places],
            ),
        )


def _drop_empty_parts(db: sqlite3.Connection) -> None:
    """Drop the tables of index parts that have no events.

    Retention keeps the newest part of the index even if this part is empty. An index part has a dictionary of
    its values, which is cached by the number of the part. Because the newest part stays, no later part gets
    the same number with another dictionary.
    """
    names = db.execute(
        "SELECT substr(name, 6) FROM sqlite_schema WHERE name GLOB 'rows_*'"
        " AND substr(name, 6) NOT IN (SELECT CAST(part AS TEXT) FROM parts)"
    ).fetchall()
    for (part,) in names:
        _drop_part(db, int(part))


def _drop_part(db: sqlite3.Connection, part: int) -> None:
    for table in ("rows", "words", "codes", "counts"):
        db.execute(f"DROP TABLE {table}_{part}")


def _org_number(db: sqlite3.Connection, org_id: str) -> int:
    db.execute("INSERT OR IGNORE INTO orgs (org_id) VALUES (?)", (org_id,))
    ((org,),) = db.execute("SELECT org FROM orgs WHERE org_id = ?", (org_id,)).fetchall()
    return int(org)


def _write_codes(db: sqlite3.Connection, part: int, codes: Codes, after: int) -> None:
    db.executemany(
        f"INSERT INTO codes_{part} VALUES (?, ?, ?)",  # noqa: S608 - a number
        [(code, name, orjson.dumps(value).decode()) for code, name, value in codes.after(after)],
    )


_Counted: TypeAlias = tuple[int, int, int, int, int, int]  # organisation, field, unit, start, verdict, value


def _counted(entries: Entries, times: Sequence[int]) -> Counter[_Counted]:
    """Count the events by each value of the fields in ROLLED."""
    found: Counter[_Counted] = Counter()
    orgs = entries.columns["org"]
    verdicts = [verdict or 0 for verdict in entries.columns["verdict"]]
    minutes = [time // MINUTE_MS * MINUTE_MS for time in times]
    for (org, minute, verdict), number in Counter(zip(orgs, minutes, verdicts, strict=True)).items():
        found[org, 0, MINUTE_MS, minute, verdict, verdict] += number
    hours = [time // HOUR_MS * HOUR_MS for time in times]
    for field, name in enumerate(ROLLED):
        values = [value or 0 for value in entries.columns[name]]
        by_value = Counter(zip(orgs, hours, verdicts, values, strict=True))
        for (org, hour, verdict, value), number in by_value.items():
            found[org, field, HOUR_MS, hour, verdict, value] += number
            found[org, field, 0, 0, verdict, value] += number
    return found


# -- purging ---------------------------------------------------------------------------------------


def purge_events(
    db: sqlite3.Connection, org_id: str, before_ms: int, limit: int, newest: int | None = None
) -> int:
    """Remove events from the index if retention deletes them from the store (`SearchIndex.purge`)."""
    row = db.execute("SELECT org FROM orgs WHERE org_id = ?", (org_id,)).fetchone()
    if row is None:
        return 0
    purged = 0
    for part in reversed(read_parts(db, [row[0]])):
        if purged < limit:
            purged += _purge_part(db, part, row[0], before_ms, limit - purged, newest)
    return purged


def _purge_part(
    db: sqlite3.Connection, part: Part, org: int, before_ms: int, limit: int, newest: int | None
) -> int:
    # The last key stands for all later times.
    upto = key_of(before_ms, 0) - 1 if before_ms <= MOST_KEY_MS else part.most
    after = part.most if newest is None else key_of(before_ms + MOST_AHEAD_MS, mask())
    if part.least > upto and part.most <= after:
        return 0
    last = mask() if newest is None else newest - (part.number << PART_BITS)
    rows = db.execute(
        f"SELECT key, {', '.join(COLUMNS)} FROM rows_{part.number}"  # noqa: S608 - names of columns
        " WHERE org = ?1 AND (key <= ?2 OR key > ?3) AND key & ?4 <= ?5 ORDER BY key LIMIT ?6",
        (org, upto, after, mask(), last, limit),
    ).fetchall()
    if rows:
        _remove(db, part, org, rows)
    return len(rows)


def _remove(db: sqlite3.Connection, part: Part, org: int, rows: Sequence[Sequence[Any]]) -> None:
    """Remove the rows of some events from an index part, but keep the FTS5 tokens of these events.

    The FTS5 tokens of a removed event belong to no row. The FTS5 tokens of a removed event stay in the index
    until the whole index part is removed.
    """
    keys, *columns = zip(*rows, strict=True)
    ((count, newest),) = db.execute(
        "SELECT sum(count), (SELECT position FROM reached) FROM parts WHERE part = ?", (part.number,)
    ).fetchall()
    if count == len(rows) and part.number < newest >> PART_BITS:
        _drop_part(db, part.number)
        db.execute("DELETE FROM parts WHERE part = ?", (part.number,))
        return
    db.executemany(f"DELETE FROM rows_{part.number} WHERE key = ?", ((key,) for key in keys))  # noqa: S608
    entries = Entries(dict(zip(COLUMNS, columns, strict=True)), ())
    times = [
        key >> PART_BITS if time is None else time
        for key, time in zip(keys, entries.columns["time"], strict=True)
    ]
    db.executemany(
        f"UPDATE counts_{part.number} SET count = count - ? WHERE org = ? AND field = ? AND unit = ?"  # noqa: S608
        " AND start = ? AND verdict = ? AND value = ?",
        [(number, *counted) for counted, number in _counted(entries, times).items()],
    )
    _set_span(db, part, org, part.orgs[org] - len(rows))


def _set_span(db: sqlite3.Connection, part: Part, org: int, count: int) -> None:
    if not count:
        db.execute("DELETE FROM parts WHERE part = ? AND org = ?", (part.number, org))
        return
    bounds = (
        f"(SELECT key FROM rows_{part.number} WHERE org = ?2 ORDER BY key {direction} LIMIT 1)"  # noqa: S608
        for direction in ("ASC", "DESC")
    )
    db.execute(
        "UPDATE parts SET least = {}, most = {}, count = ?3 WHERE part = ?1 AND org = ?2".format(*bounds),  # noqa: S608
        (part.number, org, count),
    )
