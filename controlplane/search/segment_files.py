"""Segments in SQLite: written, joined as they pile up, and cut when their oldest events have to go.

A column is one row, whose number is made of the segment's and the column's, so that a search reads only what
it looks at. What is asked of single events, their numbers and lines of text, lies in blocks. The events'
own texts are in the store; a position leads there.
"""

from __future__ import annotations

import logging
import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Annotated, Any, Final

import msgspec

from controlplane.clock import milliseconds
from controlplane.search.column import Column, decode, encode
from controlplane.search.document import UnsearchableError, read_document, rules_in
from controlplane.search.interface import Event
from controlplane.search.known_event import Parsed, attribute_of
from controlplane.search.segment import (
    COLUMNS,
    KINDS,
    Segment,
    join_segments,
    make_segment,
    only,
    vocabulary,
)
from controlplane.store.interface import MOST_AHEAD_MS

log = logging.getLogger(__name__)

SCHEMA: Final = (
    "CREATE TABLE orgs (org INTEGER PRIMARY KEY, org_id TEXT NOT NULL UNIQUE)",
    # Of the newest event: what comes again from up to there changes nothing.
    "CREATE TABLE reached (position INTEGER NOT NULL)",
    "INSERT INTO reached VALUES (0)",
    """CREATE TABLE segments (segment INTEGER PRIMARY KEY AUTOINCREMENT, org INTEGER NOT NULL,
            least_ms INTEGER, most_ms INTEGER, count INTEGER)""",
    "CREATE INDEX segments_of_org ON segments (org, most_ms)",
    "CREATE TABLE columns (place INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    """CREATE TABLE words (segment INTEGER, first BLOB, listed BLOB, PRIMARY KEY (segment, first))
            WITHOUT ROWID""",
    "CREATE TABLE numbers (block INTEGER PRIMARY KEY, times BLOB NOT NULL, positions BLOB NOT NULL)",
    "CREATE TABLE texts (block INTEGER PRIMARY KEY, lines BLOB NOT NULL, text BLOB NOT NULL)",
)

_PLACE_BITS: Final = 6
_PLACES: Final = {name: number for number, name in enumerate(KINDS)}

_WORDS_IN_ROW: Final = 256
# Events whose numbers, and lines of text, lie in one row; a word leads to the blocks that have it.
BLOCK: Final = 2048
_BLOCK_BITS: Final = 20
WORDLESS: Final = 8192  # events up to which a segment's text is quicker searched than its words are listed
_MOST_WORD_ROWS: Final = 8  # that are looked through for the words that begin so
_FULL: Final = 131_072  # events of a segment that is joined no more
_FAN: Final = 16  # segments of about one size that become one


@contextmanager
def telling_damage() -> Iterator[None]:
    """What was written can be read; where it makes no sense, it was damaged on the disk, and SQLite's own
    words for that are DatabaseError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"what it holds makes no sense ({type(error).__name__}: {error})"
        raise sqlite3.DatabaseError(what) from error


def _place(segment: int, name: str) -> int:
    return segment << _PLACE_BITS | _PLACES[name]


# -- segments --------------------------------------------------------------------------------------


def read_numbers(db: sqlite3.Connection, segment: int, number: int) -> list[array[int]]:
    """The block's times and positions."""
    sql = "SELECT times, positions FROM numbers WHERE block = ?"
    (row,) = db.execute(sql, (segment << _BLOCK_BITS | number,)).fetchall()
    return [array("q", data) for data in row]


def read_column(db: sqlite3.Connection, segment: int, name: str) -> Column:
    sql = "SELECT data FROM columns WHERE place = ?"
    ((data,),) = db.execute(sql, (_place(segment, name),)).fetchall()
    return decode(data)


def read_block(db: sqlite3.Connection, segment: int, number: int) -> tuple[array[int], bytes]:
    """Where the block's lines begin, and its text."""
    sql = "SELECT lines, text FROM texts WHERE block = ?"
    ((begins, text),) = db.execute(sql, (segment << _BLOCK_BITS | number,)).fetchall()
    lines = array("I")
    lines.frombytes(begins)
    return lines, text


@telling_damage()
def _read_segment(db: sqlite3.Connection, segment: int) -> Segment:
    ((count,),) = db.execute("SELECT count FROM segments WHERE segment = ?", (segment,)).fetchall()
    times, positions = array("q"), array("q")
    lines = array("I", [0])
    blocks = []
    for number in range(-(-count // BLOCK)):
        for each, part in zip((times, positions), read_numbers(db, segment, number), strict=True):
            each.extend(part)
        blocks.append(read_block(db, segment, number))
    for begins, _ in blocks:
        base = lines.pop()
        lines.extend([base + at for at in begins])
    text = b"".join(part for _, part in blocks)
    return Segment(
        times,
        positions,
        {name: read_column(db, segment, name) for name in KINDS},
        text,
        lines,
    )


def _write_segment(db: sqlite3.Connection, number: int, segment: Segment) -> None:
    db.execute(
        "UPDATE segments SET least_ms = ?, most_ms = ?, count = ? WHERE segment = ?",
        (segment.times[0], segment.times[-1], segment.count, number),
    )
    db.executemany(
        "INSERT INTO columns VALUES (?, ?)",
        [(_place(number, name), encode(column)) for name, column in segment.columns.items()],
    )
    for block, first in enumerate(range(0, segment.count, BLOCK)):
        numbers = (segment.times, segment.positions)
        row = (each[first : first + BLOCK].tobytes() for each in numbers)
        db.execute("INSERT INTO numbers VALUES (?, ?, ?)", (number << _BLOCK_BITS | block, *row))
    _write_text(db, number, segment)


def _write_text(db: sqlite3.Connection, number: int, segment: Segment) -> None:
    blocks: defaultdict[bytes, list[bytes]] = defaultdict(list)  # of each word
    for block, first in enumerate(range(0, segment.count, BLOCK)):
        begins = segment.lines[first : first + BLOCK + 1]
        text = segment.text[begins[0] : begins[-1]]
        begins = array("I", [at - begins[0] for at in begins])
        row = (number << _BLOCK_BITS | block, begins.tobytes(), text)
        db.execute("INSERT INTO texts VALUES (?, ?, ?)", row)
        if segment.count <= WORDLESS:
            continue
        spelled = b"%d" % block
        for word in vocabulary(text):
            blocks[word].append(spelled)
    words = sorted(blocks)
    for at in range(0, len(words), _WORDS_IN_ROW):
        listed = [b" ".join((word, *blocks[word])) for word in words[at : at + _WORDS_IN_ROW]]
        db.execute("INSERT INTO words VALUES (?, ?, ?)", (number, words[at], b"\n".join(listed)))


def blocks_with(db: sqlite3.Connection, segment: int, word: bytes, *, prefix: bool) -> set[int] | None:
    """The blocks that have the word, or one that begins so; None if that is too much to look up."""
    sql = "SELECT listed FROM words WHERE segment = ?1 AND first <= ?2 ORDER BY first DESC LIMIT 1"
    rows = db.execute(sql, (segment, word)).fetchall()
    if prefix:
        sql = "SELECT listed FROM words WHERE segment = ? AND first > ? AND first < ? ORDER BY first LIMIT ?"
        rows += db.execute(sql, (segment, word, word + b"\xff", _MOST_WORD_ROWS)).fetchall()
        if len(rows) > _MOST_WORD_ROWS:
            return None
    found: set[int] = set()
    wanted = b"\n" + word + (b"" if prefix else b" ")
    for (listed,) in rows:
        lines = b"\n" + listed + b"\n"
        at = lines.find(wanted)
        while at >= 0:
            end = lines.index(b"\n", at + 1)
            found.update(map(int, lines[at:end].split(b" ")[1:]))
            at = lines.find(wanted, end)
    return found


def _delete_parts(db: sqlite3.Connection, segment: int) -> None:
    first = segment << _PLACE_BITS
    db.execute("DELETE FROM columns WHERE place BETWEEN ? AND ?", (first, first + (1 << _PLACE_BITS) - 1))
    db.execute("DELETE FROM words WHERE segment = ?", (segment,))
    first = segment << _BLOCK_BITS
    last = first + (1 << _BLOCK_BITS) - 1
    db.execute("DELETE FROM numbers WHERE block BETWEEN ? AND ?", (first, last))
    db.execute("DELETE FROM texts WHERE block BETWEEN ? AND ?", (first, last))


def _delete_segment(db: sqlite3.Connection, segment: int) -> None:
    _delete_parts(db, segment)
    db.execute("DELETE FROM segments WHERE segment = ?", (segment,))


def _new_segment(db: sqlite3.Connection, org: int) -> int:
    number = db.execute("INSERT INTO segments (org) VALUES (?)", (org,)).lastrowid
    assert number is not None
    return number


# -- writing ---------------------------------------------------------------------------------------

_Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # what a column can hold
_TYPES: Final = {
    "text": str | _Integer | None, "texts": tuple[str, ...] | None, "number": _Integer | float | None,
}  # fmt: skip
_ATTRIBUTES: Final = {field.name: attribute_of(field.event_key) for field in COLUMNS}

# An event's searchable fields, read in one go and named as those of a KnownEvent; an event that does not fit
# is read field by field instead.
_Entry: Final[Any] = msgspec.defstruct(
    "_Entry",
    [
        ("id", Annotated[str, msgspec.Meta(min_length=1)]),
        ("time", Annotated[datetime, msgspec.Meta(tz=True)]),
        *((_ATTRIBUTES[field.name], _TYPES[field.kind], None) for field in COLUMNS if field.name != "id"),
    ],
    kw_only=True,
    rename="camel",
    gc=False,
)
_decode_entries: Final = msgspec.json.Decoder(list[_Entry]).decode


@dataclass(frozen=True, slots=True)
class _Arrived:
    """Events of one organisation in the order of their positions, each an _Entry or a KnownEvent."""

    positions: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    entries: list[Any] = field(default_factory=list)


def write_events(db: sqlite3.Connection, events: Sequence[Event]) -> None:
    """Each event once, by its position, whoever writes it how often."""
    ((reached,),) = db.execute("SELECT position FROM reached").fetchall()
    events = [event for event in events if event.position > reached]
    arrived: defaultdict[str, _Arrived] = defaultdict(_Arrived)
    for event, (time_ms, entry) in zip(events, _read_entries(events), strict=True):
        if entry is not None:
            of_org = arrived[event.org_id]
            of_org.positions.append(event.position)
            of_org.times.append(time_ms)
            of_org.entries.append(entry)
    _write(db, arrived, max((event.position for event in events), default=reached))


def write_parsed(db: sqlite3.Connection, batches: Sequence[Parsed]) -> None:
    """The same of events that follow each other and were read already."""
    ((reached,),) = db.execute("SELECT position FROM reached").fetchall()
    arrived: defaultdict[str, _Arrived] = defaultdict(_Arrived)
    for batch in batches:
        known = max(0, reached + 1 - batch.position)
        of_org = arrived[batch.org_id]
        of_org.positions.extend(range(batch.position + known, batch.position + len(batch.events)))
        of_org.times.extend(batch.times[known:])
        of_org.entries.extend(batch.events[known:])
        reached = max(reached, batch.position + len(batch.events) - 1)
    _write(db, arrived, reached)


def _write(db: sqlite3.Connection, arrived: Mapping[str, _Arrived], reached: int) -> None:
    for org_id, of_org in arrived.items():
        if of_org.positions:
            org = _org_number(db, org_id)
            _write_segment(db, _new_segment(db, org), _segment_of(of_org))
            _join_small(db, org)
    db.execute("UPDATE reached SET position = ?", (reached,))


def _read_entries(events: Sequence[Event]) -> list[tuple[int, Any]]:
    """The events' times in milliseconds and their fields; no fields of one that can't be searched."""
    try:
        entries = _decode_entries(b"[" + b",".join([event.body for event in events]) + b"]")
        if len(entries) == len(events):
            return [(milliseconds(entry.time), entry) for entry in entries]
    except (ValueError, RecursionError):
        pass  # at least one event is out of the ordinary
    return [_read_entry(event) for event in events]


def _read_entry(event: Event) -> tuple[int, Any]:
    """Field by field, so that one that can't be read doesn't keep the others from being found."""
    try:
        document = read_document(event)
    except UnsearchableError as error:
        log.error("event at position %d is not searchable: %s", event.position, error)
        return 0, None
    values = {_ATTRIBUTES[name]: value for name, value in document.values.items() if name != "org"}
    return document.time_ms, _Entry(**values, time=None)


def _org_number(db: sqlite3.Connection, org_id: str) -> int:
    db.execute("INSERT OR IGNORE INTO orgs (org_id) VALUES (?)", (org_id,))
    ((org,),) = db.execute("SELECT org FROM orgs WHERE org_id = ?", (org_id,)).fetchall()
    return int(org)


def _segment_of(arrived: _Arrived) -> Segment:
    times = arrived.times
    order = sorted(range(len(times)), key=times.__getitem__)  # of one time by position, as they come
    in_order = itemgetter(*order) if len(order) > 1 else tuple
    of_attributes = type(arrived.entries[0]).__struct_fields__
    values = zip(*map(msgspec.structs.astuple, in_order(arrived.entries)), strict=True)
    columns = dict(zip(of_attributes, values, strict=True))
    fields = {name: columns[attribute] for name, attribute in _ATTRIBUTES.items()}
    fields["rule"] = tuple(map(rules_in, fields["rule"], fields["ruleid"]))
    for name, kind in KINDS.items():
        if kind == "texts" and () in fields[name]:
            fields[name] = tuple(value or None for value in fields[name])
    return make_segment(array("q", in_order(times)), array("q", in_order(arrived.positions)), fields)


def _join_small(db: sqlite3.Connection, org: int) -> None:
    """Joins segments of about one size until few are left of each."""
    while True:
        by_size: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        sql = "SELECT segment, count FROM segments WHERE org = ? AND count < ?"
        for segment, count in db.execute(sql, (org, _FULL)):
            by_size[(count.bit_length() - 1) // 3].append((segment, count))
        piled = [each for each in by_size.values() if len(each) >= _FAN or _is_full(each)]
        if not piled:
            return
        for each in piled:
            numbers = [segment for segment, _ in each]
            joined = join_segments([_read_segment(db, segment) for segment in numbers])
            _write_segment(db, _new_segment(db, org), joined)
            for segment in numbers:
                _delete_segment(db, segment)


def _is_full(segments: Sequence[tuple[int, int]]) -> bool:
    return len(segments) > 1 and sum(count for _, count in segments) >= _FULL


# -- purging ---------------------------------------------------------------------------------------


def purge_events(
    db: sqlite3.Connection, org_id: str, before_ms: int, limit: int, newest: int | None = None
) -> int:
    """Remove events as retention takes them from the store; see `SearchIndex.purge`."""
    ahead_ms = before_ms + MOST_AHEAD_MS if newest is not None else None
    rows = db.execute(
        "SELECT s.segment, s.count FROM segments s JOIN orgs o ON o.org = s.org"
        " WHERE o.org_id = ?1 AND (s.least_ms < ?2 OR s.most_ms > ?3) ORDER BY s.least_ms",
        (org_id, before_ms, ahead_ms),
    ).fetchall()
    purged = 0
    for number, count in rows:
        if purged == limit:
            break
        kept = _kept(db, number, count, (before_ms, ahead_ms, newest), limit - purged)
        if len(kept) == count:
            continue
        segment = _read_segment(db, number)
        _delete_parts(db, number)
        if kept:
            _write_segment(db, number, only(segment, kept))
        else:
            _delete_segment(db, number)
        purged += count - len(kept)
    return purged


@telling_damage()
def _kept(
    db: sqlite3.Connection, segment: int, count: int, due: tuple[int, int | None, int | None], most: int
) -> list[int]:
    """Places of the segment's events that stay, if `most` of those that are due go."""
    before_ms, ahead_ms, newest = due
    kept: list[int] = []
    at = 0
    for number in range(-(-count // BLOCK)):
        for time_ms, position in zip(*read_numbers(db, segment, number), strict=True):
            is_due = time_ms < before_ms or (ahead_ms is not None and time_ms > ahead_ms)
            goes = is_due and (newest is None or position <= newest) and at - len(kept) < most
            if not goes:
                kept.append(at)
            at += 1
    return kept
