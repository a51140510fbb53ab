"""Translates the terms of a search filter into FTS5 tokens and into SQL conditions on the index rows.

The functions in this module do no input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard
from urllib.parse import unquote

from controlplane.search.entries import (
    CODED,
    LONG,
    MOST_KEY_MS,
    MOST_OCTAVES,
    NUMBERS,
    TOKENLESS,
    Codes,
    code_token,
    half_octave,
    long_token,
    octave_token,
    org_token,
    path_digest,
)
from controlplane.search.parts import among, time_column
from controlplane.search.predicates import value_holds
from controlplane.search.query import (
    FIELDS,
    WORD,
    WORD_CHARS,
    Between,
    Exactly,
    Field,
    FieldTerm,
    HasTerm,
    Like,
    Match,
    Term,
    TextTerm,
    fold,
)
from controlplane.search.sql import EVERYTHING, Condition, bounded, one_of

_MOST_TOKENS: Final = 32  # number of tokens of one term; FTS5 looks at each of them for each candidate
# number of half octaves of a range of durations; a wider range includes most events
_MOST_OCTAVES: Final = 26
_SHORT: Final = 2  # length of a word that hardly excludes a path: most have `v1` and `0`
_OPEN_ENDS: Final = ("/", "(")  # last characters of a folder that contains longer paths


class Untold(Exception):
    """Error because the index row of an event lacks a value that the search term compares."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """FTS5 expressions: a matching event has all of `words` and `others`, and none of `excluded`."""

    words: tuple[str, ...]  # words that only the tokens can decide
    others: tuple[str, ...]  # words that rows or events also decide
    excluded: tuple[str, ...]

    @property
    def required(self) -> tuple[str, ...]:
        return *self.words, *self.others

    def led_by(self, rare: str) -> Tokens:
        """Return a copy of the tokens in which the expression `rare` replaces all tokens in `others`."""
        return Tokens(tuple(dict.fromkeys((*self.words, rare))), (), self.excluded)

    def expression(self, orgs: Sequence[int]) -> str:
        """Return the FTS5 expression that finds events of the organisations in `orgs`.

        Return an empty text if neither the filter nor `orgs` requires an event to have a certain FTS5 token.
        """
        required = [*self.required]
        if 0 < len(orgs) <= _MOST_TOKENS:
            required.append(_any(map(_quoted, map(org_token, orgs))))
        if not required:
            return ""
        text = " AND ".join(f"({each})" for each in required)
        return f"({text}) NOT {_any(self.excluded)}" if self.excluded else text


def tokens_of(terms: Iterable[Term], codes: Codes) -> Tokens:
    by_words: list[str] = []
    others: list[str] = []
    excluded: list[str] = []
    for term in terms:
        if is_one_word(term):
            (excluded if term.negated else by_words).extend(_words(term))
        elif not term.negated:
            others += _words(term) if isinstance(term, TextTerm) else _required(term, codes)
    return Tokens(tuple(by_words), tuple(others), tuple(excluded))


def is_one_word(term: Term) -> TypeGuard[TextTerm]:
    """Return True if one FTS5 token is enough to decide which events match the search term."""
    return isinstance(term, TextTerm) and len(term.words) == 1


def names_of(term: Term) -> tuple[str, ...]:
    """Return the event IDs or request IDs that a term of the filter names.

    The store finds events with these IDs by its own index of IDs, without the search index.
    """
    if isinstance(term, HasTerm | TextTerm) or term.negated or term.field.name not in ("id", "request"):
        return ()
    texts = tuple(match.text for match in term.matches if isinstance(match, Exactly))
    return texts if len(texts) == len(term.matches) else ()


def request_tokens(term: Term) -> str:
    """Return the FTS5 expression that finds the request IDs in a search term, or an empty text.

    If a request ID equals the ID of its event, the full-text index contains no search token for the request
    ID.
    """
    if not isinstance(term, FieldTerm) or term.field.name != "request":
        return ""
    tokens = [_quoted(long_token("request", fold(text))) for text in names_of(term)]
    return _any(tokens) if tokens else ""


def _required(term: FieldTerm | HasTerm, codes: Codes) -> list[str]:
    if isinstance(term, HasTerm):
        return []
    name = "rule" if term.field.name == "ruleid" else term.field.name
    if name in CODED and name not in TOKENLESS:
        found = codes.matching(FieldTerm(FIELDS[name], term.matches))
        return [_any(_quoted(code_token(code)) for code in found)] if 0 < len(found) <= _MOST_TOKENS else []
    several = [_of_match(name, match) for match in term.matches]
    if len(several) == 1:
        return several[0]
    return [_any(map(_all, several))] if all(several) and len(several) <= _MOST_TOKENS else []


def _of_match(name: str, match: Match) -> list[str]:
    """Return the FTS5 tokens that every event has if its value of the field `name` fits `match`.

    Return an empty list if the index stores no FTS5 token for such values, or if the tokens would exclude
    only few events.
    """
    if name in ("path", "query"):
        return _in_value(match)
    if name == "duration" and isinstance(match, Between):
        return _in_octaves(match)
    # Only requests whose id differs from that of their event have a token.
    return _of_long(name, match) if name in LONG and name != "request" else []


def _in_octaves(match: Between) -> list[str]:
    low = 0 if match.low is None else half_octave(match.low)
    high = MOST_OCTAVES if match.high is None else half_octave(match.high)
    octaves = range(low, high + 1)
    return [_any(map(_quoted, map(octave_token, octaves)))] if 0 < len(octaves) <= _MOST_OCTAVES else []


def _any(expressions: Iterable[str]) -> str:
    return f"({' OR '.join(f'({each})' for each in expressions)})"


def _all(expressions: Iterable[str]) -> str:
    return " AND ".join(expressions)


def _quoted(token: str, *, prefix: bool = False) -> str:
    """Return a token in the quoted form of an FTS5 string.

    The index may store more characters of a long word than a filter compares, so a long token is searched as
    a prefix.
    """
    is_prefix = prefix or len(token) >= WORD_CHARS
    return f'"{token[:WORD_CHARS]}"{"*" if is_prefix else ""}'


def _words(term: TextTerm) -> list[str]:
    last = len(term.words) - 1
    return [_quoted(word, prefix=term.prefix and at == last) for at, word in enumerate(term.words)]


def _in_value(match: Match) -> list[str]:
    """Return FTS5 tokens for words that every matching path or query contains."""
    if isinstance(match, Between):
        return []
    pieces = match.pieces if isinstance(match, Like) else (unquote(match.text),)
    found = []
    for at, piece in enumerate(pieces):
        if isinstance(match, Like) and "%" in piece:
            continue
        for word in WORD.finditer(piece):
            begins = word.start() > 0 or at == 0
            ends = word.end() < len(piece) or at == len(pieces) - 1
            if begins and word[0].strip("-_"):
                found.append((word[0], not ends))
    long = [each for each in found if len(each[0]) > _SHORT]
    return [_quoted(word, prefix=prefix) for word, prefix in long or found]


def _of_long(name: str, match: Match) -> list[str]:
    if isinstance(match, Exactly):
        return [_quoted(long_token(name, fold(match.text)))]
    if isinstance(match, Like) and match.pieces[0]:
        return [_quoted(long_token(name, fold(match.pieces[0])), prefix=True)]
    return []


class RowDialect:
    """Translator of filter terms into SQL conditions on the rows of one part of the search index."""

    position = "key"
    org = "org"

    def __init__(self, part: int, codes: Codes, orgs: Mapping[int, str]) -> None:
        self._words = f"words_{part}"
        self._codes = codes
        self._orgs = orgs

    @property
    def time(self) -> str:
        return time_column()

    def exactly(self, field: Field, texts: Sequence[str]) -> Condition:
        if field.name == "path":
            return one_of("path", [path_digest(text) for text in texts])
        return self._among(field, tuple(map(Exactly, texts)))

    def like(self, field: Field, pieces: Sequence[str]) -> Condition:
        if field.name == "path" and len(pieces) == 2 and not pieces[1]:
            return self._path_beginning(pieces[0])
        return self._among(field, (Like(tuple(pieces)),))

    def between(self, field: Field, match: Between) -> Condition:
        if field.kind == "time":
            return bounded(self.time, match)
        return bounded(field.name, match) if field.name in NUMBERS else self._among(field, (match,))

    def has(self, field: Field) -> Condition:
        if field.name in LONG:
            return Condition(f"present & {1 << LONG.index(field.name)}")
        if field.name in ("id", "org", "time"):
            return EVERYTHING
        return Condition(f"{field.name} IS NOT NULL")

    def words(self, words: Sequence[str], *, prefix: bool) -> Condition:
        if len(words) > 1:
            raise Untold
        match = _quoted(words[0], prefix=prefix)
        return Condition(f"key IN (SELECT rowid FROM {self._words} WHERE {self._words} MATCH ?)", (match,))  # noqa: S608

    def times(self, from_ms: int | None, to_ms: int | None) -> list[Condition]:
        """Return SQL conditions on the event time for the time limits that the row key can't express.

        A row key stores a time before 1970 as the earliest possible time, and a time after 2248 as the
        latest.
        """
        conditions = []
        if from_ms is not None and not 0 < from_ms <= MOST_KEY_MS:
            conditions.append(Condition(f"{self.time} >= ?", (from_ms,)))
        if to_ms is not None and not 0 < to_ms <= MOST_KEY_MS:
            conditions.append(Condition(f"{self.time} < ?", (to_ms,)))
        return conditions

    def _among(self, field: Field, matches: tuple[Match, ...]) -> Condition:
        term = FieldTerm(field, matches)
        if field.name == "org":
            return among("org", [org for org, org_id in self._orgs.items() if value_holds(term, org_id)])
        if field.name not in CODED:
            raise Untold
        return among(field.name, self._codes.matching(term))

    def _path_beginning(self, text: str) -> Condition:
        within = []
        for name, code in self._codes.folders():
            if name.startswith(text):
                within.append(code)
            elif text.startswith(name) and name.endswith(_OPEN_ENDS):
                raise Untold
        return among("folder", within)
