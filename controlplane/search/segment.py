"""Pure: a segment, which is some events of one organisation in the order of time, as one column per field.

Segments are made of what arrives together and joined as they pile up, so that many small ones never have to
be looked at. What a segment says of its paths and queries it says twice: in columns, and as a text with a
line for each event, in which words and parts of paths are looked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from typing import Final
from urllib.parse import unquote

from controlplane.search.column import Column, Picker, in_order, join, make_column, pick
from controlplane.search.document import Value
from controlplane.search.query import FIELDS, WORD, WORD_CHARS, Kind, fold

COLUMNS: Final = tuple(field for field in FIELDS.values() if field.kind != "time" and field.name != "org")
# "/v1.0/users/" and "/v1.0/users/{id}/" of "/v1.0/users/{id}/messages"
FOLDERS: Final = {"folder2": 2, "folder3": 3}
KINDS: Final[dict[str, Kind]] = {
    **{field.name: field.kind for field in COLUMNS},
    **dict.fromkeys(FOLDERS, "text"),
}
# Nearly every event has a value of its own: a dictionary would hold them all.
_UNIQUE: Final = frozenset({"id", "request", "clientrequest", "parent", "upstreamrequest", "trace"})

ABSENT: Final = "\0"  # in a line, for a path or query that the event lacks
PART: Final = "\x1f"  # between a line's path and query; those decoded follow where they differ


@dataclass(frozen=True, slots=True)
class Segment:
    times: array[int]  # ms, ascending; of one ms by position
    positions: array[int]
    columns: dict[str, Column]
    text: bytes
    lines: array[int]  # where each line of the text begins, and where the text ends

    @property
    def count(self) -> int:
        return len(self.times)


def make_segment(times: array[int], positions: array[int], fields: Mapping[str, Sequence[Value]]) -> Segment:
    """Of events in the order of time; `fields` has every column's values but the folders'."""
    paths = fields["path"]
    values: dict[str, Sequence[Value]] = dict(fields)
    values.update(zip(FOLDERS, _folders(paths), strict=True))
    columns: dict[str, Column] = {}
    for name, kind in KINDS.items():
        if name == "request" and values[name] == values["id"]:  # as they are but for parts of a $batch
            columns[name] = columns["id"]
        else:
            columns[name] = make_column(kind, values[name], unique=name in _UNIQUE)
    text, lines = _text(paths, fields["query"])
    return Segment(times, positions, columns, text, lines)


def _folders(paths: Sequence[Value]) -> tuple[list[str | None], list[str | None]]:
    """Of each path those of both levels."""
    texts = ["" if path is None else str(path) for path in paths]
    folded = fold("\n".join(texts)).split("\n")
    if len(folded) != len(texts):  # a path has a line feed of its own
        folded = list(map(fold, texts))
    upper = [
        path[: end + 1] if (end := path.find("/", path.find("/", 1) + 1)) > 0 and path[0] == "/" else None
        for path in folded
    ]
    lower = [
        path[: end + 1] if above and (end := path.find("/", len(above))) > 0 else None
        for path, above in zip(folded, upper, strict=True)
    ]
    return upper, lower


def folder(beginning: str, level: int) -> str | None:
    """The folder of this level in which every path lies that begins so, if there is one."""
    return _folders([beginning])[level - 2][0]


def _text(paths: Sequence[Value], queries: Sequence[Value]) -> tuple[bytes, array[int]]:
    both = list(zip(paths, queries, strict=True))
    lines = [
        f"{ABSENT if path is None else path}{PART}{ABSENT if query is None else query}"
        for path, query in both
    ]
    joined = "\n".join(lines)
    absent = paths.count(None) + queries.count(None)
    odd = (joined.count("\n"), joined.count(PART), joined.count(ABSENT)) != (len(both) - 1, len(both), absent)
    if odd:
        lines = [_line(*fields) for fields in both]
    elif "%" in joined:
        lines = [_with_decoded(line) if "%" in line else line for line in lines]
    if odd or "%" in joined:
        joined = "\n".join(lines)
    encoded: Iterable[str | bytes] = lines if joined.isascii() else [line.encode() for line in lines]
    return joined.encode().lower() + b"\n", array("I", _begins(encoded))


def _begins(lines: Iterable[str | bytes]) -> Iterable[int]:
    return accumulate(map((1).__add__, map(len, lines)), initial=0)


def _line(path: Value, query: Value) -> str:
    line = PART.join([ABSENT if value is None else on_one_line(str(value)) for value in (path, query)])
    return _with_decoded(line) if "%" in line else line


def _with_decoded(line: str) -> str:
    path, _, query = line.partition(PART)
    return f"{line}{PART}{_decoded(path) if '%' in path else path}{PART}{_decoded(query)}"


@lru_cache(4096)
def _decoded(text: str) -> str:
    return text if text == ABSENT else on_one_line(unquote(text))


def on_one_line(text: str) -> str:
    return text.replace("\n", " ").replace(PART, " ").replace(ABSENT, " ")


_NO_WORD: Final = bytes(byte for byte in range(128) if not WORD.match(chr(byte)))
_SPACED: Final = bytes.maketrans(_NO_WORD, b" " * len(_NO_WORD))


def vocabulary(text: bytes) -> set[bytes]:
    """The words of a text, long ones by their beginnings."""
    if text.isascii():
        return {word[:WORD_CHARS] for word in set(text.translate(_SPACED).split())}
    return {word[:WORD_CHARS].encode() for word in set(WORD.findall(text.decode()))}


# -- joining and cutting ---------------------------------------------------------------------------


def join_segments(segments: Sequence[Segment]) -> Segment:
    """One of all their events."""
    bases = accumulate((len(segment.text) for segment in segments[:-1]), initial=0)
    lines = array("I")
    for segment, base in zip(segments, bases, strict=True):
        lines.extend(at + base for at in segment.lines[:-1])
    joined = Segment(
        _chained(segment.times for segment in segments),
        _chained(segment.positions for segment in segments),
        {name: join(kind, [segment.columns[name] for segment in segments]) for name, kind in KINDS.items()},
        text := b"".join(segment.text for segment in segments),
        array("I", [*lines, len(text)]),
    )
    return _sorted(joined)


def _chained(arrays: Iterable[array[int]]) -> array[int]:
    return array("q", chain.from_iterable(arrays))


def _sorted(segment: Segment) -> Segment:
    keys = list(zip(segment.times, segment.positions, strict=True))
    order = sorted(range(segment.count), key=keys.__getitem__)
    if order == list(range(segment.count)):
        return segment
    return _picked(segment, in_order(order))


def _picked(segment: Segment, picked: Picker) -> Segment:
    text = segment.text.split(b"\n")
    lines = picked(text)
    return Segment(
        array("q", picked(segment.times)),
        array("q", picked(segment.positions)),
        {name: pick(column, picked) for name, column in segment.columns.items()},
        b"\n".join((*lines, b"")),
        array("I", _begins(lines)),
    )


def only(segment: Segment, places: Sequence[int]) -> Segment:
    """The segment with the events at these places, in order; one at least."""
    first, last = places[0], places[-1]
    if last - first + 1 == len(places):  # as retention leaves nearly every segment
        return _part(segment, slice(first, last + 1))
    return _picked(segment, in_order(places))


def _part(segment: Segment, cut: slice) -> Segment:
    start, end = segment.lines[cut.start], segment.lines[cut.stop]
    return Segment(
        segment.times[cut],
        segment.positions[cut],
        {name: pick(column, cut) for name, column in segment.columns.items()},
        segment.text[start:end],
        array("I", [at - start for at in segment.lines[cut.start : cut.stop + 1]]),
    )
