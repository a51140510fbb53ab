"""Events in the form of the embedded search index: a row of numbers and a line of tokens for each event.

The module `entries` does no input or output.

Most fields of an event have few distinct values. Each value of a field with few values has a code, which is a
number from a dictionary. Rows hold codes. For fields with many values, the index has search tokens by which a
search finds the values. A search token that is not a word of the event's text begins with a mark that no word
contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from math import log2
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from controlplane.search.document import rules_in
from controlplane.search.known_event import attribute_of
from controlplane.search.predicates import value_holds
from controlplane.search.query import FIELDS, TEXT_FIELDS, WORD, Field, FieldTerm, Match, fold

FOLDER: Final = "folder"  # coded column in addition to those of fields: the beginning of the path
CODED: Final = (
    "proxy", "app", "client", "ip", "method", "status", "verdict", "rule", "logged", "transform", "ruleid",
    "upstream", "reason", "ruleset", "redirect", "shadow", "shadowrule", "shadowruleset", "implausible",
    "credential", "problem", FOLDER,
)  # fmt: skip
# Codes without a token. The deciding rule is one of the rules. The words of a folder are those of the path.
# The other two fields have few rare values.
TOKENLESS: Final = frozenset({"ruleid", "upstream", "ruleset", FOLDER})
# Numbers have no token, except durations: these have one for each half octave of milliseconds.
NUMBERS: Final = ("duration", "upstreamtime", "requestbytes", "responsebytes", "seq")
# Fields with about as many distinct values as events. A row has one bit for each, which says whether it has a
# value.
LONG: Final = ("query", "request", "clientrequest", "parent", "upstreamrequest", "trace", "implied")
COLUMNS: Final = ("org", "time", "path", "present", *CODED, *NUMBERS)  # columns after the key

TOKENIZER: Final = "ascii tokenchars '-_'"  # lowers A-Z, and treats every non-ASCII character as a letter
_MARK: Final = "§"
_MOST_ASKED: Final = 256  # matches of filters that a dictionary caches
_LETTERS: Final = dict(zip(LONG, "qrcputi", strict=True))
# length of a token; every event has such an id, and the ids are random
_TOKEN_CHARS: Final = {"upstreamrequest": 12}
_MOST_TOKEN_CHARS: Final = 40
MOST_OCTAVES: Final = 34  # number of half octaves: 2**17 ms and more have one token
_NO_TOKEN_CHAR: Final = re.compile(r"[^\w\-]")
_FOLDER: Final = re.compile(r"/?[^/]*/[^/(]*[/(]?")
_READ: Final = tuple(
    (each, attribute_of(each.event_key)) for each in FIELDS.values() if each.name not in ("time", "org")
)


@dataclass(slots=True)
class Arrived:
    """Events that the embedded search index receives.

    The events are either all KnownEvent-like objects (same attributes), or all objects of one other class.
    """

    org_ids: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    entries: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entries:
    """Batch of events for the search index: columns of values, and a line of search tokens per event."""

    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[str]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        return zip(*(self.columns[name] for name in COLUMNS), strict=True)


class Codes:
    """Dictionary of codes for the field values of some events."""

    def __init__(self) -> None:
        self._by_field: dict[str, dict[Any, int | None]] = {name: {None: None} for name in CODED}
        self._texts: dict[int | None, str] = {None: ""}
        self._values: dict[int, Any] = {}
        # Earlier lookups: the number of values that were compared, and the codes of those that were accepted.
        self._matching: dict[tuple[str, tuple[Match, ...]], tuple[int, list[int]]] = {}
        self.newest = 0

    def add(self, code: int, name: str, value: Any) -> None:
        self._by_field[name][value] = code
        self._values[code] = value
        self._texts[code] = _text_of_code(code, name, value)
        self.newest = max(self.newest, code)

    def of(self, name: str, values: Sequence[Any]) -> list[int | None]:
        """Return the code of each given field value: a number that stands for the value in the search index.

        Field values that have no code yet get the next free codes.
        """
        known = self._by_field[name]
        for value in dict.fromkeys(values):
            if value not in known:
                self.add(self.newest + 1, name, value)
        return [known[value] for value in values]

    def texts(self, codes: Sequence[int | None]) -> list[str]:
        """Return, for each code, the search token of the events that have this code."""
        return [self._texts[code] for code in codes]

    def value(self, code: int) -> Any:
        return self._values[code]

    def matching(self, term: FieldTerm) -> list[int]:
        """Return the codes of the field values that the term accepts, as if the term were not negated."""
        known = self._by_field[term.field.name]
        asked = term.field.name, term.matches
        looked_at, found = self._matching.get(asked, (0, []))
        if looked_at < len(known):
            new = islice(known.items(), looked_at, None)
            found = [*found, *(code for value, code in new if code and value_holds(term, value))]
            if len(self._matching) == _MOST_ASKED:
                self._matching.clear()
            self._matching[asked] = len(known), found
        return found

    def folders(self) -> Iterator[tuple[str, int]]:
        return ((name, code) for name, code in self._by_field[FOLDER].items() if code is not None)

    def after(self, code: int) -> Iterator[tuple[int, str, Any]]:
        """Yield code, field and value of each dictionary entry whose code is higher than `code`."""
        for name, known in self._by_field.items():
            yield from ((each, name, value) for value, each in known.items() if each and each > code)


def _text_of_code(code: int, name: str, value: Any) -> str:
    texts = value if isinstance(value, tuple) else (str(value),)
    words = " ".join(map(_searchable, texts)) if name in TEXT_FIELDS else ""
    return words if name in TOKENLESS else f"{code_token(code)} {words}"


def entries_of(arrived: Arrived, orgs: Sequence[int], codes: Codes) -> Entries:
    columns_of_entries = _columns(arrived.entries)
    values = {each.name: _values(columns_of_entries[attribute], each) for each, attribute in _READ}
    values["rule"] = list(map(_rules_in, values["rule"], values["ruleid"]))
    values[FOLDER] = [None if path is None else folder(path) for path in values["path"]]
    columns: dict[str, Sequence[Any]] = {name: codes.of(name, values[name]) for name in CODED}
    columns |= {name: values[name] for name in NUMBERS}
    columns["org"] = orgs
    columns["time"] = [None if 0 <= ms <= MOST_KEY_MS else ms for ms in arrived.times]
    columns["path"] = [None if path is None else path_digest(path) for path in values["path"]]
    columns["present"] = _present(values)
    # Most requests have the id of their event, which the store's own index finds.
    values["request"] = [
        None if asked == own else asked for asked, own in zip(values["request"], values["id"], strict=True)
    ]
    tokens = [codes.texts(codes_of) for name, codes_of in columns.items() if name in _WITH_TEXT]
    tokens += [_long_tokens(name, values[name]) for name in LONG[1:] if any(values[name])]
    tokens.append([_duration_token(value) for value in values["duration"]])
    decoded = map(_decoded, values["path"]), map(_decoded_query, values["query"])
    return Entries(columns, [*map(" ".join, zip(map(org_token, orgs), *decoded, *tokens, strict=True))])


_WITH_TEXT: Final = (frozenset(CODED) - TOKENLESS) | (frozenset(CODED) & frozenset(TEXT_FIELDS))

MOST_KEY_MS: Final = (
    1 << 43
) - 1  # latest time of a key, in the year 2248; later events are ordered as if of this time


_rules_in: Final = lru_cache(4096)(rules_in)


def _columns(entries: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Return the values of the events as one list for each attribute of the events."""
    values = zip(*map(msgspec.structs.astuple, entries), strict=True)
    return dict(zip(type(entries[0]).__struct_fields__, values, strict=True))


def _values(values: Sequence[Any], of: Field) -> Sequence[Any]:
    if of.kind == "texts" and () in values:
        return [value or None for value in values]
    if of.kind == "text" and int in set(map(type, values)):
        return [str(value) if type(value) is int else value for value in values]
    return values


def _present(values: Mapping[str, Sequence[Any]]) -> list[int]:
    present = [0] * len(values["id"])
    for bit, name in enumerate(LONG):
        if any(value is not None for value in values[name]):
            present = [
                bits | (value is not None) << bit for bits, value in zip(present, values[name], strict=True)
            ]
    return present


def _long_tokens(name: str, values: Sequence[str | None]) -> list[str]:
    return ["" if value is None else long_token(name, value) for value in values]


def _searchable(text: str) -> str:
    """Return a text whose FTS5 tokens are the words of the given text."""
    return text if text.isascii() and text.isprintable() else " ".join(WORD.findall(text))


def _decoded(text: str | None) -> str:
    """Return a path or query with percent-encoding decoded, for free text search."""
    return "" if text is None else _searchable(unquote(text) if "%" in text else text)


_decoded_query: Final = lru_cache(4096)(_decoded)


def folder(path: str) -> str:
    """Return a case-folded path up to the end of its second segment, including a final `/` or `(`."""
    found = _FOLDER.match(path)
    return fold(found[0] if found else path)


def path_digest(path: str) -> int:
    """Return the 48-bit digest of a path. The index compares and counts paths by their digests."""
    return int.from_bytes(blake2b(fold(path).encode(), digest_size=6).digest(), "big")


def half_octave(duration: float) -> int:
    """Return the number of the logarithmic bucket (two buckets per doubling) of a duration in milliseconds.

    Bucket 0 contains all durations below 1.4 ms. A longer duration never has a lower bucket number.
    """
    return min(int(2 * log2(duration)), MOST_OCTAVES) if duration > 1 else 0


def octave_token(number: int) -> str:
    return f"{_MARK}d{number}"


_OCTAVE_TOKENS: Final = tuple(map(octave_token, range(MOST_OCTAVES + 1)))


def _duration_token(duration: float | None) -> str:
    return "" if duration is None else _OCTAVE_TOKENS[half_octave(duration)]


def org_token(org: int) -> str:
    return f"{_MARK}o{org}"


def code_token(code: int) -> str:
    return f"{_MARK}{code}"


def long_token(name: str, text: str) -> str:
    """Return the search token for a value of an event field that the table LONG lists.

    The search token of a long value contains only the beginning of the value.
    """
    beginning = text[: token_chars(name)]
    return f"{_MARK}{_LETTERS[name]}{_NO_TOKEN_CHAR.sub('_', beginning)}"


def token_chars(name: str) -> int:
    """Return the maximum number of characters that the token of a field takes from a value of the field."""
    return _TOKEN_CHARS.get(name, _MOST_TOKEN_CHARS)
