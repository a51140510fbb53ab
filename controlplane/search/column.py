"""Pure: one field of many events as bytes that a filter is asked of all at once.

Up to 256 different values: a dictionary and one byte for each event. Up to 2048: a dictionary and two bytes.
More: two bytes of each text's checksum, or the two highest bytes of each number as a double; these find every
match and may find more, so that whoever asks has to look. The same byte of all events lies together (a
plane), since `bytes.translate` and arithmetic on large integers then judge a segment at the speed of memory.
"""

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
_SAMPLE: Final = 4096
# High byte first. A present text's checksum has its highest bit set; no finite double begins so.
_ABSENT: Final = {"checksums": 0x0000, "magnitudes": 0x7FF8}
_PRESENT: Final = bytes(byte | 0x80 for byte in range(256))

Picker = Callable[[Sequence[Any]], tuple[Any, ...]]
Form = Literal["values", "checksums", "magnitudes", "unknown"]
_FORMS: Final[dict[int, Form]] = {
    ord(form[0]): form for form in ("values", "checksums", "magnitudes", "unknown")
}


@dataclass(frozen=True, slots=True)
class Column:
    """`planes` are the low and then the high bytes; a dictionary of one value needs none."""

    form: Form
    count: int
    planes: tuple[bytes, ...]
    dictionary: bytes = b""  # JSON array

    @property
    def values(self) -> list[Value]:
        return [tuple(value) if isinstance(value, list) else value for value in orjson.loads(self.dictionary)]


@dataclass(frozen=True, slots=True)
class Judged:
    """One byte for each event, 1 where it may match, as a number; and whether that is certain."""

    mask: int
    certain: bool


# -- making ----------------------------------------------------------------------------------------


def make_column(kind: Kind, values: Sequence[Value], *, unique: bool = False) -> Column:
    """`unique`: nearly every event is known to have a value of its own."""
    if unique and values.count(values[0]) < len(values):
        return _abstract(kind, values)
    distinct = dict.fromkeys(values[:_SAMPLE])
    if len(distinct) <= WIDE and len(values) > _SAMPLE:
        distinct = dict.fromkeys(values)
    if len(distinct) > WIDE:
        return _abstract(kind, values)
    numbers = dict(zip(distinct, range(len(distinct)), strict=True))
    dictionary = orjson.dumps(list(distinct))
    if len(distinct) == 1:
        return Column("values", len(values), (), dictionary)
    codes = map(numbers.__getitem__, values)
    return Column("values", len(values), _planes(codes, len(distinct) > NARROW), dictionary)


def _planes(codes: Iterable[int], wide: bool) -> tuple[bytes, ...]:
    if not wide:
        return (bytes(codes),)
    listed = list(codes)
    return bytes([code & 255 for code in listed]), bytes([code >> 8 for code in listed])


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
    sums = array("I", map(crc32, folded))
    if sys.byteorder == "big":
        sums.byteswap()
    data = sums.tobytes()
    low, high = bytearray(data[0::4]), bytearray(data[1::4].translate(_PRESENT))
    if None in values:
        for ordinal, value in enumerate(values):
            if value is None:
                low[ordinal] = high[ordinal] = 0
    return bytes(low), bytes(high)


def _magnitudes(values: Sequence[Value]) -> tuple[bytes, bytes]:
    numbers = array("d", [value if isinstance(value, int | float) else nan for value in values])
    if sys.byteorder == "big":
        numbers.byteswap()
    data = numbers.tobytes()
    return data[6::8], data[7::8]


def _code(column: Column, value: Value) -> int:
    """What an abstract column has for a value."""
    low, high = (_checksums if column.form == "checksums" else _magnitudes)((value,))
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
    low, high = zip(*(column.planes for column in same), strict=True)
    return Column(same[0].form, count, (b"".join(low), b"".join(high)))


def _joined_values(
    columns: Sequence[Column], recoded: Sequence[list[int]], values: list[Value], count: int
) -> Column:
    dictionary = orjson.dumps(values)
    if len(values) == 1:
        return Column("values", count, (), dictionary)
    planes = [
        _recoded(column, new, len(values) > NARROW) for column, new in zip(columns, recoded, strict=True)
    ]
    return Column("values", count, tuple(b"".join(parts) for parts in zip(*planes, strict=True)), dictionary)


def _recoded(column: Column, new: list[int], wide: bool) -> tuple[bytes, ...]:
    """The planes with code n become what `new[n]` is."""
    if len(column.planes) == 2:
        low, high = column.planes
        return _planes((new[a | b << 8] for a, b in zip(low, high, strict=True)), wide)
    codes = column.planes[0] if column.planes else bytes(column.count)
    low_table = bytes(code & 255 for code in new).ljust(256, b"\0")
    if not wide:
        return (codes.translate(low_table),)
    return codes.translate(low_table), codes.translate(bytes(code >> 8 for code in new).ljust(256, b"\0"))


def _as_abstract(kind: Kind, column: Column) -> Column:
    if column.form != "values":
        return column
    known = _abstract(kind, column.values)
    new = [high << 8 | low for low, high in zip(*known.planes, strict=True)]
    return Column(known.form, column.count, _recoded(column, new, wide=True))


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


# -- judging ---------------------------------------------------------------------------------------


@lru_cache(16)
def full(count: int) -> int:
    """The mask of every event."""
    return int.from_bytes(b"\1" * count, "little")


def judge(column: Column, wanted: Callable[[Value], bool]) -> Judged | None:
    """By a predicate on values, None where the column has none."""
    if column.form != "values":
        return None
    codes = [code for code, value in enumerate(column.values) if wanted(value)]
    return Judged(_of_codes(column, codes), certain=True)


def judge_exactly(column: Column, wanted: Collection[str]) -> Judged | None:
    """By whole texts, folded; None where the column has no values."""
    if column.form != "values":
        return None
    folded = column.dictionary.lower()  # as JSON text, in which no escape has a letter of another case
    if not any(orjson.dumps(text)[1:-1] in folded for text in wanted):
        return Judged(0, certain=True)
    values = orjson.loads(folded)
    codes = {code for text in wanted for code in (*_places(values, text), *_places(values, _as_number(text)))}
    return Judged(_of_codes(column, sorted(codes)), certain=True)


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


def judge_abstract(column: Column, term: FieldTerm | HasTerm) -> Judged | None:
    """By what is known of the values, None if that says nothing about this term."""
    if column.form == "unknown":
        return None
    if isinstance(term, HasTerm):
        return Judged(full(column.count) ^ _of_codes(column, [_ABSENT[column.form]]), certain=True)
    mask = 0
    for match in term.matches:
        if isinstance(match, Exactly) and column.form == "checksums":
            mask |= _of_codes(column, [_code(column, match.text)])
        elif isinstance(match, Between) and column.form == "magnitudes":
            mask |= _of_span(column, match)
        else:
            return None
    return Judged(mask, certain=False)


def _of_span(column: Column, match: Between) -> int:
    """Doubles that are not negative stand in the order of their bytes; the others are taken as they come."""
    low, high = column.planes
    mask = _mask(high, range(0x80, 0x100)) if match.low is None or match.low <= 0 else 0  # -0.0 too
    if match.high is not None and match.high < 0:
        return mask
    first = 0 if match.low is None or match.low <= 0 else _code(column, match.low)
    last = _ABSENT["magnitudes"] - 1 if match.high is None else _code(column, match.high)
    if first >> 8 == last >> 8:
        return mask | _mask(high, [first >> 8]) & _mask(low, range(first & 255, (last & 255) + 1))
    mask |= _mask(high, range((first >> 8) + 1, last >> 8))
    mask |= _mask(high, [first >> 8]) & _mask(low, range(first & 255, 256))
    return mask | _mask(high, [last >> 8]) & _mask(low, range((last & 255) + 1))


def _of_codes(column: Column, codes: Sequence[int]) -> int:
    if not codes:
        return 0
    if not column.planes:
        return full(column.count)
    if len(column.planes) == 1:
        return _mask(column.planes[0], codes)
    low, high = column.planes
    by_high: dict[int, list[int]] = {}
    for code in codes:
        by_high.setdefault(code >> 8, []).append(code & 255)
    mask = 0
    for upper, lowers in by_high.items():
        mask |= _mask(high, [upper]) & _mask(low, lowers)
    return mask


def _mask(plane: bytes, codes: Iterable[int]) -> int:
    table = bytearray(256)
    for code in codes:
        table[code] = 1
    return int.from_bytes(plane.translate(table), "little")
