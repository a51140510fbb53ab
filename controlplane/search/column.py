"""Pure: one field of many events as bytes that a filter is asked of all at once.

Up to 256 different values: a dictionary and one byte for each event. Up to 2048: a dictionary and two bytes.
More: two bytes of each text's checksum, or the three highest bytes of each number as a double; these find
every match and may find more, so that whoever asks has to look. The same byte of all events lies together (a
plane), since `bytes.translate` and arithmetic on large integers then evaluate a segment at the speed of
memory."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import nan
from operator import itemgetter
from typing import Any, Final, Literal
from zlib import crc32

import orjson

from controlplane.search.document import Value
from controlplane.search.query import Between, Exactly, FieldTerm, HasTerm, Kind

NARROW: Final = 256
WIDE: Final = 2048
_SAMPLE: Final = 1024
_MOST_OF_SAMPLE: Final = 900  # values, where there are more than WIDE of them in all, or soon will be
# High byte first. A present text's checksum has its highest bit set; no finite double begins so.
_ABSENT: Final = {"checksums": 0x0000, "magnitudes": 0x7FF800}
_MOST_MAGNITUDE: Final = b"\x7f\xf7\xff"
_RARE: Final = 100  # up to one event of so many are looked at one by one instead of evaluating all of them
_WIDTHS: Final = {"checksums": 2, "magnitudes": 3}  # bytes of each value
_PRESENT: Final = bytes(byte | 0x80 for byte in range(256))

Picker = Callable[[Sequence[Any]], tuple[Any, ...]]
Form = Literal["values", "checksums", "magnitudes", "unknown"]
_FORMS: Final[dict[int, Form]] = {
    ord(form[0]): form for form in ("values", "checksums", "magnitudes", "unknown")
}


@dataclass(frozen=True, slots=True)
class Column:
    """`planes` are the lowest bytes first; a dictionary of one value needs none."""

    form: Form
    count: int
    planes: tuple[bytes, ...]
    dictionary: bytes = b""  # JSON array

    @property
    def values(self) -> list[Value]:
        return [tuple(value) if isinstance(value, list) else value for value in orjson.loads(self.dictionary)]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One byte for each event, 1 where it may match, as a number; and whether that is certain."""

    mask: int
    certain: bool


# -- making ----------------------------------------------------------------------------------------


def make_column(kind: Kind, values: Sequence[Value], *, unique: bool = False) -> Column:
    """`unique`: nearly every event is known to have a value of its own."""
    if unique and values.count(values[0]) < len(values):
        return _abstract(kind, values)
    sample = values[:_SAMPLE]
    if len(values) > _SAMPLE and len(set(sample)) > _MOST_OF_SAMPLE:
        return _abstract(kind, values)
    numbers = _Numbers()
    codes = array("I", map(numbers.__getitem__, values))
    if len(numbers) > WIDE:
        return _abstract(kind, values)
    return Column("values", len(values), _planes(codes, _width(len(numbers))), orjson.dumps(list(numbers)))


class _Numbers(dict[Value, int]):
    """Each new value has the next number."""

    def __missing__(self, value: Value) -> int:
        number = self[value] = len(self)
        return number


def _width(values: int) -> int:
    return 0 if values == 1 else 1 if values <= NARROW else 2


def _planes(codes: array[int], width: int) -> tuple[bytes, ...]:
    """The lowest bytes of codes of four, the lowest first."""
    if sys.byteorder == "big":
        codes.byteswap()
    data = codes.tobytes()
    return tuple(data[byte::4] for byte in range(width))


def _abstract(kind: Kind, values: Sequence[Value]) -> Column:
    if kind == "text":
        return Column("checksums", len(values), _checksums(values))
    if kind == "number":
        return Column("magnitudes", len(values), _magnitudes(values))
    return Column("unknown", len(values), ())


def _checksums(values: Sequence[Value]) -> tuple[bytes, bytes]:
    texts: Sequence[Any] = values
    try:
        joined = "\n".join(texts)
    except TypeError:  # some are absent, or numbers
        texts = ["" if value is None else str(value) for value in values]
        joined = "\n".join(texts)
    folded = joined.encode().lower().split(b"\n")
    if len(folded) != len(values):  # a text has a line feed of its own
        folded = [text.encode().lower() for text in texts]
    low, high = map(bytearray, _planes(array("I", map(crc32, folded)), 2))
    high = high.translate(_PRESENT)
    if None in values:
        for ordinal, value in enumerate(values):
            if value is None:
                low[ordinal] = high[ordinal] = 0
    return bytes(low), bytes(high)


def _magnitudes(values: Sequence[Value]) -> tuple[bytes, bytes, bytes]:
    given: Sequence[Any] = values
    if None in values:
        given = [nan if value is None else value for value in values]
    numbers = array("d", given)
    if sys.byteorder == "big":
        numbers.byteswap()
    data = numbers.tobytes()
    return data[5::8], data[6::8], data[7::8]


def _checksum(text: str) -> int:
    low, high = _checksums((text,))
    return high[0] << 8 | low[0]


def join(kind: Kind, columns: Sequence[Column]) -> Column:
    """The columns one after the other."""
    count = sum(column.count for column in columns)
    if all(column.form == "values" for column in columns):
        numbers: dict[Value, int] = {}
        recoded = [[numbers.setdefault(value, len(numbers)) for value in column.values] for column in columns]
        if len(numbers) <= WIDE:
            return _joined_values(columns, recoded, list(numbers), count)
    if kind in ("texts", "time"):
        return Column("unknown", count, ())
    same = [_as_abstract(kind, column) for column in columns]
    planes = zip(*(column.planes for column in same), strict=True)
    return Column(same[0].form, count, tuple(map(b"".join, planes)))


def _joined_values(
    columns: Sequence[Column], recoded: Sequence[list[int]], values: list[Value], count: int
) -> Column:
    dictionary = orjson.dumps(values)
    if len(values) == 1:
        return Column("values", count, (), dictionary)
    planes = [
        _recoded(column, new, _width(len(values))) for column, new in zip(columns, recoded, strict=True)
    ]
    return Column("values", count, tuple(b"".join(parts) for parts in zip(*planes, strict=True)), dictionary)


def _recoded(column: Column, new: list[int], width: int) -> tuple[bytes, ...]:
    """The planes with code n become what `new[n]` is."""
    if len(column.planes) == 2:
        return _planes(array("I", map(new.__getitem__, _wide(*column.planes))), width)
    codes = column.planes[0] if column.planes else bytes(column.count)
    tables = (bytes(code >> shift & 255 for code in new) for shift in range(0, 8 * width, 8))
    return tuple(codes.translate(table.ljust(256, b"\0")) for table in tables)


def _wide(low: bytes, high: bytes) -> array[int]:
    pairs = bytearray(2 * len(low))
    pairs[0::2], pairs[1::2] = low, high
    codes = array("H", bytes(pairs))
    if sys.byteorder == "big":
        codes.byteswap()
    return codes


def _as_abstract(kind: Kind, column: Column) -> Column:
    if column.form != "values":
        return column
    known = _abstract(kind, column.values)
    new = [int.from_bytes(code, "little") for code in zip(*known.planes, strict=True)]
    return Column(known.form, column.count, _recoded(column, new, _WIDTHS[known.form]))


def pick(column: Column, ordinals: slice | Picker) -> Column:
    """Some of the events: a slice of them, or all of them in another order."""
    if isinstance(ordinals, slice):
        count = len(range(*ordinals.indices(column.count)))
        planes = tuple(plane[ordinals] for plane in column.planes)
    else:
        count, planes = column.count, tuple(bytes(ordinals(plane)) for plane in column.planes)
    return Column(column.form, count, planes, column.dictionary)


def in_order(order: Sequence[int]) -> Picker:
    """Of two events at least."""
    return itemgetter(*order)


# -- on disk ---------------------------------------------------------------------------------------


def encode(column: Column) -> bytes:
    head = b"%c%d %d\n" % (ord(column.form[0]), column.count, len(column.dictionary))
    return b"".join((head, column.dictionary, *column.planes))


def decode(data: bytes) -> Column:
    start = data.index(b"\n") + 1
    count, length = map(int, data[1 : start - 1].split())
    at = start + length
    planes = tuple(data[begin : begin + count] for begin in range(at, len(data), count))
    return Column(_FORMS[data[0]], count, planes, data[start:at])


# -- evaluating ---------------------------------------------------------------------------------------


@lru_cache(16)
def full(count: int) -> int:
    """The mask of every event."""
    return int.from_bytes(b"\1" * count, "little")


def evaluate(column: Column, wanted: Callable[[Value], bool]) -> Evaluated | None:
    """By a predicate on values, None where the column has none."""
    if column.form != "values":
        return None
    codes = [code for code, value in enumerate(column.values) if wanted(value)]
    return Evaluated(_of_codes(column, codes), certain=True)


def evaluate_exactly(column: Column, wanted: Collection[str]) -> Evaluated | None:
    """By whole texts, folded; None where the column has no values."""
    if column.form != "values":
        return None
    folded = column.dictionary.lower()  # as JSON text, in which no escape has a letter of another case
    if not any(orjson.dumps(text)[1:-1] in folded for text in wanted):
        return Evaluated(0, certain=True)
    values = orjson.loads(folded)
    codes = {code for text in wanted for code in (*_places(values, text), *_places(values, _as_number(text)))}
    return Evaluated(_of_codes(column, sorted(codes)), certain=True)


def _places(values: list[Any], wanted: str | int | None) -> Iterator[int]:
    at = -1
    while wanted is not None:
        try:
            at = values.index(wanted, at + 1)
        except ValueError:
            return
        yield at


def _as_number(text: str) -> int | None:
    """A version may stand in an event as a number and is asked for as a text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def evaluate_abstract(column: Column, term: FieldTerm | HasTerm) -> Evaluated | None:
    """By what is known of the values, None if that says nothing about this term."""
    if column.form == "unknown":
        return None
    if isinstance(term, HasTerm):
        return Evaluated(full(column.count) ^ _of_absent(column), certain=True)
    mask = 0
    for match in term.matches:
        if isinstance(match, Exactly) and column.form == "checksums":
            mask |= _of_codes(column, [_checksum(match.text)])
        elif isinstance(match, Between) and column.form == "magnitudes":
            mask |= _of_span(column, match)
        else:
            return None
    return Evaluated(mask, certain=False)


def _of_absent(column: Column) -> int:
    absent = _ABSENT[column.form].to_bytes(len(column.planes), "big")
    return _within(column.planes[::-1], absent, absent)


def _of_span(column: Column, match: Between) -> int:
    """Doubles that are not negative stand in the order of their bytes; the others are taken as they come."""
    planes = column.planes[::-1]
    mask = _mask(planes[0], range(0x80, 0x100)) if match.low is None or match.low <= 0 else 0  # -0.0 too
    if match.high is not None and match.high < 0:
        return mask
    first = b"\0\0\0" if match.low is None or match.low <= 0 else b"".join(_magnitudes((match.low,))[::-1])
    last = _MOST_MAGNITUDE if match.high is None else b"".join(_magnitudes((match.high,))[::-1])
    return mask | _within(planes, first, last)


def _within(planes: Sequence[bytes], first: bytes, last: bytes) -> int:
    """The events whose bytes, the highest first, lie between these, both included."""
    plane, *lower = planes
    if not lower:
        return _mask(plane, range(first[0], last[0] + 1))
    at_first = _mask(plane, first[:1])
    if first[0] == last[0]:
        return at_first and at_first & _within(lower, first[1:], last[1:])
    mask = _mask(plane, range(first[0] + 1, last[0]))
    if at_first:
        mask |= at_first & _within(lower, first[1:], b"\xff" * len(lower))
    if at_last := _mask(plane, last[:1]):
        mask |= at_last & _within(lower, bytes(len(lower)), last[1:])
    return mask


def _of_codes(column: Column, codes: Sequence[int]) -> int:
    if not codes:
        return 0
    if not column.planes:
        return full(column.count)
    if len(column.planes) == 1:
        return _mask(column.planes[0], codes)
    low, high = column.planes
    if len(codes) == 1:
        return _of_code(low, high, codes[0])
    by_high: dict[int, list[int]] = {}
    for code in codes:
        by_high.setdefault(code >> 8, []).append(code & 255)
    mask = 0
    for upper, lowers in by_high.items():
        mask |= _mask(high, [upper]) & _mask(low, lowers)
    return mask


def _of_code(low: bytes, high: bytes, code: int) -> int:
    """Led by the low byte, which few events share, unless they turn out to be many."""
    upper, lower = divmod(code, 256)
    flags = bytearray(len(low))
    at = low.find(lower)
    for _ in range(len(low) // _RARE):
        if at < 0:
            return int.from_bytes(flags, "little")
        flags[at] = high[at] == upper
        at = low.find(lower, at + 1)
    return _mask(high, [upper]) & _mask(low, [lower])


def _mask(plane: bytes, codes: Iterable[int]) -> int:
    table = bytearray(256)
    for code in codes:
        table[code] = 1
    flags = plane.translate(table)
    return int.from_bytes(flags, "little") if 1 in flags else 0  # a number of so many bytes takes its time
